import itertools

import pytest

from optimizer.errors import InputError
from optimizer.records.route import Knob, Layer, Route
from optimizer.routes.space import Constraint, Space
from optimizer.search import optuna_search
from optimizer.search.budget import Budget, Spent
from optimizer.search.choose import NAMES, Expansions, choose_strategy, expansions_of
from optimizer.search.optuna_search import OptunaSearch
from optimizer.search.race import Race
from optimizer.testing.laboratory import SimulatedLaboratory


def knobs(count, values=3, layer=Layer.SERVING):
    return tuple(Knob(f"k{n:02d}", layer, tuple(str(v) for v in range(values)), "0") for n in range(count))


SMALL = Space(knobs(3))
LARGE = Space(knobs(8))
WIDE = Space(knobs(100, values=2))


def tried(strategy, **changes):
    lab = SimulatedLaboratory({}, **changes)
    strategy.search(lab)
    return [text for what, text, _ in lab.log if what == "screen"]


def test_a_small_space_races_whole():
    strategy, why = choose_strategy("auto", SMALL, None, Budget())
    assert isinstance(strategy, Race)
    assert why == "all 27 candidates race"
    assert len(tried(strategy)) == 27


def test_a_large_space_of_few_knobs_is_sampled():
    assert optuna_search.available()
    strategy, why = choose_strategy("auto", LARGE, None, Budget(), limit=60)
    assert isinstance(strategy, OptunaSearch)
    assert "6,561 combinations of 8 knobs" in why
    assert 16 < len(tried(strategy)) <= 60


def test_a_space_of_many_knobs_races_single_changes_and_grows():
    strategy, why = choose_strategy("auto", WIDE, None, Budget(), limit=150)
    assert isinstance(strategy, Race)
    assert "10^30 combinations are too many" in why
    assert "101 race, single changes first" in why
    labels = tried(strategy)
    assert labels[:101] == ["", *(f"-k{n:02d}=1" for n in range(100))]


def test_a_short_budget_is_said_and_kept():
    class Clock:
        def __call__(self):
            return 0.0

    budget = Budget(wall_s=100, clock=Clock())
    strategy, why = choose_strategy("race", SMALL, None, budget, seconds_a_pair=3.0)
    # 60% of 100 s at 3 s a pair: 20 pairs, half of them for everyone's first.
    assert "about 20 comparisons, so only the first 10 are tried" in why
    lab = SimulatedLaboratory({}, noise=0.001)
    strategy.search(lab)
    assert lab.pairs_run <= 21
    reserved = Budget(wall_s=100, reserve_s=40, clock=Clock())
    assert "about 20 " in choose_strategy("race", SMALL, None, reserved, seconds_a_pair=3.0)[1]
    builds = choose_strategy("race", SMALL, None, budget, seconds_a_pair=3.0, seconds_a_build=10.0)[1]
    assert "about 0 comparisons, so only the first 4 are tried" in builds


def test_a_resumed_study_plans_what_it_planned_before():
    fresh = Budget(wall_s=100, reserve_s=40)
    resumed = Budget(wall_s=100, reserve_s=40, spent=Spent(wall_s=55.0))
    plans = [choose_strategy("race", SMALL, None, budget, seconds_a_pair=3.0) for budget in (fresh, resumed)]
    assert plans[0][1] == plans[1][1]
    assert tried(plans[0][0]) == tried(plans[1][0])


def test_noise_that_asks_for_more_than_there_is_time_is_said():
    budget = Budget(wall_s=1000, clock=lambda: 0.0)
    _, why = choose_strategy("race", SMALL, None, budget, seconds_a_pair=6.0, noise=0.06)
    assert "fewer repetitions than this noise asks for" in why


@pytest.mark.parametrize("name", NAMES)
def test_what_is_asked_for_is_given(name):
    strategy, why = choose_strategy(name, SMALL, None, Budget(), limit=20)
    assert strategy.name == name
    assert why
    assert "" in tried(strategy)


def test_an_unknown_name_is_refused_with_the_choices():
    with pytest.raises(InputError, match="race, fast, mixed, full, optuna"):
        choose_strategy("best", SMALL, None, Budget())


def test_a_given_expansion_is_walked_instead_of_the_space():
    given = [Route.of({"x": "1"}), Route.of({"y": "1"})]
    expansions = Expansions(lambda: given, lambda: given[::-1], lambda names: [])
    assert tried(choose_strategy("fast", SMALL, expansions, Budget())[0]) == ["", "-x=1", "-y=1"]
    assert tried(choose_strategy("full", SMALL, expansions, Budget())[0]) == ["", "-y=1", "-x=1"]


def test_the_spaces_own_orders_keep_its_constraints():
    space = Space(
        knobs(2),
        (Constraint(("k00", "k01"), "not both at 2", lambda v: (v["k00"], v["k01"]) != ("2", "2")),),
    )
    orders = expansions_of(space)
    assert [route.text for route in orders.fast()] == ["", "-k01=1", "-k01=2", "-k00=1", "-k00=2"]
    assert [route.text for route in orders.combine(["k01"])] == ["", "-k01=1", "-k01=2"]
    assert len(list(orders.full())) == space.size == 8


def test_hints_are_tried_early_and_may_lie_beyond_the_part_that_is_tried():
    far = list(itertools.islice(WIDE.candidates(), 3000, 3001))
    strangers = [Route.of({"unknown": "1"}), Route.of({"k00": "7"})]
    strategy, _ = choose_strategy("race", WIDE, None, Budget(), limit=120, hints=[*strangers, *far])
    labels = tried(strategy)
    assert labels[:2] == ["", far[0].text]
    assert not {route.text for route in strangers} & set(labels)
