from __future__ import annotations

import numpy as np
import pytest

from optimizer.judge.tails import compare_tails


def windows(seed: int, count: int, requests: int, scale: float = 1.0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [scale * generator.lognormal(8.0, 0.3, requests) for _ in range(count)]


def test_many_short_windows_support_a_p99_together() -> None:
    tail = compare_tails(list(zip(windows(1, 12, 100), windows(2, 12, 100), strict=True)), 0.05, 0.95)
    assert tail is not None
    assert tail.name == "p99"
    assert tail.requests == 1200
    assert tail.ratio.lower < 1.0 < tail.ratio.upper


@pytest.mark.parametrize(("requests", "name"), [(60, "p95"), (12, "p90")])
def test_fewer_requests_lower_the_percentile_that_is_compared(requests: int, name: str) -> None:
    tail = compare_tails(list(zip(windows(1, 10, requests), windows(2, 10, requests), strict=True)), 0.05, 0.95)
    assert tail is not None
    assert tail.name == name


def test_too_few_requests_compare_nothing() -> None:
    assert compare_tails(list(zip(windows(1, 4, 5), windows(2, 4, 5), strict=True)), 0.05, 0.95) is None


def test_one_pair_bounds_nothing() -> None:
    assert compare_tails(list(zip(windows(1, 1, 5000), windows(2, 1, 5000), strict=True)), 0.05, 0.95) is None


def test_a_slower_tail_is_shown_to_be_slower() -> None:
    tail = compare_tails(list(zip(windows(1, 12, 300), windows(2, 12, 300, 1.5), strict=True)), 0.05, 0.95)
    assert tail is not None
    assert tail.ratio.ratio == pytest.approx(1.5, rel=0.1)
    assert tail.ratio.lower > 1.3


def test_the_upper_bound_covers_as_often_as_it_says() -> None:
    """Equal arms: the true ratio is 1, and a one-sided 95% upper bound may lie below it in about 5% of studies."""
    missed = 0
    for seed in range(120):
        pairs = list(zip(windows(2 * seed, 8, 200), windows(2 * seed + 1, 8, 200), strict=True))
        tail = compare_tails(pairs, 0.05, 0.95)
        assert tail is not None
        missed += tail.ratio.upper < 1.0
    # P(more than 15 of 120) is below 1 in 1,000 at 5%.
    assert missed <= 15
