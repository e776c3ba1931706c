"""Which requests bring a batching fault to light, and the answers of batched requests taken apart again.

Faults that people have met: rows swapped inside a batch, results right at batch 1 and wrong at 3 or 8 (TensorRT #3744,
#1697, #4853), the previous answer served again (server #8550). So rows are chosen whose expected outputs are far apart,
every batch size that may form is asked for, every position of it with rows of its own, and single requests alternate.

Pure; records only.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from optimizer.accuracy.comparison import Comparison, norm
from optimizer.accuracy.validator import Answer, FailedAnswer
from optimizer.errors import OptimizerError
from optimizer.records.model import Array, Model
from optimizer.records.samples import Arrays, Sample, SampleSet

POOL = 256
"""Samples among which discriminating ones are looked for: their distances are computed pairwise."""

EVERY_SIZE_UP_TO = 16
"""Up to this max_batch_size every batch size is asked for, above it a selection."""

Infer = Callable[[Arrays], tuple[Arrays, Mapping[str, str]]]


def distance(left: Arrays, right: Arrays) -> float:
    """How far two sets of outputs are apart: the largest over the outputs of ‖a − b‖ / max(‖a‖, ‖b‖), for BYTES of the
    fraction of texts that differ. ``inf`` for different shapes or names: those cannot be mistaken for each other."""
    if set(left) != set(right) or any(left[name].shape != right[name].shape for name in left):
        return math.inf
    largest = 0.0
    for name in left:
        comparison = Comparison(left[name], right[name])
        if comparison.actual.size == 0 or comparison.largest == 0.0:
            continue
        if comparison.is_text:
            largest = max(largest, comparison.mean)
            continue
        if not math.isfinite(comparison.largest):
            return math.inf
        gap, gap_exponent = norm(comparison.absolute.astype(np.float64).reshape(-1))
        sizes = [norm(values) for values in comparison.finite_values]
        size = max(math.ldexp(value, exponent - gap_exponent) for value, exponent in sizes)
        largest = max(largest, gap / size if size else math.inf)
    return largest


def discriminating(samples: SampleSet, count: int = 8) -> tuple[int, ...]:
    """Indices of up to ``count`` samples with equal input shapes and one row each, whose expected outputs are pairwise
    as far apart as can be: greedily, each the farthest from those chosen before. Samples whose expected outputs are
    equal to a chosen one's are left out, so there may be fewer."""
    groups: dict[object, list[int]] = defaultdict(list)
    for index, sample in enumerate(samples.samples):
        if sample.expected is not None and sample.batch == 1:
            groups[_shape_key(sample)].append(index)
    if not groups:
        return ()
    pool = max(groups.values(), key=len)[:POOL]
    expected = [samples.samples[index].expected or {} for index in pool]
    chosen = [0]
    nearest = [distance(expected[0], other) for other in expected]
    while len(chosen) < min(count, len(pool)):
        farthest = max(range(len(pool)), key=nearest.__getitem__)
        if nearest[farthest] == 0.0:
            break
        chosen.append(farthest)
        nearest = [
            min(known, distance(expected[farthest], other)) for known, other in zip(nearest, expected, strict=True)
        ]
    return tuple(pool[position] for position in chosen)


def batch_sizes(max_batch_size: int, preferred: Iterable[int] = ()) -> tuple[int, ...]:
    """Batch sizes worth asking for: all of them up to 16, above that small ones, powers of two, the preferred sizes and
    the largest, each with its neighbours, where kernels change."""
    if max_batch_size <= EVERY_SIZE_UP_TO:
        return tuple(range(1, max_batch_size + 1))
    sizes = {1, 2, 3, 5, 6, 7, 12}
    for corner in (*(2**power for power in range(2, max_batch_size.bit_length())), *preferred, max_batch_size):
        sizes |= {corner - 1, corner, corner + 1}
    return tuple(sorted(size for size in sizes if 1 <= size <= max_batch_size))


def plan_requests(
    samples: SampleSet, model: Model, *, preferred: Iterable[int] = (), rows: int = 8
) -> tuple[tuple[int, ...], ...]:
    """Requests as tuples of sample indices, to be sent one after the other.

    First single requests that alternate between discriminating samples (A B A C A B …); then, where the model batches,
    two requests of every batch size, the second with the rows shifted, so that every position of every size gets rows
    whose neighbours answer differently. Every remaining sample is asked once on its own.
    """
    apart = discriminating(samples, rows)
    plan: list[tuple[int, ...]] = []
    for other in apart[1:]:
        plan += [(apart[0],), (other,)]
    if model.batched and len(apart) > 0 and not any(spec.shape_tensor for spec in model.inputs):
        for size in batch_sizes(model.max_batch_size, preferred):
            for shift in (0, 1) if size > 1 else (0,):
                plan.append(tuple(apart[(position + shift) % len(apart)] for position in range(size)))
    asked = {index for request in plan for index in request}
    plan += [(index,) for index in range(len(samples)) if index not in asked]
    return tuple(plan)


def merge(samples: SampleSet, indices: Sequence[int]) -> Sample:
    """One request with the rows of several samples, in order. Their shapes are equal but for the batch."""
    members = [samples.samples[index] for index in indices]
    if len(members) == 1:
        return members[0]
    return Sample(
        id="+".join(member.id for member in members),
        inputs=_concatenate([member.inputs for member in members]),
        expected=_concatenate([member.expected or {} for member in members])
        if all(member.expected is not None for member in members)
        else None,
        tags=frozenset.intersection(*(member.tags for member in members)),
    )


def merged_set(samples: SampleSet, plan: Sequence[Sequence[int]], *, name: str) -> SampleSet:
    """The plan's requests as samples of their own, in the plan's order; ids are made unique."""
    merged = [merge(samples, indices) for indices in plan]
    return replace(
        samples,
        name=name,
        samples=tuple(replace(sample, id=f"{number}:{sample.id}") for number, sample in enumerate(merged)),
    )


def separate(outputs: Arrays, batches: Sequence[int]) -> list[Arrays]:
    """The outputs of a merged request, row by row group. An output whose first axis is not the sum of ``batches`` goes
    whole to everyone, where its shape will be found wrong."""
    total = sum(batches)
    parts: list[dict[str, Array]] = [{} for _ in batches]
    for name, array in outputs.items():
        fits = array.ndim > 0 and array.shape[0] == total
        start = 0
        for part, rows in zip(parts, batches, strict=True):
            part[name] = array[start : start + rows] if fits else array
            start += rows
    return list(parts)


def ask(samples: SampleSet, plan: Iterable[Sequence[int]], infer: Infer) -> Iterator[Answer | FailedAnswer]:
    """Sends the plan's requests through ``infer`` (inputs to outputs and data types) and yields an answer for every
    sample of each, with the circumstances it was asked in. An error of the server's becomes failed answers."""
    for indices in plan:
        circumstances = [""] if len(indices) == 1 else [
            f"position {position + 1} of a batch of {len(indices)}" for position in range(len(indices))
        ]  # fmt: skip
        try:
            outputs, datatypes = infer(merge(samples, indices).inputs)
        except (OptimizerError, ValueError) as error:
            reason = error.problem if isinstance(error, OptimizerError) else str(error)
            yield from (FailedAnswer(i, reason, c) for i, c in zip(indices, circumstances, strict=True))
            continue
        parts = [outputs] if len(indices) == 1 else separate(outputs, [samples.samples[i].batch for i in indices])
        for index, part, circumstance in zip(indices, parts, circumstances, strict=True):
            yield Answer(index, part, datatypes, circumstance)


def _shape_key(sample: Sample) -> object:
    return tuple(sorted((name, array.shape) for name, array in sample.inputs.items()))


def _concatenate(parts: Sequence[Arrays]) -> dict[str, Array]:
    return {name: np.concatenate([part[name] for part in parts], axis=0) for name in parts[0]}
