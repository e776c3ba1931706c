import math
import random

import pytest

from optimizer.search.stopping import expected_improvement


def drawn(spread, noise, count, seed, pairs=1):
    stream = random.Random(seed)
    truth = [stream.gauss(0, spread) for _ in range(count)]
    return truth, [true + stream.gauss(0, noise / math.sqrt(pairs)) for true in truth]


def test_few_scores_say_nothing():
    assert expected_improvement([0.1] * 7, [1] * 7, 0.01, 10) == math.inf


def test_nothing_left_or_no_spread_adds_nothing():
    _, scores = drawn(0.03, 0.01, 50, 1)
    assert expected_improvement(scores, [1] * 50, 0.01, 0) == 0.0
    assert expected_improvement([0.01] * 20, [1] * 20, 0.01, 100) == 0.0


def test_more_candidates_add_more_and_ever_less_each():
    _, scores = drawn(0.03, 0.005, 60, 2)
    gains = [expected_improvement(scores, [1] * 60, 0.005, count) for count in (10, 100, 1000)]
    assert 0 < gains[0] < gains[1] < gains[2]
    assert gains[2] / 1000 < gains[0] / 10


def test_the_expectation_agrees_with_drawing_on():
    """Averaged over many searches, what it promises is what further candidates bring."""
    promised, brought = [], []
    for seed in range(300):
        truth, scores = drawn(0.03, 0.001, 40, seed)
        promised.append(expected_improvement(scores, [1] * 40, 0.001, 60))
        stream = random.Random(seed + 10_000)
        more = [stream.gauss(0, 0.03) for _ in range(60)]
        brought.append(max(0.0, max(more) - max(truth)))
    assert sum(promised) / 300 == pytest.approx(sum(brought) / 300, rel=0.25)


def test_pure_noise_promises_little_though_scores_differ():
    for seed in range(20):
        _, scores = drawn(0.0, 0.015, 200, seed)
        assert expected_improvement(scores, [1] * 200, 0.015, 200) < 0.002
        assert max(scores) > 0.025
