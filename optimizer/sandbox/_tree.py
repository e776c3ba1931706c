"""Memory, ports and stubs of a server's process tree, from /proc."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from optimizer.processes import descendants


def tree_bytes(pid: int) -> int | None:
    """Proportional set size of ``pid`` and everything below it: a page that n processes share counts 1/n in each.

    The server and its stubs share tensors and libraries, so the sum of resident sizes would count them several times.
    ``None`` when not even the first process can be read.
    """
    own = process_bytes(pid)
    if own is None:
        return None
    return own + sum(process_bytes(child) or 0 for child in descendants(pid))


def process_bytes(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        match = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
        if match:
            return int(match[1]) * 1024
    except OSError:
        pass
    # Not allowed or not there (old kernels): the resident set.
    import psutil

    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return None


def listening_ports(pid: int) -> set[int]:
    """TCP ports on which ``pid`` or a process below it listens; those that may not be looked at are left out."""
    import psutil

    ports = set()
    for member in (pid, *descendants(pid)):
        with contextlib.suppress(psutil.Error):
            for connection in psutil.Process(member).net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    ports.add(connection.laddr.port)
    return ports


def stubs(server_pid: int, model: str) -> list[int]:
    """Python backend stubs that belong to ``model``: the instance name, ``<model>_<group>_<n>``, is an argument."""
    instance = re.compile(re.escape(model) + r"(_\d+)*\Z")
    found = []
    for pid in descendants(server_pid):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            # Started directly, or through a shell with the whole command as one word.
            words = [part for word in words for part in word.split()]
            if any("triton_python_backend_stub" in word for word in words) and any(map(instance.match, words)):
                found.append(pid)
    return found
