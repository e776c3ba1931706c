"""The canary's judge, by values."""

import math

import numpy as np
import pytest

from optimizer.canary.evidence import ArmWindow, Compared, StepEvidence, WindowPair
from optimizer.canary.judge import (
    Outcome,
    Rules,
    State,
    comparisons_needed,
    detectable_rate,
    judge,
    memory_check,
    more_often,
)
from optimizer.records.parity import Tolerance

RULES = Rules(looks=(4, 8), comparisons=100)


def window(seed=0, *, scale=1.0, tail=1.0, requests=400, **more):
    generator = np.random.default_rng(seed)
    latencies = generator.normal(10_000, 100, requests) * scale
    slow = generator.random(requests) < 0.02
    latencies = np.where(slow, latencies * 1.2 * tail, latencies)
    values = {
        "throughput": 100 / scale * (1 + generator.normal(0, 0.002)),
        "memory_before": 10**8,
        "memory_after": 10**8,
        "server_requests": requests,
    }
    return ArmWindow(requests, latencies_us=latencies, **{**values, **more})


def pairs(count=8, compared=Compared(comparisons=50, distinct=20), baseline=None, **candidate):
    return [
        WindowPair(window(2 * index, **(baseline or {})), window(2 * index + 1, **candidate), compared)
        for index in range(count)
    ]


def verdict(windows, rules=RULES, *, timed=True):
    return judge(StepEvidence(tuple(windows), timed), rules)


def state_of(result, name):
    return next(check.state for check in result.checks if check.name == name)


def test_an_equal_candidate_is_accepted():
    result = verdict(pairs())
    assert result.outcome is Outcome.ACCEPT, result.reason
    assert {check.state for check in result.checks} == {State.PASS}
    assert (result.comparisons, result.requests) == (400, (3200, 3200))


def test_no_evidence_is_never_accepted():
    result = verdict([])
    assert result.outcome is Outcome.MORE
    assert result.detectable is None
    assert "no comparison" in result.power


@pytest.mark.parametrize("timed", [True, False])
def test_too_few_comparisons_are_not_accepted(timed):
    result = verdict(pairs(compared=Compared(comparisons=12)), timed=timed)
    assert result.outcome is Outcome.MORE
    assert "96 of 100 comparisons" in result.reason


def test_too_few_pairs_are_not_accepted():
    result = verdict(pairs(3))
    assert result.outcome is Outcome.MORE
    assert state_of(result, "p50") is State.UNKNOWN


def test_unusable_windows_do_not_count():
    result = verdict([*pairs(3), *pairs(8, usable=False)])
    assert state_of(result, "throughput") is State.UNKNOWN


def test_ten_percent_slower_is_shown_and_rolled_back():
    result = verdict(pairs(scale=1.10))
    assert result.outcome is Outcome.ROLL_BACK
    assert not result.critical
    for name in ("p50", "p90", "throughput"):
        assert state_of(result, name) is State.FAIL


def test_three_percent_slower_is_within_the_latency_margin_and_beyond_that_of_throughput():
    rules = Rules(looks=(4, 8), comparisons=100, throughput_margin=0.01)
    result = verdict(pairs(scale=1.03), rules)
    assert state_of(result, "p50") is State.PASS
    assert state_of(result, "throughput") is State.FAIL


def test_the_p99_alone_is_enough():
    result = verdict(pairs(tail=2.0))
    assert result.outcome is Outcome.ROLL_BACK
    assert [check.name for check in result.checks if check.state is State.FAIL] == ["p99"]


def test_a_p99_with_too_few_answers_stands_in_the_way_where_it_is_asked_for():
    few = pairs(requests=60)
    assert state_of(verdict(few), "p99") is State.UNKNOWN
    result = verdict(few, Rules(looks=(4, 8), comparisons=100, p99_required=False))
    assert state_of(result, "p99") is State.UNSEEN
    assert result.outcome is Outcome.ACCEPT


def test_a_noisy_comparison_is_no_pass():
    levels = [1.1, 0.9, 0.95, 1.05, 0.9, 1.1, 1.05, 0.95]
    noisy = [
        WindowPair(window(index, scale=level), window(index + 50, scale=other), Compared(comparisons=50))
        for index, (level, other) in enumerate(zip(levels, reversed(levels), strict=True))
    ]
    result = verdict(noisy)
    assert result.outcome is Outcome.MORE
    assert state_of(result, "throughput") is State.UNKNOWN


def test_pairs_after_a_look_wait_for_the_next():
    first = pairs(4)
    assert verdict([*first, *pairs(3, scale=2.0)]).outcome is Outcome.ACCEPT
    assert verdict([*first, *pairs(4, scale=2.0)]).outcome is not Outcome.ACCEPT


@pytest.mark.parametrize(
    ("compared", "name"),
    [
        (Compared(comparisons=50, mismatches=1, first="sample 3, output Y: lInf 1 exceeds 0"), "answers"),
        (Compared(comparisons=50, non_finite=1, first="sample 3, output Y: nan"), "non_finite"),
    ],
)
def test_one_wrong_answer_is_critical(compared, name):
    windows = [*pairs(1), *pairs(1, compared=compared)]
    result = verdict(windows)
    assert (result.outcome, result.critical) == (Outcome.ROLL_BACK, True)
    assert result.reason.startswith(f"{name}: ")
    assert "sample 3" in result.reason


def test_a_fraction_of_misses_is_judged_as_a_fraction():
    rules = Rules(looks=(4, 8), comparisons=100, tolerances=(Tolerance("top1", 0.05),))
    name = f"scores {Tolerance('top1', 0.05).text}"

    def of(misses):
        return verdict(pairs(compared=Compared(comparisons=50, counted={name: (misses, 50)})), rules)

    assert of(2).outcome is Outcome.ACCEPT
    assert of(3).outcome is Outcome.ROLL_BACK
    assert "24 of 400 differ" in of(3).reason


def test_a_failure_that_the_baseline_does_not_know_is_critical():
    result = verdict([*pairs(1), *pairs(1, failures={"UNAVAILABLE: gone": 1})])
    assert (result.outcome, result.critical) == (Outcome.ROLL_BACK, True)
    assert "UNAVAILABLE: gone" in result.reason


def test_a_failure_that_both_know_is_judged_by_its_rate():
    both = {"INTERNAL: on purpose": 3}
    assert verdict(pairs(baseline={"failures": both}, failures=both)).outcome is Outcome.ACCEPT
    more = {"INTERNAL: on purpose": 9}
    assert verdict(pairs(baseline={"failures": both}, failures=more)).outcome is Outcome.ROLL_BACK


def test_what_the_server_counts_for_the_users_is_seen_too():
    calm = {"server_requests": 1000, "server_failures": {}}
    ill = {"server_requests": 1000, "server_failures": {"BACKEND": 3}}
    result = verdict(pairs(baseline=calm, **ill))
    assert result.outcome is Outcome.ROLL_BACK
    assert "BACKEND 24" in result.reason
    assert state_of(verdict(pairs(baseline=ill, **ill)), "server_failures") is State.PASS


def test_a_restart_is_critical():
    result = verdict([*pairs(2), *pairs(1, restarted="the server process 7 is gone")])
    assert (result.outcome, result.critical) == (Outcome.ROLL_BACK, True)


def grown(*candidate, baseline=0, requests=400):
    return [
        WindowPair(
            window(0, requests=requests, memory_after=10**8 + baseline * requests),
            window(1, requests=requests, memory_after=10**8 + rate * requests),
        )
        for rate in candidate
    ]


def test_memory_that_grows_with_every_window_is_a_leak():
    check = memory_check(grown(*[30_000] * 5), RULES)
    assert (check.state, check.critical) == (State.FAIL, True)


def test_memory_that_settles_is_no_leak():
    assert memory_check(grown(90_000, 0, 0, 0, 0, 0), RULES).state is State.PASS


def test_growth_of_both_arms_alike_is_not_the_candidates_fault():
    assert memory_check(grown(*[30_000] * 6, baseline=30_000), RULES).state is State.PASS


def test_growth_in_one_window_of_many_is_no_trend():
    assert memory_check(grown(0, 0, 0, 400_000, 0, 0, 0), RULES).state is not State.FAIL


def test_little_memory_is_no_leak_however_steady():
    assert memory_check(grown(*[2_000] * 6), RULES).state is State.PASS


def test_memory_that_cannot_be_read_is_no_pass():
    unread = pairs(8, memory_before=None, memory_after=None)
    assert verdict(unread).outcome is Outcome.MORE
    rules = Rules(looks=(4, 8), comparisons=100, check_memory=False)
    assert verdict(unread, rules).outcome is Outcome.ACCEPT


def test_comparisons_for_one_in_a_thousand():
    assert comparisons_needed(1e-3, 0.99) == 4603
    assert comparisons_needed(0.01, 0.99) == 459
    assert (1 - 1e-3) ** 4603 <= 0.01 < (1 - 1e-3) ** 4602


@pytest.mark.parametrize("comparisons", [1, 50, 4603, 10**6])
def test_what_is_detectable_is_the_inverse(comparisons):
    rate = detectable_rate(comparisons, 0.99)
    assert math.isclose((1 - rate) ** comparisons, 0.01, rel_tol=1e-9)


def test_the_exact_test_of_two_rates():
    # All of 3 failures at an arm with half of the requests: 1 in 8.
    assert more_often(3, 100, 0, 100) == pytest.approx(0.125)
    assert more_often(0, 100, 5, 100) == 1.0
    assert more_often(2, 100, 1, 300) == pytest.approx(3 * 0.25**2 * 0.75 + 0.25**3)


def test_an_identical_candidate_is_seldom_called_worse():
    """At one-sided 95% over both looks, of 40 equal candidates at most 3 standard deviations more than 5% fail."""
    failed = 0
    for seed in range(40):
        generator = np.random.default_rng(1000 + seed)
        windows = []
        for _ in range(8):
            arms = []
            for _ in range(2):
                level = math.exp(generator.normal(0, 0.03))
                latencies = generator.normal(10_000, 300, 200) * level
                arms.append(ArmWindow(200, throughput=100 / level, latencies_us=latencies))
            windows.append(WindowPair(arms[0], arms[1], Compared(comparisons=50)))
        rules = Rules(
            latency_margin={"p50": 0.0, "p90": 0.0, "p99": 0.0}, throughput_margin=0.0, looks=(4, 8), comparisons=100,
            check_memory=False,
        )  # fmt: skip
        failed += any(judge(StepEvidence(windows[:look]), rules).outcome is Outcome.ROLL_BACK for look in (4, 8))
    assert failed <= 40 * 0.05 + 3 * math.sqrt(40 * 0.05 * 0.95)
