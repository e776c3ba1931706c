"""Samples in perf_analyzer's ``--input-data`` format.

``{"data": [{"IN": …}, …], "validation_data": [{"OUT": …}, …]}``: a tensor is a (nested) list of values in row-major
order, ``{"content": […], "shape": […]}`` or ``{"b64": "…", "shape": […]}`` (raw little-endian bytes). Shapes leave out
the batch dimension. ``data`` may be a list of lists, one per stream; their steps become samples ``STREAM/STEP``.

Imports records and errors only.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from optimizer.accuracy.tensors import (
    Address,
    batch_axis,
    check_batches,
    check_complete,
    element_count,
    round_to_bf16,
    to_wire_form,
)
from optimizer.errors import InputError
from optimizer.records.model import ITEM_BYTES, Array, Model, TensorSpec
from optimizer.records.samples import Sample

LARGEST_FLOAT = {"FP16": 65504.0, "BF16": 3.3895313892515355e38, "FP32": 3.4028234663852886e38}


def load_perf_analyzer_json(path: Path, model: Model) -> tuple[Sample, ...]:
    """Raises :class:`InputError` naming file, tensor and sample."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(
            f"line {error.lineno}, column {error.colno}: {error.msg}", where=path, remedy="correct the JSON"
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"is not UTF-8: {error.reason} at byte {error.start}", where=path, remedy="save it as UTF-8"
        ) from None
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        raise InputError('expected an object with a list "data"', where=path, remedy='write {"data": [{"INPUT": […]}]}')
    steps = list(_steps(document["data"], path, "data"))
    golden = list(_steps(document.get("validation_data") or [], path, "validation_data"))
    if golden and len(golden) != len(steps):
        raise InputError(
            f"expected as many entries as in data ({len(steps)}), got {len(golden)}",
            where=path,
            field="validation_data",
            remedy="give outputs for every step, or none",
        )
    samples = []
    for index, (identity, step) in enumerate(steps):
        address = Address(str(path), identity)
        inputs = _tensors(step, model, model.inputs, "input", address)
        expected = _tensors(golden[index][1], model, model.outputs, "output", address) if golden else None
        check_complete(set(inputs), set(expected or ()), model, str(path), identity)
        sample = Sample(id=identity, inputs=inputs, expected=expected)
        check_batches(sample, model, address)
        samples.append(sample)
    return tuple(samples)


def _steps(entries: list[Any], path: Path, field: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for index, entry in enumerate(entries):
        if isinstance(entry, dict):
            yield str(index), entry
        elif isinstance(entry, list) and all(isinstance(step, dict) for step in entry):
            for number, step in enumerate(entry):
                yield f"{index}/{number}", step
        else:
            raise InputError(
                "expected an object of tensors",
                where=path,
                field=f"{field}[{index}]",
                remedy='write {"INPUT": [values]} for each request',
            )


def _tensors(
    step: Mapping[str, Any], model: Model, specs: tuple[TensorSpec, ...], kind: str, address: Address
) -> dict[str, Array]:
    known = {spec.name: spec for spec in specs}
    tensors: dict[str, Array] = {}
    for name, value in step.items():
        if name not in known:
            raise address.error(name, f"the model has no {kind} of this name", f"{kind}s: {', '.join(known)}")
        tensors[name] = _tensor(value, model, known[name], address)
    return tensors


def _tensor(value: Any, model: Model, spec: TensorSpec, address: Address) -> Array:
    shape: tuple[int, ...] | None = None
    if isinstance(value, dict):
        if not isinstance(value.get("shape", []), list) or not all(
            isinstance(size, int) and size >= 0 for size in value.get("shape", [])
        ):
            raise address.error(
                spec.name, f"shape {value.get('shape')!r} is not a list of sizes", "write [3, 224, 224]"
            )
        shape = tuple(value["shape"]) if "shape" in value else None
        if "b64" in value:
            flat = _from_base64(value["b64"], spec, address)
        elif "content" in value:
            flat = _from_list(value["content"], spec, address)
        else:
            raise address.error(spec.name, 'expected "content" or "b64"', "see perf_analyzer's input data format")
    else:
        flat = _from_list(value, spec, address)
    if shape is None:
        shape = _infer_shape(flat.size, model, spec, address)
    if element_count(shape) != flat.size:
        raise address.error(
            spec.name, f"shape {list(shape)} holds {element_count(shape)} values, got {flat.size}", "make them agree"
        )
    return to_wire_form(flat.reshape(shape), model, spec, address)


def _infer_shape(size: int, model: Model, spec: TensorSpec, address: Address) -> tuple[int, ...]:
    """Dims for a tensor without a shape: as declared, several rows allowed where the model batches."""
    free = [position for position, dim in enumerate(spec.dims) if dim < 0]
    fixed = element_count(tuple(dim for dim in spec.dims if dim >= 0))
    if not free:
        if batch_axis(model, spec) and fixed and size != fixed and size % fixed == 0:
            return (size // fixed, *spec.dims)
        return spec.dims
    if len(free) > 1 or (fixed and size % fixed):
        raise address.error(
            spec.name,
            f"{size} values do not tell the free dimensions of {list(spec.dims)}",
            'give "content" with a "shape"',
        )
    return tuple(size // fixed if dim < 0 else dim for dim in spec.dims)


def _from_base64(text: Any, spec: TensorSpec, address: Address) -> Array:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise address.error(spec.name, f"is not base64: {error}", "encode the raw little-endian bytes") from None
    if spec.datatype == "BYTES":
        items = _length_prefixed(data)
        return _objects(items if items is not None else [data])
    item = ITEM_BYTES[spec.datatype]
    if len(data) % item:
        raise address.error(
            spec.name, f"{len(data)} bytes are not whole {spec.datatype} values of {item} bytes", "check the data type"
        )
    if spec.datatype == "BF16":
        bits = np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16
        return bits.view(np.float32)
    return np.frombuffer(data, dtype=spec.numpy_dtype.newbyteorder("<")).astype(spec.numpy_dtype)


def _length_prefixed(data: bytes) -> list[bytes] | None:
    """The texts of Triton's BYTES encoding (4-byte little-endian length, then the text), ``None`` if it is not that."""
    items, offset = [], 0
    while offset < len(data):
        length = int.from_bytes(data[offset : offset + 4], "little")
        if offset + 4 + length > len(data):
            return None
        items.append(data[offset + 4 : offset + 4 + length])
        offset += 4 + length
    return items or None


def _from_list(value: Any, spec: TensorSpec, address: Address) -> Array:
    flat = list(_leaves(value))
    if spec.datatype == "BYTES":
        for item in flat:
            if not isinstance(item, str):
                raise address.error(spec.name, f"expected texts, got {item!r}", "quote the value")
        return _objects([item.encode() for item in flat])
    kind = spec.numpy_dtype.kind
    for item in flat:
        problem = _misfit(item, spec, kind)
        if problem:
            raise address.error(spec.name, f"expected {spec.datatype}, got {problem}", "correct the value")
    if spec.datatype == "BF16":
        return round_to_bf16(np.array(flat, dtype=np.float32))
    return np.array(flat, dtype=spec.numpy_dtype)


def _misfit(item: Any, spec: TensorSpec, kind: str) -> str:
    """What is wrong with a JSON value for the tensor's data type, ``""`` if nothing is."""
    if kind == "b":
        return "" if isinstance(item, bool) or (type(item) is int and item in (0, 1)) else repr(item)
    if isinstance(item, bool) or not isinstance(item, int | float):
        return repr(item)
    if item != item:
        return "NaN"
    if kind in "iu":
        limits = np.iinfo(spec.numpy_dtype)
        if not isinstance(item, int):
            return f"{item!r}, which is not an integer"
        return "" if limits.min <= item <= limits.max else f"{item}, outside {limits.min}..{limits.max}"
    limit = LARGEST_FLOAT.get(spec.datatype)
    if limit is not None and limit < abs(item) < float("inf"):
        return f"{item!r}, outside ±{limit:g}"
    return ""


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _objects(items: list[bytes]) -> Array:
    result = np.empty(len(items), dtype=np.object_)
    for index, item in enumerate(items):
        result[index] = item
    return result
