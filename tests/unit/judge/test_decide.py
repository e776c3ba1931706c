import math
import random
from dataclasses import replace

import numpy as np
import pytest

from optimizer.judge.decide import Confirmation, Context, JudgeSettings, decide, out_of_reach, pairs_needed
from optimizer.judge.statistics import summarize
from optimizer.records.candidate import Pair, Rejection, Stage
from optimizer.records.decision import KeepReason, Verdict
from optimizer.records.parity import OutputParity, Parity
from optimizer.records.route import AS_FOUND

GOOD = Parity("c", "held_out", 50, ())
BAD = Parity(
    "c", "held_out", 50, (OutputParity("logits", "lInf", 0.5, 0.1, passed=False, worst_sample="s7", units=50),)
)
DEFAULT = "default-id"


def pairs(name, gain, noise=0.01, count=12, p99=0.0, p99_noise=0.01, reference=AS_FOUND, seed=0, **changes):
    """Pairs whose sample mean is exactly ``gain`` (ln ratio), and whose standard deviation is exactly ``noise``."""
    stream = random.Random(seed)
    drawn = [stream.gauss(0, 1) for _ in range(count)]
    summary = summarize(drawn)
    drawn = [(value - summary.mean) / summary.sd * noise if count > 1 else 0.0 for value in drawn]
    return tuple(
        Pair(
            candidate_id=name,
            reference_id=reference,
            purpose="confirm",
            index=index,
            log_ratio=gain + value,
            p99_log_ratio=None if p99 is None else p99 + stream.gauss(0, p99_noise),
            reference_throughput=100.0,
            candidate_throughput=100.0 * math.exp(gain + value),
            candidate_p99_us=10_000.0,
            **changes,
        )
        for index, value in enumerate(drawn)
    )


def confirmed(name, gain, **changes):
    return Confirmation(name, f"-{name}=on", pairs(name, gain, **changes), GOOD)


def test_a_clear_gain_wins_with_its_interval():
    decision = decide([confirmed("a", 0.08), confirmed("b", 0.03), confirmed("c", 0.0)])
    assert decision.verdict is Verdict.WINNER
    assert decision.winner == "a"
    assert decision.winner_label == "-a=on"
    winner = decision.finalists[0]
    assert winner.accepted
    assert winner.gain_over_as_found.ratio == pytest.approx(math.exp(0.08))
    assert 1.06 < winner.gain_over_as_found.lower < winner.gain_over_as_found.ratio < winner.gain_over_as_found.upper
    assert winner.gain_over_as_found.pairs == 12
    assert "better by 8.3%, by at least" in decision.sentence
    assert "3 finalists" in decision.sentence


def test_the_bound_is_corrected_for_the_number_of_finalists():
    alone = decide([confirmed("a", 0.03)]).finalists[0].gain_over_as_found
    among = decide([confirmed("a", 0.03), confirmed("b", 0.0), confirmed("c", 0.0)]).finalists[0].gain_over_as_found
    assert among.lower < alone.lower
    assert among.ratio == alone.ratio


def test_a_failed_finalist_still_counts_in_the_correction():
    failed = Confirmation("b", "b", (), None, Rejection("b", Stage.LOAD, "oom", "no memory"))
    alone = decide([confirmed("a", 0.03)]).finalists[0].gain_over_as_found
    beside = decide([confirmed("a", 0.03), failed]).finalists[0].gain_over_as_found
    assert beside.lower < alone.lower


def test_a_gain_below_the_minimum_keeps_what_is_there():
    decision = decide([confirmed("a", 0.008), confirmed("b", 0.002)])
    assert decision.verdict is Verdict.KEEP
    assert decision.winner is None
    assert decision.keep_reason is KeepReason.GAIN_BELOW_MINIMUM
    assert decision.pairs_to_settle is None
    assert "below the minimum of 1.0%" in decision.sentence
    assert "-a=on" in decision.sentence


def test_the_lower_bound_and_not_the_estimate_must_exceed_the_minimum():
    # The estimate is twice the minimum; its bound is not above it.
    decision = decide([confirmed("a", 0.02, noise=0.02)])
    assert decision.keep_reason is KeepReason.TOO_NOISY
    assert decision.pairs_to_settle > 12
    more = decide([confirmed("a", 0.02, noise=0.02, count=2 * decision.pairs_to_settle)])
    assert more.verdict is Verdict.WINNER


def test_nothing_eligible_and_a_spent_budget_are_told_apart():
    assert decide([]).keep_reason is KeepReason.NOTHING_ELIGIBLE
    spent = decide([], context=Context(budget_spent=True))
    assert spent.keep_reason is KeepReason.BUDGET
    assert "budget" in spent.sentence
    excluded = decide([], context=Context(excluded={"x": "validate: NaN"}))
    assert excluded.excluded == {"x": "validate: NaN"}


def test_held_out_answers_decide_before_speed():
    fast_and_wrong = Confirmation("a", "a", pairs("a", 0.5), BAD)
    decision = decide([fast_and_wrong])
    assert decision.keep_reason is KeepReason.ACCURACY
    assert "lInf loss 0.5" in decision.finalists[0].reason
    unchecked = decide([Confirmation("a", "a", pairs("a", 0.5), None)])
    assert unchecked.keep_reason is KeepReason.ACCURACY


def test_one_failed_request_is_one_too_many():
    decision = decide([confirmed("a", 0.5, failures=1)])
    assert decision.keep_reason is KeepReason.ERRORS
    assert "12 requests failed" in decision.finalists[0].reason


def test_a_crash_while_confirming_keeps_what_is_there():
    crashed = Confirmation("a", "a", pairs("a", 0.5), GOOD, Rejection("a", Stage.MEASURE, "dead", "server died"))
    assert decide([crashed]).keep_reason is KeepReason.ERRORS


def test_the_p99_guard():
    assert decide([confirmed("a", 0.3, p99=0.10)]).keep_reason is KeepReason.LATENCY_GUARD
    # On average within the guard, but not shown to be.
    assert decide([confirmed("a", 0.3, p99=0.03, p99_noise=0.1)]).keep_reason is KeepReason.LATENCY_GUARD
    assert decide([confirmed("a", 0.3, p99=0.03, p99_noise=0.01)]).verdict is Verdict.WINNER
    assert decide([confirmed("a", 0.3, p99=0.10)], JudgeSettings(p99_guard=None)).verdict is Verdict.WINNER


def test_an_unknown_p99_does_not_pass_the_guard():
    decision = decide([confirmed("a", 0.3, p99=None)])
    assert decision.keep_reason is KeepReason.LATENCY_GUARD
    assert "unknown" in decision.finalists[0].reason
    assert decision.finalists[0].p99_ratio is None


def latencies(slower, windows=8, requests=400):
    drawn = np.random.default_rng(3)
    return [(drawn.lognormal(9, 0.1, requests), slower * drawn.lognormal(9, 0.1, requests)) for _ in range(windows)]


def with_latencies(slower, **changes):
    return replace(confirmed("a", 0.3, p99=None), latencies=latencies(slower, **changes))


def test_the_tail_over_all_windows_replaces_that_of_single_windows():
    accepted = decide([with_latencies(0.9)])
    assert accepted.verdict is Verdict.WINNER
    assert accepted.finalists[0].p99_ratio.ratio == pytest.approx(0.9, abs=0.04)
    slower = decide([with_latencies(1.2)])
    assert slower.keep_reason is KeepReason.LATENCY_GUARD
    assert "p99 changes by +" in slower.finalists[0].reason


def test_a_lower_percentile_is_judged_where_p99_has_too_few_requests_and_said_so():
    decision = decide([with_latencies(0.8, requests=40)])
    assert decision.verdict is Verdict.WINNER
    assert any("p95 is judged instead" in caveat for caveat in decision.caveats)
    none = decide([with_latencies(0.8, requests=5)])
    assert none.keep_reason is KeepReason.LATENCY_GUARD
    no_gain = decide([replace(with_latencies(0.8, requests=40), pairs=pairs("a", 0.0, p99=None))])
    assert not any("judged instead" in caveat for caveat in no_gain.caveats), "its tail was not judged"


def test_an_slo_replaces_the_guard():
    worse = confirmed("a", 0.3, p99=0.5)
    assert decide([worse], JudgeSettings(slo_p99_us=12_000)).verdict is Verdict.WINNER
    broken = decide([worse], JudgeSettings(slo_p99_us=9_000))
    assert broken.keep_reason is KeepReason.LATENCY_GUARD
    assert "9 ms" in broken.finalists[0].reason


def test_as_found_must_be_beaten_whatever_the_default_does():
    both = Confirmation("a", "a", pairs("a", 0.0) + pairs("a", 0.4, reference=DEFAULT), GOOD)
    decision = decide([both], context=Context(default_id=DEFAULT))
    assert decision.verdict is Verdict.KEEP
    assert decision.finalists[0].gain_over_default.ratio == pytest.approx(math.exp(0.4))
    assert decision.finalists[0].gain_over_as_found.ratio == pytest.approx(1.0)


def test_both_gains_are_reported():
    both = Confirmation("a", "a", pairs("a", 0.5) + pairs("a", 0.1, reference=DEFAULT), GOOD)
    decision = decide([both], context=Context(default_id=DEFAULT))
    assert decision.winner == "a"
    assert "better by 64.9%" in decision.sentence
    assert "over the default route +10.5%" in decision.sentence


def test_without_as_found_the_default_is_the_bar_and_it_is_said():
    against_default = Confirmation("a", "a", pairs("a", 0.1, reference=DEFAULT), GOOD)
    decision = decide([against_default], context=Context(as_found_served=False, default_id=DEFAULT))
    assert decision.winner == "a"
    assert decision.reference_id == DEFAULT
    assert decision.finalists[0].gain_over_as_found is None
    assert any("as-found could not be served" in caveat for caveat in decision.caveats)


def test_a_tie_with_the_default_route_goes_to_the_default_route():
    default = Confirmation(DEFAULT, "default", pairs(DEFAULT, 0.50, seed=1), GOOD)
    tied = Confirmation("a", "a", pairs("a", 0.505) + pairs("a", 0.005, reference=DEFAULT), GOOD)
    better = Confirmation("b", "b", pairs("b", 0.60) + pairs("b", 0.10, reference=DEFAULT), GOOD)
    context = Context(default_id=DEFAULT)
    assert decide([tied, default], context=context).winner == DEFAULT
    assert decide([tied, default, better], context=context).winner == "b"
    # Without pairs of their own the two are compared through as-found.
    indirect = [Confirmation("a", "a", pairs("a", 0.505), GOOD), default]
    assert decide(indirect, context=context).winner == DEFAULT


def test_disturbed_pairs_are_left_out_and_said_so():
    noisy = list(pairs("a", 0.1))
    noisy[3] = Pair("a", AS_FOUND, "confirm", 3, -2.0, 0.0, 1.0, 1.0, usable=False, note="throttled")
    decision = decide([Confirmation("a", "a", tuple(noisy), GOOD)])
    assert decision.winner == "a"
    assert decision.finalists[0].gain_over_as_found.pairs == 11
    assert any("1 of 12 pairs were disturbed" in caveat for caveat in decision.caveats)


def test_mostly_disturbed_pairs_decide_nothing():
    disturbed = [
        Pair("a", AS_FOUND, "confirm", one.index, one.log_ratio, 0.0, 1.0, 1.0, usable=one.index > 5)
        for one in pairs("a", 0.5)
    ]
    assert decide([Confirmation("a", "a", tuple(disturbed), GOOD)]).keep_reason is KeepReason.TOO_NOISY
    slower = [replace(pair, usable=pair.index % 2 == 0) for pair in pairs("a", -0.05)]
    decision = decide([Confirmation("a", "a", tuple(slower), GOOD)])
    assert decision.keep_reason is KeepReason.TOO_NOISY
    assert decision.pairs_to_settle is None, "no number of pairs would show a loss to be a gain"


def test_a_single_pair_decides_nothing():
    decision = decide([confirmed("a", 0.5, count=1)])
    assert decision.keep_reason is KeepReason.TOO_NOISY
    assert decision.pairs_to_settle is None


def test_racing_data_do_not_count_as_confirmation_of_another_reference():
    other = Confirmation("a", "a", pairs("a", 0.5, reference="someone-else"), GOOD)
    assert decide([other]).verdict is Verdict.KEEP


@pytest.mark.parametrize(("noise", "pairs_wanted"), [(0.001, 6), (0.015, 12), (0.03, 40), (0.5, 48)])
def test_noise_sets_the_number_of_pairs(noise, pairs_wanted):
    assert pairs_needed(noise) == pairs_wanted


def test_pairs_grow_with_finalists_and_fall_with_the_minimum_gain_to_detect():
    assert pairs_needed(0.015, finalists=10) > pairs_needed(0.015, finalists=1)
    assert pairs_needed(0.015, settings=JudgeSettings(detect=0.05)) < pairs_needed(0.015)
    assert pairs_needed(math.nan) == JudgeSettings().max_pairs


def test_a_confirmation_ends_early_when_it_cannot_be_accepted_any_more():
    assert out_of_reach(pairs("a", -0.05), 3)
    assert out_of_reach(pairs("a", 0.0, noise=0.005), 3)
    assert not out_of_reach(pairs("a", 0.0, noise=0.05), 3), "12 pairs at 5% noise do not exclude a gain of 1%"
    assert not out_of_reach(pairs("a", 0.03), 3)
    assert not out_of_reach(pairs("a", -0.05, count=4), 3), "too few to know the spread"
    assert not out_of_reach(pairs("a", -0.05, count=7), 3), "one order more often than the other"
    assert not out_of_reach(pairs("a", -0.05, usable=False), 3)
    half = [replace(pair, usable=pair.index % 4 < 2) for pair in pairs("a", -0.05, count=16)]
    assert not out_of_reach(half, 3), "the decision would be that it was too noisy"
    lenient = JudgeSettings(min_gain=0.0)
    assert not out_of_reach(pairs("a", 0.004, noise=0.005), 3, lenient)


def test_ending_early_seldom_loses_a_gain_that_the_confirmation_is_sized_for():
    stream = random.Random(7)
    settings = JudgeSettings()
    gain, noise, studies = math.log1p(settings.min_gain + settings.detect), 0.015, 500
    lost = 0
    for _ in range(studies):
        drawn = [replace(pair, log_ratio=gain + stream.gauss(0, noise)) for pair in pairs("a", 0.0, count=12)]
        lost += any(out_of_reach(drawn[:count], 3, settings) for count in range(13))
    assert lost <= 5


@pytest.mark.parametrize(("gain", "fewest", "most"), [(-0.05, 6.0, 8.0), (0.0, 25.0, 32.0)])
def test_the_clearer_a_loss_the_sooner_its_confirmation_ends(gain, fewest, most):
    stream = random.Random(11)
    pairs_taken = []
    for _ in range(60):
        drawn = [replace(pair, log_ratio=gain + stream.gauss(0, 0.03)) for pair in pairs("a", 0.0, count=48)]
        pairs_taken.append(next((count for count in range(6, 48, 2) if out_of_reach(drawn[:count], 3)), 48))
    assert fewest <= sum(pairs_taken) / len(pairs_taken) <= most


def test_false_promotions_stay_below_what_was_promised():
    """3 finalists exactly at the minimum gain: promoted at most 5% of the time, by the union bound."""
    stream = random.Random(42)
    settings = JudgeSettings(p99_guard=None)
    bar = math.log1p(settings.min_gain)
    promoted = 0
    studies = 800
    for _ in range(studies):
        finalists = [
            Confirmation(
                name,
                name,
                tuple(
                    Pair(name, AS_FOUND, "confirm", index, stream.gauss(bar, 0.015), None, 1.0, 1.0)
                    for index in range(12)
                ),
                GOOD,
            )
            for name in "abc"
        ]
        promoted += decide(finalists, settings).verdict is Verdict.WINNER
    # 99.9% quantile of the binomial at 5%.
    assert 0 < promoted <= 61
