import pytest

from optimizer.records.candidate import Stage
from optimizer.records.route import Candidate, Knob, Layer, Route
from optimizer.search._base import BudgetSpent
from optimizer.search.optuna_search import OptunaSearch, OptunaSettings
from optimizer.testing.laboratory import SimulatedLaboratory

pytest.importorskip("optuna", reason="the extra `search` is not installed")

KNOBS = (
    Knob("instances", Layer.SERVING, ("1", "2", "4", "8"), "1"),
    Knob("precision", Layer.PRECISION, ("fp32", "fp16", "int8"), "fp32"),
    Knob("delay", Layer.SERVING, ("0", "100", "500", "1000"), "0"),
    Knob("level", Layer.BUILDER, ("1", "2", "3", "4", "5"), "3"),
)


class Truth(dict):
    def get(self, route, default=None):
        instances = {"1": 0.0, "2": 0.1, "4": 0.2, "8": 0.15}[route.get("instances", "1")]
        precision = {"fp32": 0.0, "fp16": 0.05, "int8": 0.04}[route.get("precision", "fp32")]
        together = 0.3 if route.get("instances") == "4" and route.get("precision") == "fp16" else 0.0
        return instances + precision + together - 0.02 * (route.get("delay", "0") != "0")


BEST = Route.of({"instances": "4", "precision": "fp16"})


def search(lab, why_not=lambda route: None, hints=(), **changes):
    strategy = OptunaSearch(KNOBS, why_not, OptunaSettings(trials=60, **changes), hints=hints)
    return strategy, strategy.search(lab)


def test_it_finds_what_pays_only_together_with_a_quarter_of_the_space():
    lab = SimulatedLaboratory(Truth(), noise=0.01)
    _, standings = search(lab)
    best = standings[0].candidate.route
    assert best.restricted(["instances", "precision"]) == BEST
    assert len([key for key in lab.log if key[0] == "screen"]) <= 60
    assert len(lab.log) == len(set(lab.log))


def test_the_default_is_tried_first_and_hints_next():
    lab = SimulatedLaboratory(Truth())
    search(lab, hints=[Route.of({"level": "5"}), Route.of({"elsewhere": "1"}), Route.of({"level": "99"})])
    assert [text for what, text, _ in lab.log if what == "screen"][:2] == ["", "-level=5"]


def test_the_same_seed_and_outcomes_give_the_same_search():
    first, second = SimulatedLaboratory(Truth(), seed=3), SimulatedLaboratory(Truth(), seed=3)
    assert search(first)[1] == search(second)[1]
    assert first.log == second.log
    other = SimulatedLaboratory(Truth(), seed=3)
    search(other, seed=1)
    assert other.log != first.log


def test_an_interrupted_search_goes_on_where_it_was():
    whole = SimulatedLaboratory(Truth())
    expected = search(whole)[1]
    lab = SimulatedLaboratory(Truth(), max_pairs=15)
    strategy = OptunaSearch(KNOBS, settings=OptunaSettings(trials=60))
    with pytest.raises(BudgetSpent):
        strategy.search(lab)
    assert len(strategy.standings) == 15
    lab.allow(None)
    assert search(lab)[1] == expected
    assert lab.log == whole.log


def test_what_fails_is_kept_away_from_and_has_no_score():
    class Wrong(dict):
        def get(self, route, default=None):
            return Stage.VALIDATE if route.get("precision") == "fp16" else None

    lab = SimulatedLaboratory(Truth(), rejected=Wrong())
    _, standings = search(lab)
    assert standings[0].candidate.route.get("instances") == "4"
    assert all(standing.candidate.route.get("precision") != "fp16" for standing in standings)


def test_routes_outside_the_space_are_never_tried():
    lab = SimulatedLaboratory(Truth())
    search(lab, why_not=lambda route: "no" if route.get("instances") == "4" else None)
    assert not any("-instances=4" in text for _, text, _ in lab.log)


def test_a_tiny_space_is_exhausted_and_ends():
    lab = SimulatedLaboratory({}, noise=0.02)
    strategy = OptunaSearch(KNOBS[:1], settings=OptunaSettings(trials=60))
    strategy.search(lab)
    assert len([key for key in lab.log if key[0] == "screen"]) == 4


def test_it_stops_where_nothing_is_to_be_gained():
    lab = SimulatedLaboratory({}, noise=0.01, default=Candidate("simulated", "0", "simulated", Route(), Route()))
    strategy, _ = search(lab, worthwhile=0.05)
    assert "expected to add less" in strategy.stopped_because
    assert len([key for key in lab.log if key[0] == "screen"]) < 30
