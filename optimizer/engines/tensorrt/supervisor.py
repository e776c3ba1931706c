"""Runs a worker module in a process that may crash, hang or eat memory, and returns its answer or a typed failure."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optimizer import processes
from optimizer.engines.tensorrt.failures import evidence, reason_from_exit
from optimizer.records.engine import BuildFailureReason

PROJECT_ROOT = Path(__file__).resolve().parents[3]
"""What goes first on the worker's PYTHONPATH: another interpreter finds this project there."""

WORKER = "optimizer.engines.tensorrt.worker"
_POLL_S = 0.05


@dataclass(frozen=True)
class WorkerFailure:
    reason: BuildFailureReason
    message: str
    log_excerpt: str = ""
    exit_signal: int | None = None
    seconds: float = 0.0
    peak_memory_bytes: int = 0


@dataclass(frozen=True)
class WorkerAnswer:
    document: Mapping[str, Any]
    seconds: float
    peak_memory_bytes: int


@dataclass(frozen=True)
class WorkerPlace:
    """Where workers run. ``python_path`` goes behind the project on PYTHONPATH; ``gpu`` is an index or a UUID; with
    ``image``, it is that image's ``python``, in a container."""

    python: Path | str = sys.executable
    python_path: str = ""
    gpu: str | None = None
    module: str = WORKER
    image: str | None = None


def run_worker(
    place: WorkerPlace,
    request: Mapping[str, Any],
    directory: Path,
    *,
    time_limit_s: float,
    memory_limit_bytes: int | None = None,
    log_name: str = "build.log",
) -> WorkerAnswer | WorkerFailure:
    """``directory`` receives ``request.json``, ``result.json`` and the log.

    The memory limit is on resident memory of the worker and all its children, watched from outside: a limit on the
    address space would break CUDA, which reserves far more than it uses. No process is left when this returns.
    """
    request_path, result_path, log_path = directory / "request.json", directory / "result.json", directory / log_name
    try:
        # An answer that an earlier worker left here must not pass for this one.
        result_path.unlink(missing_ok=True)
        request_path.write_text(json.dumps(request, indent=1), encoding="utf-8")
    except OSError as error:
        return _unwritable(error, directory)
    command: Sequence[Path | str] = [place.python, "-m", place.module, request_path, result_path]
    if place.image is not None:
        ended = _run_in_image(place, command, request, directory, log_path, time_limit_s, memory_limit_bytes)
    else:
        ended = run_command(
            command,
            log_path,
            time_limit_s=time_limit_s,
            memory_limit_bytes=memory_limit_bytes,
            environment=_environment(place),
        )
    if isinstance(ended, WorkerFailure):
        return ended
    document = _read(result_path)
    if document is None:
        message = "the builder ended without a readable result"
        return WorkerFailure(
            BuildFailureReason.CRASH, message, ended.log_excerpt, None, ended.seconds, ended.peak_memory_bytes
        )
    peak = max(ended.peak_memory_bytes, int(document.get("peak_memory_bytes") or 0))
    if document.get("ok"):
        return WorkerAnswer(document, ended.seconds, peak)
    return WorkerFailure(
        BuildFailureReason(str(document.get("reason", "other"))),
        str(document.get("message", "")),
        "\n".join(document.get("evidence") or []) or ended.log_excerpt,
        None,
        ended.seconds,
        peak,
    )


def _run_in_image(
    place: WorkerPlace,
    command: Sequence[Path | str],
    request: Mapping[str, Any],
    directory: Path,
    log_path: Path,
    time_limit_s: float,
    memory_limit_bytes: int | None,
) -> CommandEnd | WorkerFailure:
    from optimizer.engines.tensorrt import in_image

    assert place.image is not None
    try:
        made = in_image.in_image(
            place.image, command, request, directory, project=PROJECT_ROOT, python_path=place.python_path,
            gpu=place.gpu, memory_limit_bytes=memory_limit_bytes,
        )  # fmt: skip
    except OSError as error:
        return _unwritable(error, directory)
    # The engine keeps the memory limit: what runs below this process only holds the container.
    ended = run_command(made.command, log_path, time_limit_s=time_limit_s, grace_s=in_image.GRACE_S)
    state = made.state()
    if isinstance(ended, CommandEnd):
        return replace(ended, peak_memory_bytes=state.peak_memory_bytes)
    if state.oom_killed and ended.reason is not BuildFailureReason.TIMEOUT:
        limit = f"its limit of {memory_limit_bytes >> 20} MiB" if memory_limit_bytes else "there is"
        ended = replace(
            ended, reason=BuildFailureReason.OUT_OF_MEMORY, message=f"the builder needed more memory than {limit}"
        )
    elif state.exit_code is None and ended.reason is not BuildFailureReason.TIMEOUT:
        # The container never ran, or nobody knows what became of it: the engine's fault, not the model's.
        text = log_path.read_text(encoding="utf-8", errors="replace") if log_path.exists() else ""
        said = [line for line in text.splitlines() if line.startswith("container: ")]
        message = said[-1].removeprefix("container: ") if said else ended.message
        ended = replace(ended, reason=BuildFailureReason.NOT_AVAILABLE, message=f"no container to build in: {message}")
    return replace(ended, peak_memory_bytes=state.peak_memory_bytes)


@dataclass(frozen=True)
class CommandEnd:
    """A command that ended with status 0."""

    seconds: float
    peak_memory_bytes: int
    log_excerpt: str


def run_command(
    command: Sequence[Path | str],
    log_path: Path,
    *,
    time_limit_s: float,
    memory_limit_bytes: int | None = None,
    environment: Mapping[str, str] | None = None,
    grace_s: float = 0.5,
) -> CommandEnd | WorkerFailure:
    """Any command under the same limits; every other end than status 0 is a failure."""
    started = time.monotonic()
    try:
        process = processes.start(command, env=environment, log_path=log_path, grace_s=grace_s)
    except OSError as error:
        return _unwritable(error, log_path)
    peak = 0
    killed: tuple[BuildFailureReason, str] | None = None
    oom_kills = _oom_kills()
    with process:
        status = process.poll()
        while status is None:
            peak = max(peak, processes.resident_bytes(processes.descendants(process.guardian_pid)))
            if memory_limit_bytes is not None and peak > memory_limit_bytes:
                killed = (
                    BuildFailureReason.OUT_OF_MEMORY,
                    f"the builder used {peak >> 20} MiB, more than its limit of {memory_limit_bytes >> 20} MiB",
                )
                break
            if time.monotonic() - started > time_limit_s:
                killed = (BuildFailureReason.TIMEOUT, f"the builder did not end within {time_limit_s:g} s")
                break
            time.sleep(_POLL_S)
            status = process.poll()
        ended = process.stop()
    seconds = time.monotonic() - started
    log = process.log_tail(200)
    excerpt = "\n".join(evidence(log.splitlines()))
    if killed is not None:
        return WorkerFailure(*killed, excerpt, None, seconds, peak)
    if ended == 0:
        return CommandEnd(seconds, peak, excerpt)
    reason, message, number = reason_from_exit(ended, log)
    if number == signal.SIGKILL and _oom_kills() > oom_kills:
        reason, message = BuildFailureReason.OUT_OF_MEMORY, "the kernel killed the builder for want of memory"
    return WorkerFailure(reason, message, excerpt, number, seconds, peak)


def _unwritable(error: OSError, where: Path) -> WorkerFailure:
    reason = BuildFailureReason.NO_SPACE if error.errno in (errno.ENOSPC, errno.EDQUOT) else BuildFailureReason.OTHER
    return WorkerFailure(reason, f"{error.filename or where}: {error.strerror}")


def _environment(place: WorkerPlace) -> dict[str, str]:
    environment = dict(os.environ)
    parts = [str(PROJECT_ROOT), place.python_path, environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(part for part in parts if part)
    environment["PYTHONUNBUFFERED"] = "1"
    # A crash prints the Python stack, so that the log says which call of the binding it was.
    environment["PYTHONFAULTHANDLER"] = "1"
    if place.gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = place.gpu
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return environment


def _read(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _oom_kills() -> int:
    """Kernel OOM kills so far, as this container or this machine counts them; 0 where it does not say."""
    for path in (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in path.read_text(encoding="ascii").splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0
