"""One array of the user's against one tensor of the model: data type, shape, values, and the form it has on the wire.

Every problem is an :class:`optimizer.errors.InputError` that names file, tensor, sample, what was expected and what was
found. Imports records and errors only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from optimizer.errors import InputError
from optimizer.records.model import Array, Model, TensorSpec
from optimizer.records.samples import Sample


@dataclass(frozen=True)
class Address:
    """Where an array came from, for error messages."""

    file: str
    sample: str = ""

    def error(self, tensor: str, problem: str, remedy: str) -> InputError:
        field = f"tensor {tensor!r}" + (f", sample {self.sample}" if self.sample else "")
        return InputError(problem, where=self.file, field=field, remedy=remedy)


def batch_axis(model: Model, spec: TensorSpec) -> bool:
    """Whether the tensor has a batch axis on the wire. Triton sends shape tensors without one, also to models that
    batch (the batch is then the first of the shape values)."""
    return model.batched and not spec.shape_tensor


def wire_rank(model: Model, spec: TensorSpec) -> int:
    return len(spec.dims) + (1 if batch_axis(model, spec) else 0)


def wire_dims(model: Model, spec: TensorSpec) -> str:
    """Text of the shape on the wire, for messages: ``[batch, 3, ?, ?]``."""
    dims = ["?" if size < 0 else str(size) for size in spec.dims]
    return "[" + ", ".join((["batch"] if batch_axis(model, spec) else []) + dims) + "]"


def to_wire_form(array: Array, model: Model, spec: TensorSpec, address: Address) -> Array:
    """The array as it goes over the wire, checked.

    ``array`` has the tensor's dims, with or without the batch axis in front (without: a batch of one). Data types
    must be equal, with three allowances for what NumPy cannot express: BYTES from fixed-width ``S`` and ``U`` arrays
    (``U`` as UTF-8), BF16 from FP32 (rounded to nearest even) and from two-byte void arrays (the bits).
    """
    array = _to_carried_dtype(array, spec, address)
    if batch_axis(model, spec) and array.ndim == len(spec.dims):
        array = array[np.newaxis, ...]
    check_shape(array.shape, model, spec, address)
    check_values(array, spec, address)
    return array


def check_shape(shape: tuple[int, ...], model: Model, spec: TensorSpec, address: Address) -> None:
    """``shape`` as on the wire."""
    dims = shape[1:] if batch_axis(model, spec) else shape
    fits = len(dims) == len(spec.dims) and all(want in (-1, got) for want, got in zip(spec.dims, dims, strict=True))
    if not fits:
        raise address.error(
            spec.name,
            f"expected shape {wire_dims(model, spec)}, got {list(shape)}",
            "give each sample the shape that the model's config declares",
        )
    if batch_axis(model, spec) and not 1 <= shape[0] <= model.max_batch_size:
        raise address.error(
            spec.name,
            f"expected a batch of 1 to {model.max_batch_size}, got {shape[0]}",
            "split the sample, max_batch_size is the model's limit",
        )


def check_values(array: Array, spec: TensorSpec, address: Address) -> None:
    """NaN is refused everywhere; infinities are values (masks are made of them)."""
    if array.dtype.kind == "f" and bool(np.isnan(array).any()):
        count = int(np.isnan(array).sum())
        raise address.error(
            spec.name,
            f"expected numbers, got NaN in {count} of {array.size} values",
            "remove the sample or repair its values: with NaN nothing can be compared",
        )


def _to_carried_dtype(array: Array, spec: TensorSpec, address: Address) -> Array:
    want = spec.datatype
    if want == "BYTES":
        if array.dtype.kind in "SU":
            return bytes_array(array)
        if array.dtype == np.object_ and all(isinstance(item, bytes | str) for item in array.flat):
            return bytes_array(array)
    elif want == "BF16":
        if array.dtype == np.float32:
            return round_to_bf16(array)
        if array.dtype.kind == "V" and array.dtype.itemsize == 2:
            # What NumPy makes of a bfloat16 extension type when it reads it back from a file.
            bits = np.ascontiguousarray(array).view(np.uint16).astype(np.uint32) << 16
            return bits.view(np.float32).reshape(array.shape)
    elif array.dtype == spec.numpy_dtype:
        return array
    elif array.dtype.newbyteorder("=") == spec.numpy_dtype:
        return array.astype(spec.numpy_dtype)
    raise address.error(
        spec.name,
        f"expected data type {want} ({_carrier(want, spec)}), got {array.dtype}",
        "convert the array before saving it: nothing is cast silently",
    )


def _carrier(datatype: str, spec: TensorSpec) -> str:
    if datatype == "BYTES":
        return "NumPy S or U"
    return f"NumPy {spec.numpy_dtype}"


def bytes_array(array: Array) -> Array:
    """Object array of ``bytes`` with the same shape."""
    result = np.empty(array.shape, dtype=np.object_)
    flat: Any = result.reshape(-1)
    for index, item in enumerate(array.reshape(-1)):
        flat[index] = item.encode() if isinstance(item, str) else bytes(item)
    return result


def round_to_bf16(array: Array) -> Array:
    """FP32 values rounded to the nearest BF16, ties to even; NaN and infinities stay."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(array), rounded.view(np.float32), array).astype(np.float32).reshape(array.shape)


def free_dims(spec: TensorSpec) -> tuple[int, ...]:
    """Positions in ``dims`` that are free."""
    return tuple(position for position, size in enumerate(spec.dims) if size < 0)


def element_count(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def check_complete(inputs: set[str], expected: set[str], model: Model, where: str, sample: str = "") -> None:
    """Every input that is not optional is there, and expected outputs are there for all outputs or for none."""
    address = Address(where, sample)
    for spec in model.inputs:
        if spec.name not in inputs and not spec.optional:
            raise address.error(spec.name, "this input is missing", "add it: the model's config does not say optional")
    for spec in model.outputs:
        if expected and spec.name not in expected:
            raise address.error(
                spec.name,
                f"expected values are given for {', '.join(sorted(expected))} but not for this output",
                "give expected values for every output or for none: an output without them would go unchecked",
            )


def check_batches(sample: Sample, model: Model, address: Address) -> None:
    """All tensors of one request have the same batch."""
    if not model.batched:
        return
    specs = {spec.name: spec for spec in (*model.inputs, *model.outputs)}
    batch = None
    for name, array in (*sample.inputs.items(), *(sample.expected or {}).items()):
        if specs[name].shape_tensor:
            continue
        batch = array.shape[0] if batch is None else batch
        if array.shape[0] != batch:
            raise address.error(
                name, f"expected a batch of {batch} as in the other tensors, got {array.shape[0]}", "make them equal"
            )
