"""What a decision tells besides its winner, by values."""

from __future__ import annotations

import pytest

from optimizer.config import Budget
from optimizer.evidence import capacity_of, front, spent_so_far, support_of, worth
from optimizer.judge.decide import Confirmation
from optimizer.laboratory import keep_log, make_pair
from optimizer.ledger import Ledger
from optimizer.records.candidate import Pair, Rejection, Stage
from optimizer.records.decision import Decision, Finalist, Interval, Verdict
from optimizer.records.measurement import Measurement, Resources, Workload
from optimizer.records.objective import Objective, ObjectiveKind
from optimizer.records.parity import OutputParity, Parity
from optimizer.search.budget import Spent

HOUR = Spent(wall_s=7200.0, builds=3, gpu_s=3600.0)


def won(lower: float = 1.2) -> Decision:
    gain = Interval(1.3, lower, 1.4, 0.95, 12)
    return Decision(Verdict.WINNER, "c", "-x=1", "…", finalists=(Finalist("c", "-x=1", gain, gain, None, True, ""),))


def test_a_gain_that_saves_servers_is_told_with_its_days():
    settings = Budget(load_per_s=1000, gpu_price_per_hour=2)
    told = worth(won(), HOUR, Objective(), settings, gpu=True, capacity_per_s=100).break_even
    assert (told["servers_before"], told["servers_after"], told["gpu_hours"]) == (10, 9, 1.0)
    assert "saved_per_month" in told


def test_a_gain_that_saves_nothing_is_advice_and_takes_no_winner_away():
    decision = worth(won(), HOUR, Objective(), Budget(load_per_s=10), gpu=True, capacity_per_s=100)
    assert decision.verdict is Verdict.WINNER
    assert decision.keep_reason is None
    (caveat,) = decision.caveats
    assert caveat.startswith("not worth it for the load alone: Saves nothing: ")


def test_without_a_gpu_server_hours_are_counted():
    told = worth(won(), HOUR, Objective(), Budget(), gpu=False, capacity_per_s=100).break_even
    assert told["gpu_hours"] == 2.0
    assert "2 server hours" in str(told["sentence"])
    assert "GPU" not in str(told["sentence"])


def test_an_objective_that_says_nothing_of_capacity_has_no_break_even():
    latency = Objective(ObjectiveKind.LATENCY, percentile="p99")
    assert worth(won(), HOUR, latency, Budget(load_per_s=10), gpu=True, capacity_per_s=1).break_even == {}


def test_the_capacity_is_the_references_own():
    pairs = tuple(
        Pair("c", reference, "confirm", i, 0.1, None, throughput, 1.0, usable=usable)
        for i, (reference, throughput, usable) in enumerate(
            [("as-found", 100, True), ("as-found", 110, True), ("as-found", 9, False), ("default", 50, True)]
        )
    )
    assert capacity_of([Confirmation("c", "c", pairs)], "as-found") == 105
    assert capacity_of([], "as-found") == 0.0


def measured(candidate: str, throughput: float, p50: float, *, throttled: bool | None = None) -> Measurement:
    return Measurement(
        candidate, Workload(), 0.0, 2.0, 100, 100, {}, throughput, p50, {"p50": p50},
        resources=Resources(gpu_throttled=throttled),
    )  # fmt: skip


def test_the_front_holds_who_is_not_beaten_in_everything(tmp_path):
    with Ledger.open(tmp_path) as ledger:
        for name, throughput, p50 in (("a", 100, 5), ("b", 200, 9), ("c", 90, 6), ("d", 900, 1)):
            ledger.save("measurement", f"race:0:{name}", measured(name, throughput, p50))
        ledger.save("measurement", "noise:0:e", measured("e", 9000, 1))
        ledger.save("rejection", "d", Rejection("d", Stage.VALIDATE, "accuracy", "wrong"))
        told = front(ledger, Objective())
    assert told["front"] == ["a", "b"]
    assert told["objectives"] == ["throughput", "p50 latency"]
    assert told["points"]["c"] == {"throughput": 90, "p50 latency": 6}


def test_runs_that_said_what_they_spent_and_runs_that_were_killed_are_both_counted(tmp_path):
    with Ledger.open(tmp_path) as ledger:
        ledger.append("fact", "server", {})
        ledger.append("fact", "spent", {"wall_s": 10.0, "builds": 2, "gpu_s": 5.0})
        ledger.append("fact", "server", {})
        ledger.append("build", "e", {"build_s": 3.0})
        ledger.save("measurement", "race:0", measured("a", 1, 1))
        spent = spent_so_far(ledger)
    assert (spent.builds, spent.gpu_s) == (3, 10.0)
    assert 10.0 <= spent.wall_s < 60


def test_a_throttled_window_makes_a_pair_unusable_unless_that_is_normal_here():
    cool, hot = measured("a", 100, 5), measured("b", 100, 5, throttled=True)
    assert make_pair(hot, cool, Objective(), "race", 0).usable is False
    assert make_pair(hot, cool, Objective(), "race", 0, throttled_counts=True).usable is True
    assert make_pair(cool, cool, Objective(), "race", 0).usable is True


@pytest.mark.parametrize(("key", "kept"), [("confirm:0:a:b:candidate", True), ("race:0:a:b:candidate", False)])
def test_only_the_logs_of_confirmations_are_kept(tmp_path, key, kept):
    log = tmp_path / "a-00001.npz"
    log.write_bytes(b"x")
    name = keep_log(log, key)
    assert [path.name for path in tmp_path.iterdir()] == ([name] if kept else [])
    assert (name is not None) is kept


def test_what_samples_support_is_told_for_counts_and_for_distances():
    counted = OutputParity("Y", "top1", 0.0, 0.01, True, bound=0.01, misses=0, units=100)
    (text,) = support_of(Parity("c", "held_out", 100, (counted,)))
    assert "100 samples with 0 disagreements" in text
    assert "99% takes 299" in text
    (text,) = support_of(Parity("c", "held_out", 20, (OutputParity("Y", "lInf", 0.0, 0.1, True, units=20),)))
    assert "20 samples with 0 disagreements" in text
