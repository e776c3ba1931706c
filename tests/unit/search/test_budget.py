import pytest

from optimizer.search._base import BudgetSpent, BuildsSpent
from optimizer.search.budget import Budget, Spent


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def test_without_limits_nothing_ends():
    clock = Clock()
    budget = Budget(clock=clock)
    clock.now += 1e9
    budget.spend_gpu(1e9)
    for _ in range(1000):
        budget.spend_build()
    budget.check()
    assert budget.remaining_s is None
    assert budget.spent == Spent(1e9, 1000, 1e9)


def test_the_wall_clock_ends_a_search():
    clock = Clock()
    budget = Budget(wall_s=300, clock=clock)
    clock.now += 299
    budget.check()
    assert budget.remaining_s == 1
    clock.now += 1
    with pytest.raises(BudgetSpent, match="5 min"):
        budget.check()
    assert budget.remaining_s == 0


def test_the_reserve_is_kept_for_the_confirmation():
    clock = Clock()
    budget = Budget(wall_s=100, reserve_s=30, clock=clock)
    clock.now += 70
    with pytest.raises(BudgetSpent, match="100 s"):
        budget.check()
    budget.release_reserve()
    budget.check()
    assert budget.remaining_s == 30


def test_builds_are_counted_and_their_end_is_told_apart():
    budget = Budget(builds=2)
    budget.spend_build()
    budget.spend_build()
    budget.check()
    with pytest.raises(BuildsSpent, match="2 builds"):
        budget.spend_build()
    assert budget.spent.builds == 2


def test_no_build_begins_after_the_time_is_up():
    clock = Clock()
    budget = Budget(wall_s=1, builds=9, clock=clock)
    clock.now += 2
    with pytest.raises(BudgetSpent) as spent:
        budget.spend_build()
    assert not isinstance(spent.value, BuildsSpent)
    assert budget.spent.builds == 0


def test_gpu_hours_end_a_search():
    budget = Budget(gpu_hours=0.5)
    budget.spend_gpu(1799)
    budget.check()
    budget.spend_gpu(1)
    with pytest.raises(BudgetSpent, match=r"0\.5 GPU hours"):
        budget.check()


def test_a_resumed_study_goes_on_counting():
    clock = Clock()
    budget = Budget(wall_s=100, builds=3, spent=Spent(wall_s=90, builds=3, gpu_s=5), clock=clock)
    assert budget.remaining_s == 10
    with pytest.raises(BuildsSpent):
        budget.spend_build()
    clock.now += 4
    assert budget.spent == Spent(94, 3, 5)
