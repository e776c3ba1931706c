"""Removes what dead studies left behind: containers, private directories, regions of shared memory, and what their
servers left in /tmp.

Normally nothing is: a guardian cleans up when its optimizer is killed. Only where the guardian was killed as well, the
engine was gone at that moment, or the machine lost power is there something to do. What belongs to a living process, or
to one that cannot be seen from here (in another container), stays.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from optimizer import container
from optimizer.errors import EnvironmentFailure
from optimizer.sandbox import engine
from optimizer.sandbox._backend_directories import remove_dead
from optimizer.sandbox._local import NOTE

SHARED_MEMORY = Path("/dev/shm")
# The names that _local.PrivateDirectory gives: the owner's PID, and chance.
_DIRECTORY = re.compile(r"sandbox-(?P<pid>\d+)-[0-9a-f]{8}\Z")
_REGION = re.compile(r"triton-optimizer-(?P<token>(?P<pid>\d+)-[0-9a-f]{8})-")
# The name of the load generator's, which ends as its guardian's glob does.
_LOAD_REGION = re.compile(r"triton_optimizer_load_(?P<pid>\d+)_[0-9a-f]{8}")
_BENCHMARK = re.compile(r"triton-optimizer-bench-(?P<pid>\d+)-")
# A study's directory below the current one, and "sandbox" in it.
DEPTH = 5


def remove_leftovers(root: Path | None = None) -> list[str]:
    """One line for each thing removed, and for each that could not be.

    Directories are those that a note in /dev/shm names, which is there until the machine is started again, and those
    below ``root`` (the current directory if not given).
    """
    return [
        *_containers(),
        *_noted_directories(),
        *_directories_below(Path.cwd() if root is None else root),
        *_benchmarks(Path(tempfile.gettempdir())),
        *remove_dead(),
        *_regions(),
    ]


def benchmark_prefix() -> str:
    """Of a benchmark's directory below the temporary one: it says whose it is."""
    return f"triton-optimizer-bench-{os.getpid()}-"


def _benchmarks(directory: Path) -> Iterator[str]:
    for path in sorted(directory.glob("triton-optimizer-bench-*")):
        match = _BENCHMARK.match(path.name)
        if match and path.is_dir() and not path.is_symlink() and not Path(f"/proc/{match['pid']}").exists():
            shutil.rmtree(path, ignore_errors=True)
            yield f"{path} of benchmark process {match['pid']}"


def _containers() -> Iterator[str]:
    try:
        client = engine.connect()
    except EnvironmentFailure:
        # No engine, no containers.
        return
    import docker
    import requests

    try:
        found = client.containers.list(all=True, filters={"label": container.OWNER_LABEL}, ignore_removed=True)
        for one in found:
            dead = container.owner_is_dead(one.labels.get(container.OWNER_LABEL, ""))
            what = f"container {one.name} ({one.status}) of study {one.labels.get(container.STUDY_LABEL) or 'unknown'}"
            if dead:
                try:
                    one.remove(force=True, v=True)
                    yield what
                except docker.errors.NotFound:
                    continue
                except docker.errors.APIError as error:
                    yield f"nothing: {what} stays: {container.problem(error)}"
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        yield f"nothing of the Docker engine: {container.problem(error)}"
    finally:
        client.close()


def _noted_directories() -> Iterator[str]:
    for note in sorted(SHARED_MEMORY.glob(f"triton-optimizer-*-{NOTE}")):
        with contextlib.suppress(OSError, ValueError):
            owner, directory = note.read_text(encoding="utf-8").splitlines()
            path = Path(directory)
            # Only what has the name of a private directory may be removed, whatever the note says.
            if container.owner_is_dead(owner) and _DIRECTORY.match(path.name) and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
                yield f"directory {path}"


def _directories_below(root: Path) -> Iterator[str]:
    for directory, names, _ in os.walk(root):
        depth = len(Path(directory).relative_to(root).parts)
        for name in list(names):
            match = _DIRECTORY.match(name)
            if match and (Path(directory) / name / "models").is_dir():
                names.remove(name)
                if not _exists(int(match["pid"])):
                    shutil.rmtree(Path(directory) / name, ignore_errors=True)
                    yield f"directory {Path(directory) / name}"
        names[:] = [name for name in names if depth < DEPTH and not name.startswith(".")]


def _regions() -> Iterator[str]:
    owners = dict(_noted_owners())
    for path in sorted(SHARED_MEMORY.glob("triton-optimizer-*")):
        match = _REGION.match(path.name)
        if match is None:
            continue
        owner = owners.get(match["token"])
        dead = container.owner_is_dead(owner) if owner else not _exists(int(match["pid"]))
        if dead:
            with contextlib.suppress(OSError):
                path.unlink()
                if not path.name.endswith(NOTE):
                    yield f"shared memory {path.name}"
    for path in sorted(SHARED_MEMORY.glob("triton_optimizer_load_*")):
        match = _LOAD_REGION.match(path.name)
        if match and not _exists(int(match["pid"])):
            with contextlib.suppress(OSError):
                path.unlink()
                yield f"shared memory {path.name}"


def _noted_owners() -> Iterator[tuple[str, str]]:
    for note in SHARED_MEMORY.glob(f"triton-optimizer-*-{NOTE}"):
        match = _REGION.match(note.name)
        with contextlib.suppress(OSError, IndexError):
            if match:
                yield match["token"], note.read_text(encoding="utf-8").splitlines()[0]


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
