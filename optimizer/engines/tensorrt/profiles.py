"""Optimization profiles: which shapes an engine accepts, and which it is tuned for. Pure.

A shape that the service accepts today is accepted by the engine: the batch runs from 1 to ``max_batch_size``; a free
dimension of the config needs a range, from the user or from the workload's own shapes, and without one the model is
refused with the input named.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optimizer.engines.tensorrt.source import OnnxSource
from optimizer.records.model import Model, TensorSpec

Shape = tuple[int, ...]
Range = tuple[int, int, int]
"""min, opt, max of one dimension."""

MODES = ("single", "batch_split", "shape_clusters")
MAXIMAL_CLUSTERS = 4
_FAR = 2.0
"""Two shapes are of one cluster while no dimension differs by more than this factor: a kernel tuned for a dimension is
usually still good at half or twice of it."""


class ProfileRefusal(Exception):
    """The model has no engine for a reason that the user can do something about; the text says which and what."""


@dataclass(frozen=True)
class ProfilePlan:
    """``profiles[i][input]`` is (min, opt, max) of full shapes. ``from_workload`` names the dimensions whose range is
    only what the workload showed: other sizes are refused by the engine.
    """

    profiles: tuple[Mapping[str, tuple[Shape, Shape, Shape]], ...]
    from_workload: tuple[str, ...] = ()

    def as_json(self) -> list[dict[str, list[list[int]]]]:
        return [{name: [list(s) for s in shapes] for name, shapes in item.items()} for item in self.profiles]


def default_opt_batch(model: Model, preferred: Sequence[int] = ()) -> int:
    """The batch that the engine is tuned for unless the knob says otherwise: the largest preferred size, else the
    largest batch there can be."""
    usable = [size for size in preferred if 0 < size <= model.max_batch_size]
    return max(usable) if usable else max(1, model.max_batch_size)


def opt_batch_values(model: Model, preferred: Sequence[int] = ()) -> tuple[int, ...]:
    """Powers of two up to ``max_batch_size``, the preferred sizes, and the largest batch."""
    powers = [2**exponent for exponent in range(model.max_batch_size.bit_length())]
    return tuple(sorted({*powers, model.max_batch_size, *[s for s in preferred if 0 < s <= model.max_batch_size]}))


def parse_ranges(options: Mapping[str, str]) -> dict[tuple[str, int], Range]:
    """``range.<input>.<dimension>`` = ``min:max`` or ``min:opt:max``; the dimension counts as in the config's dims.

    Raises :class:`ProfileRefusal` naming the option.
    """
    ranges: dict[tuple[str, int], Range] = {}
    for key, text in options.items():
        if not key.startswith("range."):
            continue
        name, _, index = key.removeprefix("range.").rpartition(".")
        try:
            numbers = [int(part) for part in text.split(":")]
            dimension = int(index)
        except ValueError:
            raise ProfileRefusal(f"{key}={text}: give min:max or min:opt:max, such as 32:640") from None
        if len(numbers) == 2:
            numbers = [numbers[0], numbers[1], numbers[1]]
        if len(numbers) != 3 or not 0 < numbers[0] <= numbers[1] <= numbers[2]:
            raise ProfileRefusal(f"{key}={text}: needs 0 < min <= opt <= max")
        ranges[name, dimension] = (numbers[0], numbers[1], numbers[2])
    return ranges


def parse_values(options: Mapping[str, str]) -> dict[str, list[list[int]]]:
    """``values.<input>`` = min, opt and max of a shape tensor's values, each a list: ``1,1:3,4:12,12``.

    Raises :class:`ProfileRefusal` naming the option.
    """
    found = {}
    for key, text in options.items():
        if not key.startswith("values."):
            continue
        try:
            triple = [[int(number) for number in part.split(",")] for part in text.split(":")]
        except ValueError:
            triple = []
        if len(triple) != 3 or len({len(part) for part in triple}) != 1:
            raise ProfileRefusal(f"{key}={text}: give min:opt:max, each a list such as 1,2")
        if any(not low <= best <= high for low, best, high in zip(*triple, strict=True)):
            raise ProfileRefusal(f"{key}={text}: needs min <= opt <= max for every value")
        found[key.removeprefix("values.")] = triple
    return found


def clusters(shapes: Sequence[Mapping[str, Shape]], batched: bool) -> list[list[Mapping[str, Shape]]]:
    """Groups request shapes whose dimensions (the batch left out) are within a factor of two of the group's first.

    At most four groups: what is left joins the last one. Deterministic in the set of shapes.
    """
    start = 1 if batched else 0

    def key(shape: Mapping[str, Shape]) -> tuple[int, ...]:
        return tuple(d for name in sorted(shape) for d in shape[name][start:])

    groups: list[list[Mapping[str, Shape]]] = []
    for shape in sorted(shapes, key=key):
        first = key(groups[-1][0]) if groups else ()
        near = (
            bool(groups)
            and len(first) == len(key(shape))
            and all(max(a, b) <= _FAR * max(1, min(a, b)) for a, b in zip(first, key(shape), strict=True))
        )
        if near or len(groups) >= MAXIMAL_CLUSTERS:
            groups[-1].append(shape)
        else:
            groups.append([shape])
    return groups


def plan_profiles(
    model: Model,
    source: OnnxSource,
    *,
    opt_batch: int,
    max_batch: int | None = None,
    mode: str = "single",
    ranges: Mapping[tuple[str, int], Range] | None = None,
    shapes: Sequence[Mapping[str, Shape]] = (),
) -> ProfilePlan:
    """Raises :class:`ProfileRefusal`. No profiles when the ONNX has no free dimension."""
    ranges = ranges or {}
    if mode not in MODES:
        raise ProfileRefusal(f"profiles={mode}: choose one of {', '.join(MODES)}")
    # Never less than what the service accepts today.
    most = max(1, model.max_batch_size, max_batch or 0) if model.batched else 1
    if not 1 <= opt_batch <= most:
        raise ProfileRefusal(f"opt_batch={opt_batch}: must be between 1 and max_batch_size {most}")
    batches = [(1, opt_batch, most)]
    if mode == "batch_split" and most > 1:
        batches = [(1, 1, 1), (1, max(2, opt_batch), most)]
    groups: list[Sequence[Mapping[str, Shape]]] = [shapes]
    if mode == "shape_clusters":
        groups = list(clusters(shapes, model.batched)) or [shapes]
    learned: set[str] = set()
    plans = []
    for group in groups:
        for batch in batches:
            item = {}
            for spec in model.inputs:
                shape = _input_shapes(model, spec, source, batch, ranges, group, shapes, learned)
                if shape is not None:
                    item[spec.name] = shape
            plans.append(item)
    if not any(plans):
        return ProfilePlan(())
    return ProfilePlan(tuple(plans), tuple(sorted(learned)))


def _input_shapes(
    model: Model,
    spec: TensorSpec,
    source: OnnxSource,
    batch: Range,
    ranges: Mapping[tuple[str, int], Range],
    group: Sequence[Mapping[str, Shape]],
    everything: Sequence[Mapping[str, Shape]],
    learned: set[str],
) -> tuple[Shape, Shape, Shape] | None:
    tensor = source.input(spec.name)
    if tensor is None or tensor.dims is None or -1 not in tensor.dims:
        return None
    served = spec.reshape if spec.reshape is not None else spec.dims
    offset = 1 if model.batched else 0
    if len(served) + offset != len(tensor.dims):
        raise ProfileRefusal(
            f"input {spec.name}: the config has {len(served)} dims{' and a batch' if offset else ''}, "
            f"the ONNX model has {len(tensor.dims)} dimensions {list(tensor.dims)}"
        )
    triples: list[Range] = [batch] if offset else []
    for index, size in enumerate(served):
        fixed = tensor.dims[index + offset]
        if size > 0:
            if fixed not in (-1, size):
                raise ProfileRefusal(f"input {spec.name} dim {index}: the config says {size}, the ONNX model {fixed}")
            triples.append((size, size, size))
        elif fixed > 0:
            triples.append((fixed, fixed, fixed))
        else:
            if (spec.name, index) not in ranges:
                learned.add(f"{spec.name}[{index}]")
            triples.append(_free(spec, index, index + offset, ranges, group, everything))
    low, best, high = zip(*triples, strict=True)
    return tuple(low), tuple(best), tuple(high)


def _free(
    spec: TensorSpec,
    index: int,
    axis: int,
    ranges: Mapping[tuple[str, int], Range],
    group: Sequence[Mapping[str, Shape]],
    everything: Sequence[Mapping[str, Shape]],
) -> Range:
    """Every profile covers the whole range, so that no accepted size falls between two clusters; they differ in opt."""

    def sizes(shapes: Sequence[Mapping[str, Shape]]) -> list[int]:
        # A reshape makes request sizes and engine sizes different things.
        usable = shapes if spec.reshape is None else ()
        return sorted(shape[spec.name][axis] for shape in usable if len(shape.get(spec.name, ())) > axis)

    seen, near = sizes(everything), sizes(group)
    given = ranges.get((spec.name, index))
    if given is None and not seen:
        raise ProfileRefusal(
            f"input {spec.name} has a free dimension {index} and nothing says its range: "
            f"give range.{spec.name}.{index}=min:opt:max, or samples that show it"
        )
    low, best, high = given or (seen[0], int(statistics.median_low(near)), seen[-1])
    if given is not None and len(near) < len(seen):
        best = min(high, max(low, int(statistics.median_low(near))))
    return low, best, high
