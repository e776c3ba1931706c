"""What Triton's python backend leaves in /tmp when its server is killed: one ``python_env_XXXXXX`` a server.

The backend makes it with mkdtemp as it is loaded, unpacks EXECUTION_ENV_PATH archives into it if there are any, and
removes it as it is unloaded (``EnvironmentManager`` in python_backend/src/pb_env.cc), which a killed server does not
come to. Its name is chance and its server holds nothing open in it, so whose it is cannot be told. But it is younger
than its server: what is older than every living server, and named by no living process, is nobody's.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from optimizer import container

TEMPORARY = Path("/tmp")
"""Where the backend makes it, whatever TMPDIR says."""
CLOCK_MARGIN_S = 60.0
"""The start of a process is known to the second, and as the clock is set now; a directory's age as it was set then."""
_NAME = re.compile(rb"python_env_[A-Za-z0-9]{6}(?![A-Za-z0-9])")
_BACKEND = b"libtriton_python.so"
_FIRST_PID_NAMESPACE = "pid:[4026531836]"


@dataclass(frozen=True)
class Living:
    """A process. ``server_since``: unix seconds, if it may be a server; ``names``: of the directories that it uses."""

    server_since: float | None
    names: frozenset[str]


def living_processes() -> Iterator[Living]:
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command, traces = _traces(process.pid)
            # Whoever loaded the backend has it mapped; the command counts where that may not be looked at.
            server = _BACKEND in traces or b"tritonserver" in command
            names = frozenset(name.decode() for name in _NAME.findall(command + traces))
            yield Living(process.create_time() if server else None, names)


def remove_dead(
    directory: Path = TEMPORARY, processes: Callable[[], Iterable[Living]] = living_processes
) -> Iterator[str]:
    """Removes this user's directories that no process can be using; one line that says how many, if any."""
    found = [path for path in sorted(directory.glob("python_env_*")) if _is_our_directory(path)]
    if not found or _others_may_use(directory):
        return
    # Looked at after the directories: a server that starts from here on makes one that is not among them.
    living = list(processes())
    used = {name for one in living for name in one.names}
    first_server = min((one.server_since for one in living if one.server_since is not None), default=float("inf"))
    removed = 0
    for path in found:
        with contextlib.suppress(OSError):
            # ctime, since unpacking an archive sets mtime back.
            if path.name not in used and path.lstat().st_ctime < first_server - CLOCK_MARGIN_S:
                shutil.rmtree(path)
                removed += 1
    if removed:
        yield f"{directory}/python_env_*: {removed} that killed Triton servers left"


def _traces(pid: int) -> tuple[bytes, bytes]:
    """A process's command, and its environment, what it has mapped and what it has open, as far as this user may see
    that."""
    directory = Path(f"/proc/{pid}")

    def read(name: str) -> bytes:
        with contextlib.suppress(OSError):
            return (directory / name).read_bytes()
        return b""

    pieces = [read("environ"), read("maps")]
    links = [directory / "exe", directory / "cwd"]
    with contextlib.suppress(OSError):
        links += (directory / "fd").iterdir()
    for link in links:
        with contextlib.suppress(OSError):
            pieces.append(os.fsencode(link.readlink()))
    return read("cmdline"), b"\n".join(pieces)


def _is_our_directory(path: Path) -> bool:
    with contextlib.suppress(OSError):
        status = path.lstat()
        name = _NAME.fullmatch(os.fsencode(path.name))
        return name is not None and stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return False


def _others_may_use(directory: Path) -> bool:
    """Whether another container may share ``directory``, with a server that is not among the processes seen here."""
    return directory.is_mount() and container.pid_namespace() != _FIRST_PID_NAMESPACE
