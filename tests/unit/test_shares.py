"""How a repository's time is split."""

import pytest

from optimizer.shares import CHECK_PART, share_s, weights


def test_half_goes_by_load_half_equally() -> None:
    found = weights({"light": 0.001, "heavy": 0.003}, {})
    assert found == pytest.approx({"heavy": 0.25 + 0.5 * 0.75, "light": 0.25 + 0.5 * 0.25})
    assert list(found) == ["heavy", "light"]
    assert sum(found.values()) == pytest.approx(1)


def test_known_production_loads_count_only_when_all_are_known() -> None:
    seconds: dict[str, float | None] = {"a": 0.001, "b": 0.003}
    assert weights(seconds, {"a": 900.0, "b": 100.0})["a"] == pytest.approx(0.25 + 0.5 * 0.9 / 1.2)
    assert weights(seconds, {"a": 900.0, "b": None}) == weights(seconds, {})


def test_a_model_that_was_not_measured_counts_as_the_others_on_average() -> None:
    found = weights({"a": 0.001, "b": 0.003, "unknown": None}, {})
    assert found["unknown"] == pytest.approx(0.5 / 3 + 0.5 * 0.002 / 0.006)


@pytest.mark.parametrize("seconds", [{"a": None, "b": None}, {"a": 0.0, "b": 0.0}])
def test_where_nothing_is_known_all_get_the_same(seconds: dict[str, float | None]) -> None:
    assert set(weights(seconds, {}).values()) == {0.5}


def test_time_that_one_does_not_need_goes_to_those_after_it() -> None:
    weight = {"heavy": 0.6, "light": 0.4}
    first = share_s("heavy", weight, ["heavy", "light"], 1000, 0)
    assert first == pytest.approx(1000 * (1 - CHECK_PART) * 0.6)
    assert share_s("light", weight, ["light"], 1000, 100) == pytest.approx(1000 * (1 - CHECK_PART) - 100)
    assert share_s("light", weight, ["light"], 1000, 2000) == 0


def test_without_a_limit_nobody_has_a_share() -> None:
    assert share_s("a", {"a": 1.0}, ["a"], None, 5) is None
