"""The owner's end of one load process."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from optimizer import processes
from optimizer.errors import EnvironmentFailure
from optimizer.load import worker

T = TypeVar("T")
CHUNK_BYTES = 1 << 20
PATIENCE_S = 1.0


class WorkerProcess:
    """Started at once, under a guardian: it ends with its owner, whatever ends that. ``stop`` is idempotent.

    ``remove`` are paths, globs allowed, that are deleted when it ends (shared-memory files).
    """

    def __init__(self, log_path: Path, *, remove: Sequence[str] = ()) -> None:
        self._log_path = log_path
        source = str(Path(__file__).parents[2])
        search_path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        self._guarded = processes.start(
            [sys.executable, "-m", worker.__name__],
            env={**os.environ, "PYTHONPATH": search_path},
            log_path=log_path,
            remove=remove,
            grace_s=6.0,
            pipes=True,
        )
        assert self._guarded.stdin is not None
        assert self._guarded.stdout is not None
        self._stdin = self._guarded.stdin
        self.descriptor = self._guarded.stdout.fileno()
        os.set_blocking(self.descriptor, False)

    @property
    def pid(self) -> int | None:
        return self._guarded.pid

    def write(self, command: object) -> None:
        data = pickle.dumps(command, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            self._stdin.write(len(data).to_bytes(8, "little") + data)
            self._stdin.flush()
        except OSError:
            raise self._died() from None

    def read(self, deadline: float, kind: type[T]) -> T:
        """The next answer, by ``time.monotonic()`` ``deadline``. Raises :class:`EnvironmentFailure`."""
        size = int.from_bytes(self._read_exactly(8, deadline), "little")
        answer = pickle.loads(self._read_exactly(size, deadline))
        if not isinstance(answer, kind):
            raise EnvironmentFailure(
                f"a load process answered {answer}", where=self._log_path, remedy="see the file for what happened"
            )
        return answer

    def ask_to_end(self) -> None:
        """Returns at once; ``stop`` waits."""
        with contextlib.suppress(OSError):
            self._stdin.close()

    def stop(self) -> None:
        # The process ends with its stdin, and tidies up at the server; the guardian sees to it if it does not.
        self.ask_to_end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guarded.wait(PATIENCE_S)
        self._guarded.stop()

    def _read_exactly(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self.descriptor], [], [], left_s)[0]:
                self._guarded.stop()
                raise EnvironmentFailure(
                    "a load process did not answer in time and was ended",
                    where=self._log_path,
                    remedy="see whether the machine is overloaded or out of memory",
                )
            chunk = os.read(self.descriptor, min(CHUNK_BYTES, size - len(data)))
            if not chunk:
                raise self._died()
            data += chunk
        return bytes(data)

    def _died(self) -> EnvironmentFailure:
        status = self._guarded.stop()
        tail = self._guarded.log_tail(3).strip().replace("\n", " | ")
        return EnvironmentFailure(
            f"a load process ended unexpectedly with status {status}" + (f": {tail}" if tail else ""),
            where=self._log_path,
            remedy="see the file for what happened; 137 means killed, often for want of memory",
        )
