"""fast, mixed and full as they are measured: in the routes stage's order, which follows trtexec's code."""

import math

import pytest

from optimizer.records.candidate import Stage
from optimizer.records.route import Candidate, Knob, Layer, Route
from optimizer.routes.expansion import expand, mixed_second_phase
from optimizer.routes.expression import parse_expression, vary
from optimizer.search._base import BudgetSpent
from optimizer.search.sweep import MOST_KNOBS, Fast, Full, Mixed, SweepSettings
from optimizer.testing.laboratory import SimulatedLaboratory

KNOBS = (
    Knob("a", Layer.COMPILER, ("on", "off"), "on"),
    Knob("b", Layer.COMPILER, ("0", "1", "2"), "0"),
    Knob("c", Layer.COMPILER, ("on", "off"), "off"),
)
DEFAULT = Candidate("simulated", "0", "simulated", Route(), Route())
ONE = SweepSettings(pairs=1)


class Truth(dict):
    """Gains of single changes add up in ln."""

    def __init__(self, gains):
        super().__init__()
        self.gains = gains

    def get(self, route, default=None):
        return sum(self.gains.get(pair, 0.0) for pair in route.assignments)


def laboratory(gains, **changes):
    options = {"noise": 1e-4, "default": DEFAULT, **changes}
    return SimulatedLaboratory(Truth(gains), **options)


def screened(lab):
    return [text for what, text, _ in lab.log if what == "screen"]


def mixed(text, settings=ONE):
    expression = parse_expression(text, KNOBS)
    return Mixed(
        expand(expression, "mixed").routes(), lambda names: mixed_second_phase(expression, names).routes(), settings
    )


def test_fast_changes_one_knob_at_a_time_from_right_to_left():
    lab = laboratory({("b", "1"): 0.1})
    standings = Fast(expand(vary(KNOBS), "fast").routes(), ONE).search(lab)
    # The baseline is the reference itself, which every pair measures.
    assert screened(lab) == ["-c=on", "-b=1", "-b=2", "-a=off"]
    assert standings[0].candidate.label == "-b=1"


def test_full_is_the_product_with_the_leftmost_slowest():
    lab = laboratory({})
    Full(expand(parse_expression("-a=[on|off] -c=[on|off]", KNOBS), "full").routes(), ONE).search(lab)
    assert screened(lab) == ["-c=on", "-a=off -c=on", "-a=off"]


def test_the_default_is_measured_besides_where_index_0_is_another_route():
    lab = laboratory({}, default=None)
    Fast(expand(parse_expression("-a=off -c=[off|on]", KNOBS), "fast").routes(), ONE).search(lab)
    assert screened(lab) == ["", "-a=off", "-a=off -c=on"]


def test_all_bounded_knobs_of_tensorrt_11_1_are_206_routes():
    knobs = bounded_knobs()
    lab = laboratory({})
    fast = Fast(expand(vary(knobs), "fast").routes(), ONE)
    fast.search(lab)
    # Index 0 is the default route, which is the reference here.
    assert len(screened(lab)) == 205
    assert screened(lab)[0].startswith(f"-{knobs[-1].name}=")
    assert screened(lab)[-1].startswith(f"-{knobs[0].name}=")


def bounded_knobs():
    from optimizer.routes.knobs import published_table

    return [knob for knob in published_table() if knob.bounded]


def test_mixed_combines_what_paid_and_measures_nothing_twice():
    lab = laboratory({("a", "off"): 0.05, ("b", "2"): 0.03, ("b", "1"): -0.2, ("c", "on"): -0.1})
    search = mixed("-a=[on|off] -b=[0|1|2] -c=[on|off]")
    standings = search.search(lab)
    assert search.positive == ("b", "a")
    assert screened(lab) == ["-c=on", "-b=1", "-b=2", "-a=off", "-a=off -b=1", "-a=off -b=2"]
    assert len(lab.log) == len(set(lab.log))
    assert standings[0].candidate.label == "-a=off -b=2"


def test_mixed_never_counts_a_route_that_fails_accuracy_as_positive():
    wrong = Route.of({"a": "off"})
    lab = laboratory({("a", "off"): 0.9, ("b", "2"): 0.03}, rejected={wrong: Stage.VALIDATE})
    search = mixed("-a=[on|off] -b=[0|1|2] -c=[on|off]")
    standings = search.search(lab)
    assert search.positive == ("b",)
    assert not any("-a=off" in text for what, text, _ in lab.log if what == "race")
    assert standings[0].candidate.label == "-b=2"


def test_mixed_does_not_take_noise_for_a_gain():
    lab = laboratory({("b", "2"): 0.001}, noise=0.01, seed=1)
    search = mixed("-a=[on|off] -b=[0|1|2] -c=[on|off]", SweepSettings(pairs=8, positive_deviations=4.0))
    search.search(lab)
    assert search.positive == ()


def test_mixed_compares_with_a_pinned_baseline_and_not_with_the_reference():
    # With a pinned to off everything gains 0.2 over the reference; only b=1 gains over the baseline.
    lab = laboratory({("a", "off"): 0.2, ("b", "1"): 0.05, ("c", "on"): -0.05})
    search = mixed("-a=off -b=[0|1|2] -c=[off|on]")
    standings = search.search(lab)
    assert search.positive == ("b",)
    assert standings[0].candidate.label == "-a=off -b=1"


def test_mixed_goes_on_where_the_baseline_itself_fails():
    lab = laboratory({("b", "1"): 0.05}, rejected={Route.of({"a": "off"}): Stage.BUILD})
    search = mixed("-a=off -b=[0|1|2]")
    search.search(lab)
    assert search.positive == ("b",)


def test_mixed_combines_ten_knobs_at_most_and_the_best_of_them():
    knobs = [Knob(f"k{number:02d}", Layer.COMPILER, ("0", "1"), "0") for number in range(14)]
    gains = {(knob.name, "1"): 0.01 * (number + 1) for number, knob in enumerate(knobs)}
    asked = []

    def full(names):
        asked.append(list(names))
        return []

    search = Mixed(expand(vary(knobs), "mixed").routes(), full, ONE)
    search.search(laboratory(gains))
    assert len(asked[0]) == MOST_KNOBS == 10
    assert set(asked[0]) == {knob.name for knob in knobs[4:]}


def test_an_empty_list_still_tries_the_default():
    lab = laboratory({}, default=None)
    assert [one.candidate.label for one in Fast([], ONE).search(lab)] == ["default"]
    assert mixed("-a=off").search(laboratory({}))[0].candidate.label in ("default", "-a=off")


def test_noise_sets_the_pairs_of_a_route():
    assert [SweepSettings().pairs_at(noise) for noise in (0.001, 0.015, 0.02, 0.5)] == [1, 2, 4, 8]


def test_the_best_are_sorted_out_by_more_pairs():
    lab = laboratory({("b", "1"): 0.020, ("b", "2"): 0.022}, noise=0.015)
    standings = Fast(expand(vary(KNOBS), "fast").routes()).search(lab)
    pairs = {one.candidate.label: one.pairs for one in standings}
    assert pairs["-b=1"] > 2 and pairs["-b=2"] > 2


def test_a_full_list_of_any_length_is_walked_as_far_as_the_budget_goes():
    knobs = [Knob(f"k{number:02d}", Layer.COMPILER, ("0", "1"), "0") for number in range(80)]
    routes = expand(vary(knobs), "full")
    assert routes.count == 2**80
    search = Full(routes.routes(), ONE)
    with pytest.raises(BudgetSpent):
        search.search(laboratory({}, max_pairs=30))
    assert len(search.standings) == 31
    assert math.isfinite(search.standings[0].score)
