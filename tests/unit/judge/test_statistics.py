import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.judge.statistics import (
    Summary,
    bonferroni,
    bounds,
    holm,
    noise_of,
    order_effect,
    p_value_above,
    required_pairs,
    summarize,
    t_quantile,
    usable_pairs,
)
from optimizer.records.candidate import Pair


def pair(index=0, log_ratio=0.0, reference=100.0, candidate=None, usable=True, note=""):
    return Pair(
        candidate_id="c",
        reference_id="as-found",
        purpose="confirm",
        index=index,
        log_ratio=log_ratio,
        p99_log_ratio=0.0,
        reference_throughput=reference,
        candidate_throughput=reference * math.exp(log_ratio) if candidate is None else candidate,
        usable=usable,
        note=note,
    )


def test_summary_of_known_numbers():
    summary = summarize([0.01, 0.02, 0.03, 0.06])
    assert summary.n == 4
    assert summary.mean == pytest.approx(0.03)
    assert summary.sd == pytest.approx(0.0216024689946929)


def test_too_few_values_bound_nothing():
    assert math.isnan(summarize([]).mean)
    assert bounds(summarize([0.5]), 0.05) == (-math.inf, math.inf)
    assert p_value_above(summarize([0.5]), 0.0) == 1.0


@pytest.mark.parametrize(
    ("probability", "degrees", "table"),
    # Printed t tables: one-sided 95%, 97.5% and 99%.
    [(0.95, 11, 1.796), (0.975, 5, 2.571), (0.99, 23, 2.500), (0.95, 1, 6.314)],
)
def test_t_quantiles_agree_with_printed_tables(probability, degrees, table):
    assert t_quantile(probability, degrees) == pytest.approx(table, abs=6e-4)


def test_three_finalists_of_twelve_pairs_use_the_quantile_2_43():
    # The design's own number: d − 2.43·s/√12.
    lower, upper = bounds(Summary(12, 0.05, 0.015), bonferroni(0.05, 3))
    assert lower == pytest.approx(0.05 - 2.43 * 0.015 / math.sqrt(12), abs=1e-4)
    assert upper - 0.05 == pytest.approx(0.05 - lower)


def test_p_value_and_bound_agree():
    summary = Summary(9, 0.02, 0.02)
    lower, _ = bounds(summary, 0.05)
    assert p_value_above(summary, lower) == pytest.approx(0.05)


def test_p_value_without_spread():
    assert p_value_above(Summary(4, 0.02, 0.0), 0.01) == 0.0
    assert p_value_above(Summary(4, 0.01, 0.0), 0.01) == 1.0


def test_holm_rejects_stepwise():
    # Bonferroni at 0.05/4 would reject the first two alone.
    assert holm([0.01, 0.04, 0.012, 0.02], 0.05) == [True, True, True, True]
    assert holm([0.01, 0.04, 0.03, 0.005], 0.05) == [True, False, False, True]
    assert holm([], 0.05) == []
    assert holm([math.nan, 0.001], 0.05) == [False, True]


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_rejects_at_least_what_bonferroni_does(p_values):
    level = bonferroni(0.05, len(p_values))
    for p_value, rejected in zip(p_values, holm(p_values, 0.05), strict=True):
        assert rejected or p_value > level


def test_required_pairs_reach_their_power_and_no_fewer_do():
    noise, distance, alpha, power = 0.015, 0.0148, 0.05 / 3, 0.8
    wanted = required_pairs(noise, distance, alpha, power)
    stream = random.Random(7)

    def accepted(pairs):
        won = 0
        for _ in range(4000):
            summary = summarize([stream.gauss(distance, noise) for _ in range(pairs)])
            won += bounds(summary, alpha)[0] > 0
        return won / 4000

    assert accepted(wanted) == pytest.approx(power, abs=0.035)
    assert accepted(wanted - 2) < power


def test_required_pairs_at_the_edges():
    assert required_pairs(0.0, 0.01, 0.05) == 2
    assert required_pairs(0.01, 0.0, 0.05, limit=500) == 500
    assert required_pairs(math.nan, 0.01, 0.05, limit=500) == 500
    assert required_pairs(10.0, 0.01, 0.05, limit=500) == 500
    assert required_pairs(0.001, 1.0, 0.05) <= 3
    with pytest.raises(ValueError, match="power 1"):
        required_pairs(0.01, 0.01, 0.05, power=1)


@given(st.floats(0.001, 0.2), st.floats(0.002, 0.1))
def test_more_noise_never_needs_fewer_pairs(noise, distance):
    assert required_pairs(noise, distance, 0.02) <= required_pairs(noise * 1.5, distance, 0.02)


def test_marked_pairs_are_left_out_with_their_reason():
    pairs = [pair(0), pair(1, usable=False, note="gpu_throttled: clock fell"), pair(2, log_ratio=math.nan)]
    usable = usable_pairs(pairs)
    assert [kept.index for kept in usable.pairs] == [0]
    assert dict(usable.dropped)[1] == "gpu_throttled: clock fell"
    assert {index for index, _ in usable.dropped} == {1, 2}


def test_a_disturbance_of_both_arms_is_left_out():
    pairs = [pair(index, 0.01, reference=100 + index % 3) for index in range(8)]
    pairs[5] = pair(5, 0.01, reference=40)
    usable = usable_pairs(pairs)
    assert [index for index, _ in usable.dropped] == [5]
    assert "40% of the usual level" in usable.dropped[0][1]


def test_an_extreme_ratio_at_the_usual_level_stays():
    # +20% on one arm and −20% on the other: the outcome is extreme, the level is as usual.
    pairs = [pair(index, reference=100 + index % 3) for index in range(8)]
    pairs[2] = pair(2, 0.4, reference=100 * math.exp(-0.2))
    assert len(usable_pairs(pairs).pairs) == 8


@given(st.lists(st.tuples(st.floats(1, 1000), st.floats(1, 1000)), min_size=1, max_size=20))
def test_exchanging_the_arms_drops_the_same_pairs(throughputs):
    pairs = [pair(i, math.log(c / r), reference=r, candidate=c) for i, (r, c) in enumerate(throughputs)]
    swapped = [pair(i, math.log(r / c), reference=c, candidate=r) for i, (r, c) in enumerate(throughputs)]
    assert [index for index, _ in usable_pairs(pairs).dropped] == [index for index, _ in usable_pairs(swapped).dropped]


def test_order_effect_is_found_and_absent_where_there_is_none():
    stream = random.Random(3)
    first_is_slow = [pair(i, (0.03 if i % 2 == 0 else -0.03) + stream.gauss(0, 0.005)) for i in range(12)]
    effect = order_effect(first_is_slow)
    assert effect.difference == pytest.approx(0.06, abs=0.01)
    assert effect.p_value < 1e-4
    calm = order_effect([pair(i, stream.gauss(0, 0.005)) for i in range(12)])
    assert calm.p_value > 0.05
    assert order_effect([pair(i) for i in range(5)]) is None
    assert order_effect([pair(i) for i in range(6)]).p_value == 1.0


def test_noise_from_reference_pairs():
    stream = random.Random(5)
    noise = noise_of([pair(i, stream.gauss(0, 0.02)) for i in range(40)])
    assert noise.sd == pytest.approx(0.02, rel=0.3)
    assert noise.sd < noise.sd_upper < 2 * noise.sd
    assert not noise.biased
    assert noise_of([pair(i, 0.05 + stream.gauss(0, 0.01)) for i in range(12)]).biased
    assert math.isnan(noise_of([pair()]).sd)


def test_the_noise_bound_covers_as_often_as_it_says():
    stream = random.Random(11)
    covered = sum(noise_of([pair(i, stream.gauss(0, 0.02)) for i in range(4)]).sd_upper >= 0.02 for _ in range(3000))
    assert covered / 3000 == pytest.approx(0.8, abs=0.03)
