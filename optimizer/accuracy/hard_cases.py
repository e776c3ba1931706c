"""Which samples are hard, and what a number of samples can support.

Pure; records and the metrics only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from optimizer.accuracy.metrics import samples_needed, upper_bound
from optimizer.errors import InputError
from optimizer.records.model import Array
from optimizer.records.samples import SampleSet

HARD = "hard"

EXTREME_RATIO = 4.0
"""A sample is extreme when an input's largest magnitude is this many times the set's median one."""


def margin(output: Array, axis: int = -1) -> float:
    """Smallest difference between the best and the second best class over all positions; ``inf`` with one class."""
    if output.dtype.kind not in "fiu" or output.ndim == 0 or output.shape[axis] < 2 or output.size == 0:
        return math.inf
    classes = np.moveaxis(output, axis, -1).astype(np.float64)
    two = np.partition(classes, -2, axis=-1)[..., -2:]
    gaps = two[..., 1] - two[..., 0]
    return float(np.min(np.where(np.isnan(gaps), 0.0, gaps)))


def lowest_margin(samples: SampleSet, output: str, count: int, *, axis: int = -1) -> tuple[int, ...]:
    """Indices of the ``count`` samples whose expected top-1 is nearest to flipping, hardest first.

    Raises :class:`InputError` where a sample has no expected values for ``output``.
    """
    margins = []
    for sample in samples.samples:
        if sample.expected is None or output not in sample.expected:
            raise InputError(
                f"sample {sample.id} has no expected values for output {output!r}",
                where=samples.origin,
                remedy="give expected outputs, or leave --reference at auto",
            )
        margins.append(margin(sample.expected[output], axis))
    return tuple(sorted(range(len(margins)), key=lambda index: (margins[index], index))[:count])


def extremes(samples: SampleSet, count: int) -> tuple[int, ...]:
    """Indices of up to ``count`` samples with an input far outside the usual magnitude, largest first."""
    ratios = [0.0] * len(samples)
    for name in samples.samples[0].inputs if len(samples) else ():
        peaks = np.array([_peak(sample.inputs.get(name)) for sample in samples.samples])
        usual = float(np.median(peaks))
        for index, peak in enumerate(peaks):
            ratios[index] = max(ratios[index], float(peak) / usual if usual > 0 else (math.inf if peak > 0 else 0.0))
    ranked = sorted(range(len(ratios)), key=lambda index: (-ratios[index], index))
    return tuple(index for index in ranked[:count] if ratios[index] >= EXTREME_RATIO)


def odd_batches(samples: SampleSet) -> tuple[int, ...]:
    """Indices of the samples whose batch is not a power of two."""
    return tuple(
        i for i, sample in enumerate(samples.samples) if sample.batch > 0 and sample.batch & (sample.batch - 1)
    )


def tagged(samples: SampleSet, indices: Iterable[int], tag: str) -> SampleSet:
    chosen = set(indices)
    return replace(
        samples,
        samples=tuple(
            replace(sample, tags=sample.tags | {tag}) if index in chosen else sample
            for index, sample in enumerate(samples.samples)
        ),
    )


def tag_lowest_margin(samples: SampleSet, output: str, *, count: int, axis: int = -1, tag: str = HARD) -> SampleSet:
    return tagged(samples, lowest_margin(samples, output, count, axis=axis), tag)


def tag_hard_cases(samples: SampleSet, *, fraction: float = 0.1) -> SampleSet:
    """``hard`` for the lowest margins of every float output with classes, ``extreme`` and ``odd_batch`` for those."""
    count = max(1, round(len(samples) * fraction))
    first = samples.samples[0].expected or {}
    for name, array in first.items():
        if array.dtype.kind == "f" and array.ndim >= 1 and array.shape[-1] > 1:
            samples = tag_lowest_margin(samples, name, count=count)
    samples = tagged(samples, extremes(samples, count), "extreme")
    return tagged(samples, odd_batches(samples), "odd_batch")


def _peak(array: Array | None) -> float:
    if array is None or array.dtype.kind not in "fiu" or array.size == 0:
        return 0.0
    finite = array.astype(np.float64)
    return float(np.max(np.abs(np.where(np.isfinite(finite), finite, 0.0))))


def what_samples_support(count: int, misses: int, *, floor: float | None = None, confidence: float = 0.95) -> str:
    """``299 samples with 0 disagreements support ≥ 99% agreement at 95% confidence``; with a ``floor`` that they do not
    support, how many it would take."""
    if count == 0:
        return "no sample was compared: nothing is supported"
    bound = 1.0 - upper_bound(misses, count, confidence)
    # Rounded down: the text must not claim more than the bound. The margin is below what four digits can show.
    shown = math.floor(bound * 1e5 + 1e-9) / 1e3
    text = (
        f"{count} sample{'s' if count != 1 else ''} with {misses} disagreement{'s' if misses != 1 else ''} "
        f"support{'s' if count == 1 else ''} ≥ {shown:g}% agreement at {confidence * 100:g}% confidence"
    )
    if floor is not None and 0.0 < floor < 1.0 and bound < floor:
        needed = samples_needed(floor, confidence, misses)
        text += f"; {floor * 100:g}% takes {needed} with {'none' if misses == 0 else f'at most {misses}'}"
    return text
