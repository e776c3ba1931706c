"""Every mutating system call of apply, rollback and recovery broken in turn. Writes ``benchmarks/results/``.

Run by ``make soak``. SIGKILL, ENOSPC and EIO at each call of apply and of rollback, in both ways of bringing a version
in; and, for a part of the states that a kill leaves, SIGKILL at each call of the recovery from it.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "apply"))

from crash_steps import FAULTS, break_and_recover, break_recovery, missing, new_world, steps_of
from power_cut import replay

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "write_back_crashes.json"
POWER_CUTS = RESULTS.with_name("write_back_power_cuts.json")
RECOVERED_STATES = 7
"""Every so many-th state that a kill leaves has its recovery stepped through, beginning with another call each time."""


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_system_call_may_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = missing()
    if problem:
        pytest.skip(problem)
    started = time.time()
    rows: list[dict[str, Any]] = []
    world = tmp_path / "world"
    for way in ("rename", "in_place"):
        for job in ("apply", "rollback"):
            repository, _ = new_world(world, job, way)
            steps = steps_of(job, repository, way)
            for fault in FAULTS:
                outcomes = [break_and_recover(world, job, way, step, fault) for step in steps]
                trees = Counter(outcome.tree for outcome in outcomes)
                row = {
                    "job": job, "way": way, "fault": fault, "system_calls": len(steps), "old_tree": trees["old"],
                    "new_tree": trees["new"], "other_tree": len(outcomes) - trees["old"] - trees["new"],
                    "right_before_recovery": sum(outcome.at_once for outcome in outcomes),
                }  # fmt: skip
                rows.append(row)
                with capsys.disabled():
                    print(row, flush=True)
            states = steps[1::RECOVERED_STATES]
            kills = sum(break_recovery(world, job, way, step, 2, number % 2) for number, step in enumerate(states))
            row = {
                "job": f"recovery of {job}", "way": way, "fault": "SIGKILL", "states": len(states),
                "system_calls": kills, "other_tree": 0,
            }  # fmt: skip
            rows.append(row)
            with capsys.disabled():
                print(row, flush=True)
    assert all(row["other_tree"] == 0 for row in rows)
    facts = {"broken_runs": sum(row["system_calls"] for row in rows), "rows": rows}
    _write(RESULTS, started, facts)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_power_may_be_cut_after_every_system_call(tmp_path: Path) -> None:
    problem = missing()
    if problem:
        pytest.skip(problem)
    started = time.time()
    rows = []
    for way in ("rename", "in_place"):
        for job in ("apply", "rollback"):
            trees = replay(tmp_path / "world", job, way)
            states = sum(trees.values())
            rows.append({"job": job, "way": way, "states": states, "old_tree": trees["old"], "new_tree": trees["new"]})
    assert all(row["states"] == row["old_tree"] + row["new_tree"] for row in rows)
    _write(POWER_CUTS, started, {"rows": rows})


def _write(path: Path, started: float, facts: dict[str, Any]) -> None:
    document = {
        "command": "make soak (tests/soak/test_apply_crash_soak.py)",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "python": platform.python_version(),
        "seed": "none: every call in order",
        "minutes": round((time.time() - started) / 60, 1),
        **facts,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
