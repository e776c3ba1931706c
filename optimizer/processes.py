"""The one place that starts processes. Whatever is started here ends with its owner, also when that is killed −9.

Imports the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, overload

GUARDIAN = Path(__file__).with_name("guardian.py")


class GuardedProcess:
    """A command under its guardian. ``stop()`` is idempotent; leaving the ``with`` block stops it."""

    def __init__(self, process: subprocess.Popen[bytes], control: int, log_path: Path | None) -> None:
        self._process = process
        self._control: int | None = control
        self.log_path = log_path
        self.started_at = time.monotonic()

    @property
    def guardian_pid(self) -> int:
        return self._process.pid

    @property
    def pid(self) -> int | None:
        """The command's own pid (the guardian's first child), or ``None`` once it has ended."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text(encoding="ascii")
            return int(text.split()[0])
        return None

    @property
    def stdin(self) -> IO[bytes] | None:
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes] | None:
        return self._process.stdout

    def poll(self) -> int | None:
        """Exit status (128 + signal for a signal), or ``None`` while running."""
        return as_shell(self._process.poll())

    def wait(self, timeout_s: float | None = None) -> int:
        """Raises ``subprocess.TimeoutExpired``."""
        return as_shell(self._process.wait(timeout_s))

    def stop(self) -> int:
        """Ends the command and all its descendants; returns the exit status."""
        if self._control is not None:
            # The byte says it also where a forked child of the owner still holds the pipe open.
            with contextlib.suppress(OSError):
                os.write(self._control, b"x")
            os.close(self._control)
            self._control = None
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return as_shell(self._process.wait())

    def log_tail(self, lines: int = 40) -> str:
        if self.log_path is None or not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> GuardedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log_path: Path | None = None,
    remove: Sequence[Path | str] = (),
    grace_s: float = 5.0,
    pipes: bool = False,
    memory_limit_bytes: int | None = None,
) -> GuardedProcess:
    """Starts ``command`` under a guardian.

    ``log_path`` receives stdout and stderr (with ``pipes``, stdin and stdout are pipes to the owner and only stderr
    is logged). ``remove`` are paths, globs allowed, that the guardian deletes last. ``memory_limit_bytes`` limits the
    address space of the command (RLIMIT_AS), not of the guardian. Raises ``OSError`` when the guardian itself cannot
    be started; a command that cannot be started exits with 127.
    """
    inner = [str(word) for word in command]
    if memory_limit_bytes is not None:
        inner = [sys.executable, "-I", "-S", str(Path(__file__)), str(memory_limit_bytes), *inner]
    with contextlib.ExitStack() as stack:
        log: IO[bytes] | int = subprocess.DEVNULL
        if log_path is not None:
            log = stack.enter_context(log_path.open("ab"))
        read_end, write_end = os.pipe()
        arguments: list[str] = [sys.executable, "-I", "-S", str(GUARDIAN), str(read_end), str(grace_s)]
        for path in remove:
            arguments += ["--remove", str(path)]
        arguments += ["--", *inner]
        try:
            process = subprocess.Popen(
                arguments,
                env=dict(env) if env is not None else None,
                cwd=cwd,
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else log,
                stderr=log if pipes else subprocess.STDOUT,
                pass_fds=(read_end,),
                start_new_session=True,
            )
        except OSError:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
    return GuardedProcess(process, write_end, log_path)


@overload
def as_shell(status: int) -> int: ...
@overload
def as_shell(status: None) -> None: ...
def as_shell(status: int | None) -> int | None:
    """128 + signal, where the guardian itself was killed, as it says of the command."""
    return 128 - status if status is not None and status < 0 else status


def run(command: Sequence[str | Path], *, timeout_s: float, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Runs a short command to its end: exit status and stdout with stderr. Raises ``subprocess.TimeoutExpired``."""
    done = subprocess.run(
        [str(word) for word in command],
        env=dict(env) if env is not None else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_s,
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace")


def descendants(pid: int) -> Iterator[int]:
    """All processes below ``pid``, from /proc; those that end while one looks are left out."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for word in task.read_text(encoding="ascii").split():
                yield int(word)
                yield from descendants(int(word))


def status_bytes(pid: int | str, *fields: str) -> int:
    """The sum of memory ``fields`` (``RssAnon`` …) of ``/proc/pid/status``; 0 where the process is not there."""
    total = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.partition(":")[0] in fields:
                total += int(line.split()[1]) << 10
    return total


def resident_bytes(pids: Iterable[int]) -> int:
    """Private memory and shared memory that the processes touched. File mappings (TensorRT's libraries) can be dropped
    by the kernel and are not counted."""
    return sum(status_bytes(pid, "RssAnon", "RssShmem") for pid in pids)


def _limit_and_become(arguments: Sequence[str]) -> None:
    limit = int(arguments[0])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        os.execvp(arguments[1], list(arguments[1:]))
    except OSError as error:
        print(f"cannot start {arguments[1]}: {error.strerror}", file=sys.stderr)
        os._exit(127)


if __name__ == "__main__":
    _limit_and_become(sys.argv[1:])
