"""What a canary's ledger comes down to, and what its guard leaves."""

from __future__ import annotations

import subprocess
import sys

import pytest

from optimizer.canary.guard import ARMED_FILE, Guard
from optimizer.canary.judge import Outcome, StepVerdict
from optimizer.canary.plan import CanaryPlan, Endpoint, ProxyPlan, parse_margins, write_plan
from optimizer.canary.proxy import CommandProxy
from optimizer.canary.run import run_canary
from optimizer.canary.state import End, own, progressed, save_end, save_verdict, status_document
from optimizer.errors import EnvironmentFailure, InputError
from optimizer.ledger import Ledger
from optimizer.progress import silent
from optimizer.records.measurement import Workload


def plan(tmp_path, **more):
    made = CanaryPlan(
        Endpoint("127.0.0.1:1", "m"), Endpoint("127.0.0.1:2", "m"), ("shadow", "25", "100"), ("lInf<=0",),
        parse_margins([]), Workload(), **more,
    )  # fmt: skip
    write_plan(tmp_path, made)
    return made


def verdict(outcome, reason=""):
    return StepVerdict(outcome, reason, (), 1, 10, 5, (10, 10), 0.3, "10 comparisons")


def test_a_new_canary_is_planned(tmp_path):
    plan(tmp_path)
    document = status_document(tmp_path)
    assert (document["state"], document["accepted_weight"], document["weight"]) == ("planned", 0, None)
    assert "SYNTHETIC LOAD" in " ".join(document["lines"])


def test_accepted_steps_are_not_repeated(tmp_path):
    made = plan(tmp_path)
    with own(tmp_path) as ledger:
        for step in ("shadow", "25"):
            ledger.append("begin", step, {"weight": 25})
            save_verdict(ledger, step, verdict(Outcome.ACCEPT), accepted=True)
        ledger.append("begin", "100", {"weight": 100})
        state = progressed(ledger)
    assert (state.accepted, state.left(made), state.accepted_weight(made)) == (("shadow", "25"), ("100",), 25)
    assert status_document(tmp_path)["state"] == "interrupted"


def test_an_inconclusive_step_begins_again_and_its_end_is_forgotten(tmp_path):
    made = plan(tmp_path)
    with own(tmp_path) as ledger:
        save_verdict(ledger, "shadow", verdict(Outcome.ACCEPT), accepted=True)
        save_verdict(ledger, "25", verdict(Outcome.MORE, "p99: unknown"), accepted=False)
        save_end(ledger, End.INCONCLUSIVE, "step 25: p99: unknown")
        assert progressed(ledger).end is End.INCONCLUSIVE
        ledger.append("begin", "25", {"weight": 25})
        state = progressed(ledger)
    assert (state.end, state.left(made)) == (None, ("25", "100"))


@pytest.mark.parametrize("end", [End.ROLLED_BACK, End.PROMOTED, End.ABORTED])
def test_what_has_ended_does_not_run_again(tmp_path, end):
    plan(tmp_path)
    with own(tmp_path) as ledger:
        save_end(ledger, end, "for a reason")
    document = run_canary(tmp_path, progress=silent)
    assert (document["state"], document["reason"]) == (end.value, "for a reason")


def test_only_one_process_runs_it(tmp_path):
    plan(tmp_path)
    with Ledger.open(tmp_path), pytest.raises(InputError, match="canary abort"), own(tmp_path):
        pass


def test_a_study_is_needed_to_apply(tmp_path):
    plan(tmp_path)
    with pytest.raises(InputError, match="--from-study"):
        run_canary(tmp_path, progress=silent, apply=lambda *_: {})


def weights(path):
    return path.read_text().split() if path.exists() else []


def proxy_command(path):
    return ("sh", "-c", f"echo {{weight}} >> {path}")


def test_a_command_is_told_the_weight(tmp_path):
    CommandProxy(proxy_command(tmp_path / "weights")).set_weight(25)
    assert weights(tmp_path / "weights") == ["25"]
    with pytest.raises(EnvironmentFailure, match="status 3: no such route"):
        CommandProxy(("sh", "-c", "echo no such route; exit 3", "{weight}")).set_weight(5)


def test_no_server_is_an_error_with_the_traffic_on_the_baseline(tmp_path):
    plan(tmp_path, proxy=ProxyPlan(command=proxy_command(tmp_path / "weights")))
    with pytest.raises(EnvironmentFailure, match="no Triton server answers"):
        run_canary(tmp_path, progress=silent)
    assert set(weights(tmp_path / "weights")) == {"0"}
    assert not (tmp_path / ARMED_FILE).exists()


OWNER = """
import os, signal, sys
from pathlib import Path
from optimizer.canary.guard import Guard
with Guard(Path(sys.argv[1])) as guard:
    if sys.argv[2] == "disarmed":
        guard.disarm()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("how", "expected"), [("armed", ["0"]), ("disarmed", [])])
def test_the_guard_takes_the_traffic_back_when_its_owner_is_killed(tmp_path, how, expected):
    plan(tmp_path, proxy=ProxyPlan(command=proxy_command(tmp_path / "weights")))
    died = subprocess.run([sys.executable, "-c", OWNER, str(tmp_path), how], check=False, timeout=60)
    assert died.returncode == -9
    # A new guard waits for the old one's work.
    with Guard(tmp_path) as guard:
        assert weights(tmp_path / "weights") == expected
        guard.disarm()
    assert weights(tmp_path / "weights") == expected
