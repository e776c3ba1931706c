"""What every search strategy keeps to, whichever it is."""

import pytest

from optimizer.records.candidate import Rejection, Stage
from optimizer.records.route import AS_FOUND, Candidate, Knob, Layer, Route
from optimizer.search._base import BudgetSpent
from optimizer.search.optuna_search import OptunaSearch, OptunaSettings
from optimizer.search.race import Race
from optimizer.search.sweep import Fast, Full, Mixed
from optimizer.testing.laboratory import SimulatedLaboratory

KNOBS = tuple(Knob(f"k{number}", Layer.BUILDER, ("0", "1", "2"), "0") for number in range(4))
SINGLES = [Route.of({knob.name: value}) for knob in reversed(KNOBS) for value in ("1", "2")]
PAIRS = [one.merged(other) for one in SINGLES for other in SINGLES if one.assignments[0][0] < other.assignments[0][0]]
BEST = Route.of({"k1": "2", "k3": "1"})


class Truth(dict):
    def get(self, route, default=None):
        gains = {("k1", "2"): 0.20, ("k3", "1"): 0.10, ("k0", "1"): -0.05}
        return sum(gains.get(assignment, 0.0) for assignment in route.assignments)


STRATEGIES = {
    "race": lambda: Race([*SINGLES, *PAIRS]),
    "growing race": lambda: Race(SINGLES, why_not=lambda route: None),
    "fast": lambda: Fast([Route(), *SINGLES]),
    "full": lambda: Full([*SINGLES, *PAIRS]),
    "mixed": lambda: Mixed(
        [Route(), *SINGLES],
        lambda names: [route for route in PAIRS if {name for name, _ in route.assignments} <= set(names)],
    ),
    "optuna": lambda: OptunaSearch(KNOBS, settings=OptunaSettings(trials=40)),
}


@pytest.fixture(params=STRATEGIES, name="make")
def strategy_maker(request):
    if request.param == "optuna":
        pytest.importorskip("optuna")
    return STRATEGIES[request.param]


def test_the_best_it_can_reach_comes_first(make):
    strategy = make()
    standings = strategy.search(SimulatedLaboratory(Truth(), noise=0.005))
    wanted = Route.of({"k1": "2"}) if strategy.name == "fast" else BEST
    assert standings[0].candidate.route.restricted(["k1", "k3"]) == wanted
    assert tuple(strategy.standings) == tuple(standings)


def test_standings_hold_each_candidate_once(make):
    standings = make().search(SimulatedLaboratory(Truth()))
    ids = [standing.candidate.id for standing in standings]
    assert len(ids) == len(set(ids))
    assert all(standing.pairs > 0 for standing in standings)


def test_the_default_route_is_tried(make):
    lab = SimulatedLaboratory(Truth())
    assert any(standing.candidate.route.is_default for standing in make().search(lab))


def test_as_found_as_the_reference_is_no_answer(make):
    lab = SimulatedLaboratory(Truth())
    assert lab.default.family == AS_FOUND
    assert all(standing.candidate.family != AS_FOUND for standing in make().search(lab))


def test_the_default_as_the_reference_is_an_answer_that_costs_nothing(make):
    default = Candidate("simulated", "0", "simulated", Route(), Route())
    lab = SimulatedLaboratory(Truth(), default=default)
    standings = make().search(lab)
    assert [(one.score, one.pairs) for one in standings if one.candidate.id == default.id] == [(0.0, 0)]
    assert not any(text == "" for _, text, _ in lab.log)


def test_every_trial_is_asked_for_once(make):
    class Strict(SimulatedLaboratory):
        asked = frozenset()

        def pair(self, candidate, index, purpose="race"):
            assert (candidate.id, index) not in self.asked
            self.asked = {*self.asked, (candidate.id, index)}
            return super().pair(candidate, index, purpose)

    make().search(Strict(Truth()))


def test_who_fails_accuracy_is_never_measured_and_never_stands(make):
    class Wrong(dict):
        def get(self, route, default=None):
            return Stage.VALIDATE if route.get("k1") == "2" else None

    lab = SimulatedLaboratory(Truth(), rejected=Wrong())
    standings = make().search(lab)
    assert standings
    assert all(standing.candidate.route.get("k1") != "2" for standing in standings)
    assert not any("-k1=2" in text for what, text, _ in lab.log if what == "race")


def test_who_fails_under_load_leaves_with_all_its_pairs(make):
    class Fragile(SimulatedLaboratory):
        def pair(self, candidate, index, purpose="race"):
            if candidate.route.get("k1") == "2" and index > 0:
                return Rejection(candidate.id, Stage.MEASURE, "errors", "3 requests failed")
            return super().pair(candidate, index, purpose)

    standings = make().search(Fragile(Truth()))
    # It stands only where one pair was all that anyone asked it for.
    assert all(standing.pairs <= 1 for standing in standings if standing.candidate.route.get("k1") == "2")
    assert standings[0].candidate.route.get("k1") != "2"


def test_nothing_stands_where_everything_fails(make):
    class Everything(dict):
        def get(self, route, default=None):
            return Stage.BUILD

    assert tuple(make().search(SimulatedLaboratory(Truth(), rejected=Everything()))) == ()


@pytest.mark.parametrize("limit", [0, 1, 7])
def test_a_spent_budget_passes_and_the_best_so_far_stays(make, limit):
    strategy = make()
    with pytest.raises(BudgetSpent):
        strategy.search(SimulatedLaboratory(Truth(), max_pairs=limit))
    assert sum(standing.pairs for standing in strategy.standings) == limit
    scores = [standing.score for standing in strategy.standings]
    assert len(scores) <= limit


def test_an_interrupted_search_ends_like_one_that_was_not(make):
    whole = SimulatedLaboratory(Truth(), seed=6)
    expected = make().search(whole)
    lab = SimulatedLaboratory(Truth(), seed=6)
    for limit in (*range(0, whole.pairs_run, max(1, whole.pairs_run // 5)), None):
        lab.allow(limit)
        try:
            found = make().search(lab)
        except BudgetSpent:
            assert limit is not None
    assert found == expected
    assert lab.log == whole.log


def test_unusable_pairs_do_not_stop_it(make):
    lab = SimulatedLaboratory(Truth(), noise=0.005, unusable=lambda candidate, index: index % 3 == 0)
    strategy = make()
    standings = strategy.search(lab)
    assert standings[0].candidate.route.get("k1") == "2"
