"""Tail latency of two arms over all confirmation pairs together. Pure.

One window of a slow model holds too few requests for a p99; all windows of a confirmation together may hold enough. The
uncertainty comes from resampling whole pairs (requests of one window share its luck), with Student's t for few pairs.

Cluster bootstrap: Davison & Hinkley, *Bootstrap Methods and their Application*, 1997, section 3.8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from optimizer.judge.statistics import t_quantile
from optimizer.records.decision import Interval

Latencies = npt.NDArray[Any]

PERCENTILES = (99.0, 95.0, 90.0)
BEYOND = 10
"""Answers that must lie beyond a percentile for it to be called supported, as in the load generator's own estimates."""
RESAMPLES = 400


@dataclass(frozen=True)
class Tail:
    """``ratio`` is candidate / reference of ``percentile``: above 1 is slower. ``requests`` of the smaller arm."""

    percentile: float
    ratio: Interval
    reference_us: float
    candidate_us: float
    requests: int

    @property
    def name(self) -> str:
        return f"p{self.percentile:g}"


def compare_tails(
    pairs: Sequence[tuple[Latencies, Latencies]],
    alpha: float,
    confidence: float,
    *,
    percentiles: Sequence[float] = PERCENTILES,
    seed: int = 0,
) -> Tail | None:
    """``pairs`` hold the latencies (µs) of reference and candidate, one array a window.

    The first of ``percentiles`` that both arms support is compared; ``None`` where none is, or with fewer than two
    pairs. The bounds are one-sided, each at level 1 − ``alpha``.
    """
    used = [(reference, candidate) for reference, candidate in pairs if len(reference) and len(candidate)]
    if len(used) < 2:
        return None
    arms = [_Pooled([pair[side] for pair in used]) for side in (0, 1)]
    requests = min(len(arm) for arm in arms)
    percentile = next((each for each in percentiles if requests * (1 - each / 100) >= BEYOND), None)
    if percentile is None:
        return None
    everything = np.ones(len(used))
    reference_us, candidate_us = (arm.percentile(percentile, everything) for arm in arms)
    generator = np.random.default_rng(seed)
    draws = []
    for _ in range(RESAMPLES):
        weights = np.bincount(generator.integers(0, len(used), len(used)), minlength=len(used)).astype(float)
        draws.append(math.log(arms[1].percentile(percentile, weights) / arms[0].percentile(percentile, weights)))
    mean = math.log(candidate_us / reference_us)
    n = len(used)
    # The bootstrap of a mean of n values underestimates its variance by (n - 1) / n.
    error = float(np.std(draws)) * math.sqrt(n / (n - 1))
    half = t_quantile(1 - alpha, n - 1) * error
    ratio = Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half), confidence, n)
    return Tail(percentile, ratio, reference_us, candidate_us, requests)


class _Pooled:
    """Latencies of several windows, sorted once, so that a reweighted percentile is one pass."""

    def __init__(self, windows: Sequence[Latencies]) -> None:
        values = np.concatenate([np.asarray(window, dtype=float) for window in windows])
        order = np.argsort(values, kind="stable")
        self._values = values[order]
        self._window = np.repeat(np.arange(len(windows)), [len(window) for window in windows])[order]

    def __len__(self) -> int:
        return len(self._values)

    def percentile(self, percentile: float, weights: Latencies) -> float:
        """Nearest rank, every window counted as often as its weight says."""
        cumulative = np.cumsum(weights[self._window])
        rank = int(np.searchsorted(cumulative, cumulative[-1] * percentile / 100))
        return float(self._values[min(rank, len(self._values) - 1)])
