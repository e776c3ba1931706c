"""The statistics of paired comparisons. Values in, values out; SciPy is imported by the functions that need it.

The unit of analysis is the pair: the same load on reference and candidate, back to back, as ln(candidate/reference).
What disturbs both windows alike cancels in it, and the ratio of two positive rates is nearer to symmetric as a
logarithm. Means of log ratios are judged by Student's t, since the spread is estimated from the same few pairs.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from optimizer.records.candidate import Pair

DISTURBED_AT = 6.0
"""Robust standard deviations from the median at which a pair's common level counts as disturbed. At 6 a normal pair
is dropped once in 500 million; NumPy's and R's 1.4826 turns a median absolute deviation into a standard deviation."""
_MAD_TO_SD = 1.4826


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation (n − 1) of log ratios. ``sd`` is NaN for one value, ``mean`` too for none."""

    n: int
    mean: float
    sd: float

    @property
    def standard_error(self) -> float:
        return self.sd / math.sqrt(self.n) if self.n else math.nan


def summarize(values: Sequence[float]) -> Summary:
    n = len(values)
    if n == 0:
        return Summary(0, math.nan, math.nan)
    mean = math.fsum(values) / n
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1)) if n > 1 else math.nan
    return Summary(n, mean, sd)


@functools.lru_cache(maxsize=4096)
def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def t_tail(statistic: float, degrees: int) -> float:
    """P(T > statistic)."""
    from scipy.special import stdtr

    return float(stdtr(degrees, -statistic))


def bounds(summary: Summary, alpha: float) -> tuple[float, float]:
    """One-sided lower and upper confidence bounds of the mean, each at level 1 − ``alpha``.

    Infinite for fewer than two values: one pair bounds nothing.
    """
    if summary.n < 2:
        return -math.inf, math.inf
    half = t_quantile(1.0 - alpha, summary.n - 1) * summary.standard_error
    return summary.mean - half, summary.mean + half


def p_value_above(summary: Summary, margin: float) -> float:
    """One-sided p value of "the true mean is at most ``margin``"; 1 for fewer than two values."""
    if summary.n < 2:
        return 1.0
    if summary.sd == 0.0:
        return 0.0 if summary.mean > margin else 1.0
    return t_tail((summary.mean - margin) / summary.standard_error, summary.n - 1)


def bonferroni(alpha: float, comparisons: int) -> float:
    """Level of each of several comparisons, so that all of them together err with probability ``alpha`` at most."""
    return alpha / max(1, comparisons)


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Which hypotheses Holm's step-down method rejects (Holm 1979): as safe as Bonferroni, never weaker.

    It gives verdicts without simultaneous bounds, so decisions that report an interval use Bonferroni.
    """
    order = sorted(range(len(p_values)), key=lambda index: (math.isnan(p_values[index]), p_values[index]))
    rejected = [False] * len(p_values)
    for rank, index in enumerate(order):
        if not p_values[index] <= alpha / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected


def required_pairs(sd: float, distance: float, alpha: float, power: float = 0.8, limit: int = 100_000) -> int:
    """Fewest pairs with which a true mean ``distance`` above the bar has its lower bound above it.

    ``sd`` of one pair, one-sided ``alpha`` (already corrected), probability ``power``; from the noncentral t
    distribution, whose noncentrality is distance·√n/sd. ``limit`` where no smaller number does.
    """
    if not 0 < alpha < 1 or not 0 < power < 1:
        raise ValueError(f"alpha {alpha} and power {power} are probabilities")
    if distance <= 0 or math.isnan(sd):
        return limit
    if sd <= 0:
        return 2
    from scipy.special import nctdtr

    def reached(n: int) -> bool:
        noncentrality = distance * math.sqrt(n) / sd
        # SciPy's noncentral t loses its tail far out, where the power is 1 anyway.
        if noncentrality > 30:
            return True
        return 1.0 - float(nctdtr(n - 1, noncentrality, t_quantile(1.0 - alpha, n - 1))) >= power

    low, high = 1, 2
    while high < limit and not reached(high):
        low, high = high, high * 2
    if high >= limit and not reached(limit):
        return limit
    high = min(high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class Usable:
    """The pairs that may be judged, and what was left out, with the reason by pair index."""

    pairs: tuple[Pair, ...]
    dropped: tuple[tuple[int, str], ...] = ()


def usable_pairs(pairs: Sequence[Pair]) -> Usable:
    """Leaves out disturbed pairs by rules that cannot favour an arm.

    1. Pairs that the measuring side marked unusable (throttled clock, saturated client, busy host), in either window.
    2. Pairs whose *common* level, the mean of both arms' ln throughput, lies more than :data:`DISTURBED_AT` robust
       standard deviations from the median. Exchanging the arms leaves that level as it is, so where the arms are
       equal, what remains is as symmetric as before. Needs at least 6 pairs.

    The log ratio itself is never looked at: a pair is not dropped because of how it came out.
    """
    kept: list[Pair] = []
    dropped: list[tuple[int, str]] = []
    for pair in pairs:
        if pair.usable and math.isfinite(pair.log_ratio):
            kept.append(pair)
        else:
            dropped.append((pair.index, pair.note or "unusable"))
    levels = [
        (math.log(pair.reference_throughput) + math.log(pair.candidate_throughput)) / 2
        for pair in kept
        if pair.reference_throughput > 0 and pair.candidate_throughput > 0
    ]
    if len(kept) < 6 or len(levels) < len(kept):
        return Usable(tuple(kept), tuple(dropped))
    median = statistics.median(levels)
    spread = _MAD_TO_SD * statistics.median([abs(level - median) for level in levels])
    calm = []
    for pair, level in zip(kept, levels, strict=True):
        # 1e-3: windows that agree to a tenth of a percent are not disturbed, however alike the others are.
        if abs(level - median) > DISTURBED_AT * max(spread, 1e-3):
            dropped.append((pair.index, f"both arms together ran at {math.exp(level - median):.0%} of the usual level"))
        else:
            calm.append(pair)
    return Usable(tuple(calm), tuple(sorted(dropped)))


@dataclass(frozen=True)
class OrderEffect:
    """Mean log ratio of pairs that ran the reference first, minus that of those that ran the candidate first."""

    difference: float
    p_value: float
    """Two-sided, Welch's t."""


def order_effect(pairs: Sequence[Pair]) -> OrderEffect | None:
    """Whether going first matters. ABBA: even indices run the reference first, odd ones the candidate.

    ``None`` with fewer than three pairs of either order. A large effect cancels in the mean of equally many pairs of
    each order, but says that windows disturb each other (too short a warm-up, a shared cache, a hot GPU).
    """
    first = summarize([pair.log_ratio for pair in pairs if pair.index % 2 == 0])
    second = summarize([pair.log_ratio for pair in pairs if pair.index % 2 == 1])
    if first.n < 3 or second.n < 3:
        return None
    difference = first.mean - second.mean
    variances = first.sd**2 / first.n, second.sd**2 / second.n
    total = sum(variances)
    if total == 0:
        return OrderEffect(difference, 1.0 if difference == 0 else 0.0)
    degrees = total**2 / (variances[0] ** 2 / (first.n - 1) + variances[1] ** 2 / (second.n - 1))
    return OrderEffect(difference, min(1.0, 2 * t_tail(abs(difference) / math.sqrt(total), max(1, int(degrees)))))


@dataclass(frozen=True)
class Noise:
    """What A/A pairs say: the reference compared with itself."""

    sd: float
    """Standard deviation of one pair's ln ratio, about its mean."""
    sd_upper: float
    """One-sided 80% upper bound: a few pairs can make any machine look quiet."""
    mean: float
    pairs: int
    dropped: int
    biased: bool
    """The mean differs from zero at 1%: the two copies are not alike, and no comparison here is to be trusted."""


def noise_of(pairs: Sequence[Pair]) -> Noise:
    """Noise from A/A pairs. ``sd`` and bounds are NaN for fewer than two usable pairs."""
    usable = usable_pairs(pairs)
    summary = summarize([pair.log_ratio for pair in usable.pairs])
    if summary.n < 2:
        return Noise(math.nan, math.nan, summary.mean, summary.n, len(usable.dropped), False)
    from scipy.special import chdtri

    degrees = summary.n - 1
    # chdtri is the inverse of the upper tail: P(chi2 > x) = 0.8.
    upper = summary.sd * math.sqrt(degrees / float(chdtri(degrees, 0.8)))
    tails = p_value_above(summary, 0.0), p_value_above(Summary(summary.n, -summary.mean, summary.sd), 0.0)
    biased = 2 * min(tails) < 0.01 and abs(summary.mean) > 1e-9
    return Noise(summary.sd, upper, summary.mean, summary.n, len(usable.dropped), biased)
