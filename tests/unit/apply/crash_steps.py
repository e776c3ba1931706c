"""Steps through every mutating system call of a program with strace, and breaks it there.

A step is (system call, how often it had been called before in this process). Only calls on files below the directory
under test count, so that what Python does for itself is left alone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MUTATING = (
    "openat", "mkdir", "mkdirat", "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "unlink",
    "unlinkat", "rmdir", "write", "pwrite64", "writev", "truncate", "ftruncate", "fallocate", "fsync", "fdatasync",
    "chmod", "fchmod", "fchmodat", "chown", "fchown", "fchownat", "lchown", "utimensat", "copy_file_range", "sendfile",
)  # fmt: skip
DRIVER = Path(__file__).with_name("crash_driver.py")
FAULTS = {"SIGKILL": "signal=KILL", "ENOSPC": "error=ENOSPC", "EIO": "error=EIO"}


@dataclass(frozen=True)
class Step:
    call: str
    number: int


def missing() -> str | None:
    """Why nothing can be stepped through here."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    probe = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, text=True)
    return f"strace cannot trace here: {probe.stderr.strip()[:200]}" if probe.returncode else None


def steps_of(job: str, repository: Path, way: str) -> list[Step]:
    """Runs the job undisturbed and lists its mutating calls below the repository's parent, in order."""
    log = repository.parent.with_suffix(".trace")
    status = _traced(["-y", "-s", "0", "-e", f"trace={','.join(MUTATING)}", "-o", str(log)], job, repository, way)
    assert status == 0, log.read_text()
    counts: Counter[str] = Counter()
    steps = []
    for line in log.read_text().splitlines():
        match = re.match(r"(\w+)\(", line)
        if match is None:
            continue
        call = match.group(1)
        counts[call] += 1
        if str(repository.parent) in line and not (
            call == "openat" and "O_CREAT" not in line and "O_TRUNC" not in line
        ):
            steps.append(Step(call, counts[call]))
    return steps


def broken_run(step: Step, fault: str, job: str, repository: Path, way: str) -> int:
    """The job with one call failing; the exit status, negative for a signal."""
    inject = f"inject={step.call}:{FAULTS[fault]}:when={step.number}"
    return _traced(["-e", f"trace={step.call}", "-e", inject, "-o", os.devnull], job, repository, way)


def _traced(arguments: Sequence[str], job: str, repository: Path, way: str) -> int:
    command = ["strace", *arguments, sys.executable, "-B", str(DRIVER), job, str(repository), way]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.run(command, capture_output=True, env=environment, timeout=120).returncode


@dataclass(frozen=True)
class Outcome:
    """What became of one broken run: which tree is there after recovery, and whether it was there before."""

    tree: str
    at_once: bool


def new_world(root: Path, job: str, way: str) -> tuple[Path, dict[str, str]]:
    """A repository that ``job`` can be run on, and the two hashes it may ever have."""
    from crash_driver import make_repository

    from optimizer.durable import sha256_tree

    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    repository = make_repository(root)
    hashes = {sha256_tree(repository): "old"}
    if job == "rollback":
        run_driver("apply", repository, way)
        hashes[sha256_tree(repository)] = "new"
    else:
        twin = root.with_name(root.name + "-twin")
        shutil.rmtree(twin, ignore_errors=True)
        twin.mkdir()
        hashes[sha256_tree(_applied(make_repository(twin), way))] = "new"
    assert len(hashes) == 2
    return repository, hashes


def _applied(repository: Path, way: str) -> Path:
    run_driver("apply", repository, way)
    return repository


def run_driver(job: str, repository: Path, way: str) -> None:
    """In this process, undisturbed."""
    from crash_driver import main

    from optimizer.apply.journal import Way

    assert main(job, repository, Way(way)) == 0


def break_and_recover(root: Path, job: str, way: str, step: Step, fault: str) -> Outcome:
    """Breaks one call, recovers, and holds the tree against the only two that there may be."""
    from optimizer.durable import sha256_tree

    repository, hashes = new_world(root, job, way)
    status = broken_run(step, fault, job, repository, way)
    if fault == "SIGKILL":
        assert status == -9, (step, status)
    at_once = hashes.get(sha256_tree(repository))
    tree = recovered(repository, hashes)
    if status == 0:
        # What reports success is there, whatever went wrong behind it.
        assert tree == {"apply": "new", "rollback": "old"}[job], (step, fault)
    elif fault != "SIGKILL" and job == "apply":
        assert tree == "old", (step, fault)
    return Outcome(tree, at_once == tree)


def recovered(repository: Path, hashes: dict[str, str]) -> str:
    from optimizer.apply import recover
    from optimizer.durable import sha256_tree

    recover(repository)
    left = sorted(path.name for path in repository.parent.iterdir())
    assert left in (["models"], ["elsewhere", "models"]), left
    elsewhere = repository.parent / "elsewhere"
    assert not elsewhere.exists() or not list(elsewhere.iterdir())
    found = sha256_tree(repository)
    assert found in hashes, sorted(path.relative_to(repository).as_posix() for path in repository.rglob("*"))
    assert recover(repository) == []
    return hashes[found]


def break_recovery(root: Path, job: str, way: str, step: Step, stride: int, start: int = 0) -> int:
    """Kills the job at ``step``, then recovery at each ``stride``-th of its own calls, and recovers from that. Returns
    how many."""
    repository, hashes = new_world(root, job, way)
    assert broken_run(step, "SIGKILL", job, repository, way) == -9
    state = root.with_name(root.name + "-state")
    shutil.rmtree(state, ignore_errors=True)
    shutil.copytree(root, state, symlinks=True)
    steps = steps_of("recover", repository, way)
    chosen = steps[start::stride]
    for each in chosen:
        shutil.rmtree(root)
        shutil.copytree(state, root, symlinks=True)
        assert broken_run(each, "SIGKILL", "recover", repository, way) == -9, each
        recovered(repository, hashes)
    return len(chosen)
