"""The verdict over all models together, by values."""

import math

import pytest

from optimizer.together import MixedPair, judge


def pairs(*ratios: float, latency: float = 1.0, usable: bool = True) -> list[MixedPair]:
    return [
        MixedPair(index, math.log(ratio), {"other": math.log(latency * (1 + 0.001 * index))}, usable=usable)
        for index, ratio in enumerate(ratios)
    ]


def verdict(found: list[MixedPair], guard: float | None = 1.05) -> str:
    return judge(found, ["other"], guard=guard).code


def test_faster_together_passes() -> None:
    assert verdict(pairs(1.30, 1.28, 1.31, 1.29)) == "passed"


def test_equal_within_the_margin_passes() -> None:
    assert verdict(pairs(1.00, 0.99, 1.01, 1.00)) == "passed"


def test_slower_together_is_refused() -> None:
    assert verdict(pairs(0.80, 0.81, 0.79, 0.80)) == "slower"


def test_noise_is_no_pass() -> None:
    assert verdict(pairs(1.3, 0.8, 1.2, 0.75)) == "undecided"


@pytest.mark.parametrize("found", [[], pairs(1.3, 1.3), pairs(1.3, 1.3, 1.3, 1.3, usable=False)])
def test_too_little_data_never_passes(found: list[MixedPair]) -> None:
    assert verdict(found) == "undecided"


def test_a_failed_request_is_refused_and_names_the_model() -> None:
    found = [*pairs(1.3, 1.3, 1.3), MixedPair(3, math.log(1.3), failures={"both": 2})]
    told = judge(found, [], guard=1.05)
    assert (told.code, told.blamed) == ("failures", "both")


def test_an_untouched_model_may_not_be_slowed_down() -> None:
    slowed = pairs(1.3, 1.29, 1.31, 1.3, latency=1.5)
    told = judge(slowed, ["other"], guard=1.05)
    assert (told.code, told.blamed) == ("slows", "other")
    assert "+50" in told.reason or "+49" in told.reason
    assert verdict(slowed, guard=None) == "passed"
    # A winner's own latency was judged in its own study.
    assert judge(slowed, [], guard=1.05).code == "passed"


def test_a_small_delay_of_an_untouched_model_is_within_the_guard() -> None:
    assert verdict(pairs(1.3, 1.29, 1.31, 1.3, latency=1.03)) == "passed"
