"""When more searching is not worth it: what the next candidates can be expected to add."""

from __future__ import annotations

import math
from collections.abc import Sequence


def expected_improvement(scores: Sequence[float], pairs: Sequence[int], noise: float, remaining: int) -> float:
    """Expected gain, as ln ratio, of ``remaining`` further candidates over the best known one.

    Empirical Bayes: true log ratios are taken as normal; their spread is the scores' variance less what the pair
    noise explains. What a search can act on is not the truth but its estimate, the score shrunk towards the mean by
    its reliability spread²/(spread² + noise²/pairs); estimates have the standard deviation spread·√reliability. Then
    the expectation of max(0, M − best) with M the largest of ``remaining`` such estimates, by numerical integration of
    1 − F(x)^k. Candidates are taken as exchangeable: an ordered list whose later part is of another kind must not be
    stopped by this. Infinite for fewer than 8 candidates: too few to tell a spread.
    """
    n = len(scores)
    if n < 8:
        return math.inf
    if remaining <= 0:
        return 0.0
    mean = math.fsum(scores) / n
    variance = math.fsum((score - mean) ** 2 for score in scores) / (n - 1)
    explained = math.fsum(noise**2 / max(1, count) for count in pairs) / n
    true_variance = max(0.0, variance - explained)
    if true_variance == 0.0:
        return 0.0
    best = max(
        mean + (score - mean) * true_variance / (true_variance + noise**2 / max(1, count))
        for score, count in zip(scores, pairs, strict=True)
    )
    spread = math.sqrt(true_variance * true_variance / (true_variance + explained))
    # Beyond 8 standard deviations there is nothing for any number of candidates that a study can try.
    steps, top = 400, mean + 8 * spread
    if top <= best:
        return 0.0
    width = (top - best) / steps
    heights = [1 - _normal_cdf((best + step * width - mean) / spread) ** remaining for step in range(steps + 1)]
    return width * (math.fsum(heights) - (heights[0] + heights[-1]) / 2)


def _normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))
