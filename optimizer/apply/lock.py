"""One writer at a time: ``.triton-optimizer.lock`` in the repository's root, with who holds it and since when.

A file and not a directory: Triton takes every sub-directory of a repository for a model, and reads no files there. The
kernel releases the lock whatever ends the process; the file goes with the release, so that a repository that nobody
writes to is exactly what it was.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from types import TracebackType

from optimizer.errors import WriteBackRefused

LOCK_FILE = ".triton-optimizer.lock"
PATIENCE_S = 1.0
"""How long a lock that is taken is asked for again: whoever only looks holds it for a moment."""


class RepositoryLock:
    """Use as a context manager. Raises :class:`WriteBackRefused` naming the holder, ``OSError`` where the repository
    cannot be written."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._path = repository / LOCK_FILE
        self._descriptor = -1

    def __enter__(self) -> RepositoryLock:
        deadline = time.monotonic() + PATIENCE_S
        while not self._acquired():
            if time.monotonic() > deadline:
                raise WriteBackRefused(
                    f"another process is writing: {_owner(self._path) or 'unknown'}",
                    where=self._repository,
                    remedy="wait until it ends, or stop it: what it began is undone at the next command",
                )
            time.sleep(0.02)
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(_self()).encode() + b"\n", 0)
        except OSError:
            # A full disk must not keep anyone from recovering: without its owner the lock still holds.
            pass
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Unlinked while it is held: whoever waits on this inode finds that the path has another one, and tries again.
        # A file that cannot be unlinked is no lock: it is removed by the next command.
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)
        self._descriptor = -1

    def _acquired(self) -> bool:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine, there = os.fstat(descriptor), self._path.lstat()
        except (BlockingIOError, FileNotFoundError):
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        if (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True


def writer_of(repository: Path) -> str | None:
    """Who holds the lock, in words; ``None`` where nobody does. Changes nothing."""
    path = repository / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner(path) or "unknown"
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def _self() -> dict[str, object]:
    return {"pid": os.getpid(), "boot": boot_id(), "host": socket.gethostname(), "since": round(time.time(), 3)}


def _owner(path: Path) -> str | None:
    try:
        owner = json.loads(path.read_bytes())
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(owner["since"])))
        boot = "" if owner["boot"] == boot_id() else ", before the last boot"
        return f"process {owner['pid']} on {owner['host']}, since {since}{boot}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def boot_id() -> str:
    """Changes with every boot: a pid alone says little after one."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""
