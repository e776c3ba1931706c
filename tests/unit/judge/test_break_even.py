import pytest

from optimizer.judge.break_even import break_even


def test_gpu_days_follow_from_the_lower_bound():
    # 12 hours at 1.25x: a busy GPU saves a fifth of its day, 4.8 hours.
    result = break_even(12, 1.25)
    assert result["gpu_days"] == pytest.approx(2.5)
    assert "2.5 GPU-days" in result["sentence"]


def test_fewer_whole_servers_save_money():
    result = break_even(10, 1.5, load_per_s=9000, capacity_per_s=1000, gpu_price_per_h=2.0)
    assert (result["servers_before"], result["servers_after"]) == (9, 6)
    assert result["days"] == pytest.approx(10 / 72)
    assert result["saved_per_month"] == pytest.approx(3 * 730 * 2)
    assert result["cost"] == 20
    assert result["sentence"].startswith("Saves 3 servers of 9")


def test_headroom_is_not_called_a_saving():
    result = break_even(10, 1.08, load_per_s=900, capacity_per_s=1000, gpu_price_per_h=2.0)
    assert result["sentence"].startswith("Saves nothing: 900 inferences/s take 1 server before and after")
    assert "saved_per_month" not in result
    assert "days" not in result


@pytest.mark.parametrize("ratio", [1.0, 0.9, float("nan")])
def test_no_gain_saves_nothing(ratio):
    result = break_even(1, ratio)
    assert result["sentence"].startswith("Saves nothing")
    assert "gpu_days" not in result


def test_a_whole_multiple_needs_exactly_that_many_servers():
    assert break_even(1, 1.1, load_per_s=0.3, capacity_per_s=0.1)["servers_before"] == 3


@pytest.mark.parametrize("wrong", [{"load_per_s": 5}, {"load_per_s": 5, "capacity_per_s": 0}])
def test_incomplete_or_impossible_loads_are_refused(wrong):
    with pytest.raises(ValueError, match=r"needed together|not positive"):
        break_even(1, 1.2, **wrong)
