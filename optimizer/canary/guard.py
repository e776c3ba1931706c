"""Takes the traffic back to the baseline when the canary's owner is gone, whatever ended it.

    python -m optimizer.canary.guard STATE

Run under a guardian, which sends SIGTERM when its owner ends. While ``armed`` lies in the state directory, that means
that nobody watches the candidate any more: everything goes to the baseline, and the second model is removed. The guard
holds a lock for as long as it lives, so that a new owner waits until it has done its work.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from pathlib import Path

ARMED_FILE = "armed"
LOCK_FILE = "guard.lock"
LOG_FILE = "guard.log"
GRACE_S = 120.0
START_TIMEOUT_S = 30.0


class Guard:
    """A context manager. :meth:`disarm` when the traffic is where it shall stay."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __enter__(self) -> Guard:
        from optimizer import processes
        from optimizer.durable import write_atomically
        from optimizer.errors import EnvironmentFailure

        _wait(self._directory, held=False, timeout_s=GRACE_S)
        write_atomically(self._directory / ARMED_FILE, "")
        self._process = processes.start(
            [sys.executable, "-m", "optimizer.canary.guard", self._directory.absolute()],
            log_path=self._directory / LOG_FILE, grace_s=GRACE_S,
        )  # fmt: skip
        if not _wait(self._directory, held=True, timeout_s=START_TIMEOUT_S):
            self.disarm()
            self._process.stop()
            raise EnvironmentFailure(
                f"the canary's guard did not start: {self._process.log_tail(3)}", where=self._directory,
                remedy="without it nobody would take the traffic back; see its log",
            )  # fmt: skip
        return self

    def disarm(self) -> None:
        (self._directory / ARMED_FILE).unlink(missing_ok=True)

    def __exit__(self, *_: object) -> None:
        self._process.stop()


def _wait(directory: Path, *, held: bool, timeout_s: float) -> bool:
    """Until somebody holds the guard's lock, or nobody does."""
    deadline = time.monotonic() + timeout_s
    while True:
        with (directory / LOCK_FILE).open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                taken = True
            else:
                taken = False
        if taken == held:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)


def main(directory: Path) -> int:
    file = (directory / LOCK_FILE).open("ab")
    # The owner tries the lock for a moment now and then.
    fcntl.flock(file, fcntl.LOCK_EX)
    signal.sigwait({signal.SIGTERM})
    if not (directory / ARMED_FILE).exists():
        return 0
    from optimizer.canary import second
    from optimizer.canary.plan import read_plan
    from optimizer.canary.proxy import proxy_of
    from optimizer.errors import OptimizerError
    from optimizer.ledger import Ledger

    plan = read_plan(directory)
    failed = 0
    try:
        proxy_of(plan, plan.candidate, directory).set_weight(0)
    except OptimizerError as error:
        print(error.message, file=sys.stderr)
        failed = 1
    try:
        second.remove(plan)
    except OptimizerError as error:
        print(error.message, file=sys.stderr)
        failed = 1
    # A new owner waits for this process, so the ledger is free; a full disk must not keep the rest from happening.
    with contextlib.suppress(OptimizerError), Ledger.open(directory) as ledger:
        if not failed:
            ledger.append("weight", "", {"weight": 0, "why": "the owner was gone: its guard took the traffic back"})
            ledger.append("second", plan.candidate.model, {"there": False})
    if not failed:
        (directory / ARMED_FILE).unlink(missing_ok=True)
    return failed


if __name__ == "__main__":
    # Before anything that takes time: a signal that comes early must wait, not end this process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.umask(0o022)
    sys.exit(main(Path(sys.argv[1])))
