"""Some of the crashes that the soak run goes through one by one: SIGKILL, full disk and I/O error at system calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from crash_steps import break_and_recover, break_recovery, missing, new_world, steps_of
from power_cut import replay

from optimizer.errors import OptimizerError

STRIDE = 9
FAULTS = ("SIGKILL", "ENOSPC", "EIO")


@pytest.fixture(autouse=True)
def strace() -> None:
    problem = missing()
    if problem:
        pytest.skip(problem)


@pytest.mark.parametrize("way", ["rename", "in_place"])
@pytest.mark.parametrize("job", ["apply", "rollback"])
def test_the_tree_is_the_old_or_the_new_after_a_crash_anywhere(tmp_path: Path, job: str, way: str) -> None:
    repository, _ = new_world(tmp_path / "world", job, way)
    steps = steps_of(job, repository, way)
    assert len(steps) > 30
    # Another fault at every step taken, so that each kind is seen all along the way.
    for number, step in enumerate(steps[::STRIDE]):
        break_and_recover(tmp_path / "world", job, way, step, FAULTS[number % len(FAULTS)])


@pytest.mark.parametrize(("job", "way"), [("apply", "rename"), ("rollback", "in_place")])
def test_recovery_may_be_killed_too(tmp_path: Path, job: str, way: str) -> None:
    repository, _ = new_world(tmp_path / "world", job, way)
    steps = steps_of(job, repository, way)
    assert break_recovery(tmp_path / "world", job, way, steps[len(steps) * 2 // 3], stride=4) > 2


@pytest.mark.parametrize("way", ["rename", "in_place"])
@pytest.mark.parametrize("job", ["apply", "rollback"])
def test_a_power_cut_drops_what_was_not_fsynced(tmp_path: Path, job: str, way: str) -> None:
    trees = replay(tmp_path / "world", job, way, stride=6)
    assert trees["old"] > 20
    assert trees["new"] > 0


def test_the_replay_would_notice_missing_fsyncs(tmp_path: Path) -> None:
    with pytest.raises((AssertionError, OptimizerError)):
        replay(tmp_path / "world", "apply", "rename", fsyncs=False)
