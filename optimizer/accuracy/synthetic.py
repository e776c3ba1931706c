"""Seeded random samples from the tensor specs, for a model whose owner has no samples at hand.

Free dimensions need ranges from the user, and all inputs move through their ranges together: where token ids and a mask
share a free length they get the same one. Random inputs say little about accuracy; the set says that it is synthetic.

Imports records and errors only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from optimizer.accuracy.tensors import batch_axis, free_dims
from optimizer.errors import InputError
from optimizer.records.model import Array, Model, TensorSpec
from optimizer.records.samples import Sample, SampleSet

Dims = tuple[int, ...]

DEFAULT_WIDE_INT_RANGE = (0, 99)
"""16 to 64-bit integers are mostly ids and masks: small enough for any vocabulary. 8-bit ones use their whole range."""

EXTREME_FLOAT = 255.0
"""Magnitude of the ``extreme`` samples: an image that somebody forgot to normalise."""

MOST_BYTES = 4_000_000_000
"""Of a whole set: dims with a digit too many must not take the machine's memory."""


@dataclass(frozen=True)
class ShapeRange:
    """Smallest, middle and largest dims of one input, batch excluded."""

    smallest: Dims
    middle: Dims
    largest: Dims

    def at(self, fraction: float) -> Dims:
        """Dims at a place of the range: 0 smallest, 0.5 middle, 1 largest."""
        if fraction <= 0.5:
            low, high, part = self.smallest, self.middle, 2 * fraction
        else:
            low, high, part = self.middle, self.largest, 2 * fraction - 1
        return tuple(round(a + (b - a) * part) for a, b in zip(low, high, strict=True))


def parse_shape(text: str) -> tuple[str, ShapeRange]:
    """``NAME=3x224x224`` (fixed), ``NAME=3x32x32:3x96x96`` (smallest:largest) or
    ``NAME=3x32x32:3x64x64:3x96x96`` (smallest:middle:largest), without the batch dimension; ``NAME=`` is a scalar.
    """
    name, equals, rest = text.rpartition("=")
    levels = [_parse_dims(part) for part in rest.split(":")]
    if (
        not equals
        or not name
        or None in levels
        or len(levels) > 3
        or len({len(d) for d in levels if d is not None}) > 1
    ):
        raise InputError(
            f"expected NAME=DIMS or NAME=SMALLEST:LARGEST or NAME=SMALLEST:MIDDLE:LARGEST, got {text!r}",
            field="--shape",
            remedy="for instance --shape images=3x32x32:3x128x128, without the batch dimension",
        )
    dims = [level for level in levels if level is not None]
    smallest, largest = dims[0], dims[-1]
    middle = dims[1] if len(dims) == 3 else tuple((a + b) // 2 for a, b in zip(smallest, largest, strict=True))
    if not all(a <= b <= c for a, b, c in zip(smallest, middle, largest, strict=True)):
        raise InputError(
            f"the dims of {text!r} do not grow from smallest to largest",
            field="--shape",
            remedy="write the smallest first: NAME=3x32x32:3x96x96",
        )
    return name, ShapeRange(smallest, middle, largest)


def _parse_dims(text: str) -> Dims | None:
    if text == "":
        return ()
    if not re.fullmatch(r"[0-9]+(x[0-9]+)*", text):
        return None
    return tuple(int(part) for part in text.split("x"))


def parse_int_range(text: str) -> tuple[str, tuple[int, int]]:
    """``NAME=LOW:HIGH``, both included."""
    match = re.fullmatch(r"(.+)=(-?[0-9]+):(-?[0-9]+)", text)
    if not match or int(match[2]) > int(match[3]):
        raise InputError(
            f"expected NAME=LOW:HIGH with LOW <= HIGH, got {text!r}",
            field="--int-range",
            remedy="for instance --int-range token_ids=0:30521",
        )
    return match[1], (int(match[2]), int(match[3]))


def synthetic_samples(
    model: Model,
    count: int,
    seed: int,
    *,
    shapes: Mapping[str, ShapeRange] | None = None,
    int_ranges: Mapping[str, tuple[int, int]] | None = None,
    name: str = "synthetic",
) -> SampleSet:
    """``count`` samples; every fourth is an edge case tagged ``edge`` and one of ``zeros``, ``extreme``, ``smallest``,
    ``largest``, ``odd_batch``. A sample depends on ``seed`` and its index alone, so a longer set starts with the
    shorter one. Optional inputs are included.

    Raises :class:`InputError` for a free dimension without a range and for a range that does not fit the model.
    """
    shapes, int_ranges = dict(shapes or {}), dict(int_ranges or {})
    _check_ranges(model, shapes, int_ranges)
    _check_size(model, shapes, count)
    edges = ["zeros", "extreme"]
    if any(free_dims(spec) for spec in model.inputs):
        edges += ["smallest", "largest"]
    odd = [size for size in (3, 5, 7) if size <= model.max_batch_size]
    if odd:
        edges += ["odd_batch"]
    samples = []
    for index in range(count):
        # Not seeded by a sum: neighbouring seeds must not share samples.
        generator = np.random.default_rng([seed, index])
        edge = edges[(index // 4) % len(edges)] if index % 4 == 3 else ""
        fraction = {"smallest": 0.0, "largest": 1.0}.get(edge, (0.0, 0.5, 1.0, float(generator.random()))[index % 4])
        batch = odd[(index // 4 // len(edges)) % len(odd)] if edge == "odd_batch" else 1
        inputs: dict[str, Array] = {}
        for spec in model.inputs:
            dims = shapes[spec.name].at(fraction) if spec.name in shapes else spec.dims
            shape = (batch, *dims) if batch_axis(model, spec) else dims
            inputs[spec.name] = _values(spec, shape, edge, int_ranges.get(spec.name), generator)
        tags = frozenset({"edge", edge} if edge else set[str]())
        samples.append(Sample(id=f"synthetic-{index}", inputs=inputs, tags=tags))
    return SampleSet(name=name, samples=tuple(samples), origin=f"synthetic (seed {seed})", synthetic=True)


def _check_size(model: Model, shapes: Mapping[str, ShapeRange], count: int) -> None:
    sizes = {
        spec.name: spec.numpy_dtype.itemsize
        * math.prod(shapes[spec.name].largest if spec.name in shapes else spec.dims)
        for spec in model.inputs
    }
    if sum(sizes.values()) * count > MOST_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        raise InputError(
            f"{count} random samples would take {sum(sizes.values()) * count / 1e9:,.0f} GB, "
            f"{sizes[largest] / 1e9:,.3f} GB of each for {largest!r}; at most {MOST_BYTES / 1e9:.0f} GB are made",
            where=f"model {model.name}",
            field="--synthetic-count",
            remedy="give fewer, smaller shapes with --shape, or samples of real requests with --inputs",
        )


def _check_ranges(model: Model, shapes: Mapping[str, ShapeRange], int_ranges: Mapping[str, tuple[int, int]]) -> None:
    specs = {spec.name: spec for spec in model.inputs}
    for flag, names in (("--shape", shapes), ("--int-range", int_ranges)):
        for given in names:
            if given not in specs:
                raise InputError(
                    f"model {model.name} has no input {given!r}", field=flag, remedy=f"inputs: {', '.join(specs)}"
                )
    for spec in model.inputs:
        if spec.name in shapes:
            for dims in (shapes[spec.name].smallest, shapes[spec.name].largest):
                if len(dims) != len(spec.dims) or any(
                    want not in (-1, got) for want, got in zip(spec.dims, dims, strict=True)
                ):
                    raise InputError(
                        f"expected dims {list(spec.dims)} as in the config, got {list(dims)}",
                        where=f"model {model.name}",
                        field=f"--shape {spec.name}",
                        remedy="give the dims without the batch dimension; only -1 may vary",
                    )
        elif free_dims(spec):
            example = "x".join("MIN" if size < 0 else str(size) for size in spec.dims)
            raise InputError(
                f"input {spec.name!r} has free dimensions {list(spec.dims)}: their range must come from you",
                where=f"model {model.name}",
                field=f"tensor {spec.name!r}",
                remedy=f"add --shape {spec.name}={example}:{example.replace('MIN', 'MAX')} or give samples",
            )
        if spec.name in int_ranges and spec.datatype != "BOOL":
            low, high = int_ranges[spec.name]
            if spec.numpy_dtype.kind not in "iu":
                raise InputError(
                    f"input {spec.name!r} is {spec.datatype}, not an integer",
                    field="--int-range",
                    remedy="leave --int-range out for this input",
                )
            limits = np.iinfo(spec.numpy_dtype)
            if low < limits.min or high > limits.max:
                raise InputError(
                    f"{low}:{high} does not fit {spec.datatype} ({limits.min}:{limits.max})",
                    field=f"--int-range {spec.name}",
                    remedy="give a range that the data type holds",
                )


def _values(
    spec: TensorSpec, shape: Dims, edge: str, int_range: tuple[int, int] | None, generator: np.random.Generator
) -> Array:
    dtype = spec.numpy_dtype
    if spec.datatype == "BYTES":
        return _texts(shape, edge, generator)
    if dtype.kind == "b":
        values = np.zeros(shape, dtype) if edge == "zeros" else generator.integers(0, 2, shape).astype(dtype)
        return np.asarray(values)
    if dtype.kind in "iu":
        low, high = int_range or _default_int_range(dtype)
        if edge == "zeros":
            return np.full(shape, min(max(0, low), high), dtype)
        if edge == "extreme":
            return np.where(generator.integers(0, 2, shape) == 1, dtype.type(high), dtype.type(low)).astype(dtype)
        return np.asarray(generator.integers(low, high, shape, dtype=dtype, endpoint=True))
    if edge == "zeros":
        return np.zeros(shape, dtype)
    if edge == "extreme":
        # Exact in BF16 and FP16 too.
        return (np.where(generator.integers(0, 2, shape) == 1, EXTREME_FLOAT, -EXTREME_FLOAT)).astype(dtype)
    values = generator.standard_normal(shape).astype(dtype)
    if spec.datatype == "BF16":
        from optimizer.accuracy.tensors import round_to_bf16

        return round_to_bf16(values)
    return np.asarray(values, dtype=dtype)


def _default_int_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    if dtype.itemsize == 1:
        limits = np.iinfo(dtype)
        return int(limits.min), int(limits.max)
    return DEFAULT_WIDE_INT_RANGE


def _texts(shape: Dims, edge: str, generator: np.random.Generator) -> Array:
    result = np.empty(shape, dtype=np.object_)
    for position in np.ndindex(shape):
        length = 0 if edge == "zeros" else 512 if edge == "extreme" else int(generator.integers(1, 33))
        result[position] = bytes(generator.integers(97, 123, length, dtype=np.uint8))
    return result
