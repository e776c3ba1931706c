import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.records.candidate import Stage
from optimizer.records.route import Candidate, Route
from optimizer.search._base import BudgetSpent, BuildsSpent
from optimizer.search.race import Race, RaceSettings, Round, cost, schedule
from optimizer.testing.laboratory import SimulatedLaboratory


def routes(count):
    return [Route.of({f"k{number:03d}": "on"}) for number in range(count)]


def labels(standings):
    return [standing.candidate.label for standing in standings]


def laboratory(gains, **changes):
    return SimulatedLaboratory(dict(zip(routes(len(gains)), gains, strict=True)), **changes)


def test_the_schedule_of_the_design():
    assert schedule(200, 0.015) == (Round(200, 1), Round(67, 1), Round(23, 2), Round(8, 4))


@pytest.mark.parametrize(
    ("candidates", "noise", "expected"),
    [
        (0, 0.015, (Round(0, 4),)),
        (3, 0.015, (Round(3, 4),)),
        (8, 0.015, (Round(8, 4),)),
        (30, 0.015, (Round(30, 1), Round(10, 2), Round(4, 4))),
        (30, 0.001, (Round(30, 1), Round(10, 1), Round(4, 1))),
        (30, math.nan, (Round(30, 1), Round(10, 2), Round(4, 4))),
        (30, 0.03, (Round(30, 4), Round(10, 8), Round(4, 16))),
        # Noise multiplies the pairs by four at most.
        (30, 0.50, (Round(30, 4), Round(10, 8), Round(4, 16))),
    ],
)
def test_size_and_noise_set_the_schedule(candidates, noise, expected):
    assert schedule(candidates, noise) == expected


@given(st.integers(1, 3000), st.floats(0.0, 0.2), st.integers(1, 20_000))
def test_a_limit_of_pairs_is_kept_where_one_each_fits(candidates, noise, limit):
    rounds = schedule(candidates, noise, max_pairs=limit)
    assert rounds[0].candidates == candidates
    assert all(round_.pairs >= 1 for round_ in rounds)
    assert cost(rounds) <= max(limit, candidates)
    assert [round_.candidates for round_ in rounds] == sorted((r.candidates for r in rounds), reverse=True)


def test_the_best_wins_the_race_and_few_pairs_are_spent_on_the_rest():
    gains = [0.0] * 60
    gains[37] = 0.10
    lab = laboratory(gains, seed=4)
    standings = Race(routes(60)).search(lab)
    assert standings[0].candidate.label == "-k037=on"
    assert standings[0].score == pytest.approx(0.10, abs=0.02)
    assert standings[0].pairs == 7
    assert lab.pairs_run <= cost(schedule(61, 0.015))


def test_who_fails_the_screen_is_never_measured_and_does_not_stand():
    gains = [0.5, 0.0, 0.02]
    lab = laboratory(gains, rejected={routes(1)[0]: Stage.VALIDATE})
    standings = Race(routes(3)).search(lab)
    assert "-k000=on" not in labels(standings)
    assert not any(text == "-k000=on" for what, text, _ in lab.log if what == "race")


def test_nothing_is_tried_twice():
    lab = laboratory([0.01 * number for number in range(40)])
    twice = [*routes(40), *routes(40)]
    Race(twice).search(lab)
    assert len(lab.log) == len(set(lab.log))


def test_the_default_route_is_tried_though_the_space_does_not_hold_it():
    lab = laboratory([0.0] * 5)
    Race(routes(5)).search(lab)
    assert lab.log[0] == ("screen", "", 0)


def test_the_default_route_as_the_reference_stands_at_zero_unmeasured():
    default = Candidate("simulated", "0", "simulated", Route(), Route())
    lab = laboratory([-0.1, -0.05, 0.08], default=default)
    standings = Race([Route(), *routes(3)]).search(lab)
    assert labels(standings) == ["-k002=on", "default", "-k001=on", "-k000=on"]
    assert (standings[1].score, standings[1].pairs) == (0.0, 0)
    assert not any(text == "" for _, text, _ in lab.log)


def test_the_reference_is_never_eliminated():
    default = Candidate("simulated", "0", "simulated", Route(), Route())
    lab = laboratory([-0.2] * 100, default=default)
    assert labels(Race(routes(100)).search(lab))[0] == "default"


def test_hints_order_and_never_score():
    gains = [0.0] * 20
    gains[3] = 0.2
    lab = laboratory(gains)
    hints = [routes(20)[17], Route.of({"elsewhere": "1"}), routes(20)[5]]
    standings = Race(routes(20), hints=hints).search(lab)
    tried = [text for what, text, _ in lab.log if what == "screen"]
    assert tried[:4] == ["", "-k017=on", "-k005=on", "-k000=on"]
    assert "-elsewhere=1" not in tried
    assert labels(standings)[0] == "-k003=on"


def test_candidates_of_one_engine_follow_each_other():
    space = [
        Route.of({"instances": instances, "fp16": fp16}) for instances in ("1", "2", "4") for fp16 in ("off", "on")
    ]
    lab = SimulatedLaboratory(dict.fromkeys(space, 0.0), build_knobs=["fp16"])
    Race(space).search(lab)
    engines = [text.split()[0] for what, text, _ in lab.log if what == "screen" and text]
    assert engines == ["-fp16=off"] * 3 + ["-fp16=on"] * 3


def test_a_spent_budget_passes_and_leaves_the_best_so_far():
    gains = [0.0] * 50
    gains[2] = 0.2
    race = Race(routes(50))
    with pytest.raises(BudgetSpent):
        race.search(laboratory(gains, max_pairs=20))
    assert race.standings[0].candidate.label == "-k002=on"
    assert len(race.standings) == 20
    assert Race(routes(5)).standings == ()


def test_running_again_after_an_interruption_repeats_nothing_and_ends_alike():
    gains = [0.003 * number for number in range(50)]
    whole = laboratory(gains, seed=9)
    expected = Race(routes(50)).search(whole)
    interrupted = laboratory(gains, seed=9, max_pairs=33)
    with pytest.raises(BudgetSpent):
        Race(routes(50)).search(interrupted)
    interrupted.allow(None)
    assert Race(routes(50)).search(interrupted) == expected
    assert interrupted.log == whole.log


class LimitedBuilds(SimulatedLaboratory):
    """Builds ``left`` engines, then no more."""

    left = 2

    def screen(self, candidate):
        built = {text for what, text, _ in self.log if what == "screen"}
        if candidate.build_route.is_default or candidate.route.text in built:
            return super().screen(candidate)
        if self.left == 0:
            raise BuildsSpent("the limit of builds is reached")
        self.left -= 1
        return super().screen(candidate)


def test_without_builds_the_race_goes_on_with_the_engines_there_are():
    space = [Route.of({"fp16": "on"}), Route.of({"int8": "on"}), Route.of({"fp8": "on"}), Route.of({"instances": "4"})]
    lab = LimitedBuilds(dict.fromkeys(space, 0.05), build_knobs=["fp16", "int8", "fp8"])
    standings = Race(space).search(lab)
    assert set(labels(standings)) == {"default", "-fp16=on", "-int8=on", "-instances=4"}


def test_unusable_pairs_are_replaced_and_do_not_count():
    lab = laboratory([0.1, 0.0, 0.0], unusable=lambda candidate, index: index in (0, 2))
    standings = Race(routes(3)).search(lab)
    assert all(standing.pairs == 4 for standing in standings)
    indices = [index for what, text, index in lab.log if what == "race" and text == "-k000=on"]
    assert indices == [0, 1, 2, 3, 4, 5]


def test_candidates_that_all_become_finalists_show_one_pair_and_race_no_further():
    lab = laboratory([0.1, 0.0])
    # Two and the default route for three places.
    assert [standing.pairs for standing in Race(routes(2)).search(lab)] == [1, 1, 1]
    lab = laboratory([0.1, 0.0, -0.1])
    assert min(standing.pairs for standing in Race(routes(3)).search(lab)[:3]) == 4


def test_who_has_no_usable_pair_does_not_stand_and_does_not_loop():
    lab = laboratory([0.1, 0.0], unusable=lambda candidate, index: candidate.label == "-k000=on")
    assert set(labels(Race(routes(2)).search(lab))) == {"-k001=on", "default"}


def test_the_clearly_beaten_drop_out_before_their_pairs_are_used_up():
    lab = laboratory([0.5, 0.49, 0.48, *[-0.5] * 4])
    standings = Race(routes(7)).search(lab)
    pairs = {standing.candidate.label: standing.pairs for standing in standings}
    assert [pairs[f"-k00{number}=on"] for number in range(3)] == [4, 4, 4]
    assert all(pairs[f"-k00{number}=on"] == 1 for number in range(3, 7))


def test_a_race_grows_combinations_that_pay_only_together():
    def truth(route):
        fp16, instances = route.get("fp16") == "on", route.get("instances") == "4"
        return 0.05 * fp16 + 0.10 * instances + 0.30 * (fp16 and instances) - 0.2 * (route.get("delay") == "9")

    class Truth(dict):
        def get(self, route, default=None):
            return truth(route)

    singles = [Route.of({name: value}) for name, value in [("fp16", "on"), ("instances", "4"), ("delay", "9")]]
    lab = SimulatedLaboratory(Truth())
    assert labels(Race(singles).search(lab))[0] == "-instances=4"
    grown = Race(singles, why_not=lambda route: None).search(SimulatedLaboratory(Truth()))
    assert labels(grown)[0] == "-fp16=on -instances=4"
    forbidden = Race(singles, why_not=lambda route: "no" if len(route.assignments) > 1 else None)
    assert labels(forbidden.search(SimulatedLaboratory(Truth())))[0] == "-instances=4"


def test_growing_keeps_to_its_pairs():
    lab = laboratory([0.01 * number for number in range(20)], noise=0.001)
    race = Race(routes(20), why_not=lambda route: None, max_pairs=40)
    race.search(lab)
    assert lab.pairs_run <= 41


def test_finalists_set_how_small_the_last_round_may_be():
    assert schedule(100, 0.015, RaceSettings(finalists=20))[-1].candidates >= 20
