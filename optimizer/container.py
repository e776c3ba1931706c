"""Runs one Docker container in the foreground, so that the guardian of :mod:`optimizer.processes` can hold it.

    python -m optimizer.container SPEC.json [-- ARGUMENT...]

Started with ``processes.start(command(spec_path))``: the log is the container's, the exit status is the container's,
and SIGTERM kills and removes it. So a container ends with the optimizer that started it, also when that is killed −9:
its guardian sends the SIGTERM. Exit status 125: the engine did not do as asked; the last line says why, after
``container: ``.

The process that starts a container imports this module for :class:`Spec`, :func:`state` and the labels only; the Docker
SDK is imported by the functions that talk to the engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from optimizer.durable import write_atomically

ENGINE_FAILED = 125
STUDY_LABEL = "triton-optimizer.study"
OWNER_LABEL = "triton-optimizer.owner"
OUT_OF_MEMORY = "container: the kernel killed a process of the container for want of memory"
"""The last line of the log, if so."""
# An engine that is started again takes some seconds; one that is gone is gone.
RECONNECT_S = 3.0
REQUEST_TIMEOUT_S = 60.0
PEAK_EVERY_S = 0.2


@dataclass(frozen=True)
class Mount:
    """``source`` is a path on the engine's machine; with ``target`` empty, the container sees it under the same one."""

    source: str
    target: str = ""
    read_only: bool = True


@dataclass(frozen=True)
class Spec:
    """One container. It gets the host's network (``network``), no capabilities, and no new privileges."""

    name: str
    image: str
    command: tuple[str, ...]
    state_path: str
    """Receives what is known of the container, as JSON: see :func:`state`."""
    entrypoint: tuple[str, ...] | None = None
    """``None`` keeps the image's own."""
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    tmpfs: Mapping[str, str] = field(default_factory=dict)
    working_directory: str | None = None
    user: str | None = None
    network: str = "host"
    gpu: str | None = None
    memory_limit_bytes: int | None = None
    shm_size_bytes: int | None = None
    host_ipc: bool = False
    study_id: str = ""
    owner: str = ""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Spec:
        document = json.loads(path.read_text(encoding="utf-8"))
        for name in ("command", "entrypoint"):
            document[name] = tuple(document[name]) if document[name] is not None else None
        document["mounts"] = tuple(Mount(**mount) for mount in document["mounts"])
        return cls(**document)


def command(spec_path: Path) -> list[str | Path]:
    """Arguments may follow; they are appended to the container's own."""
    return [sys.executable, "-m", "optimizer.container", spec_path, "--"]


@dataclass(frozen=True)
class State:
    """``pid`` is the first process of the container as the engine's machine numbers it."""

    id: str = ""
    pid: int | None = None
    ended: bool = False
    exit_code: int | None = None
    oom_killed: bool = False
    peak_memory_bytes: int = 0
    problem: str = ""


def state(path: Path) -> State:
    """What is known so far of the container whose :attr:`Spec.state_path` this is."""
    try:
        return State(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return State()


# Owners


def owner(pid: int | None = None) -> str:
    """A process in words that no other process can have: boot, PID namespace, PID, start time."""
    pid = os.getpid() if pid is None else pid
    return " ".join((boot_id(), pid_namespace(), str(pid), start_time(pid) or "?"))


def owner_is_dead(text: str) -> bool | None:
    """``None`` where it cannot be told from here: another container's process, or a label of another program."""
    try:
        boot, namespace, pid, started = text.split()
    except ValueError:
        return None
    if boot != boot_id():
        return True
    if namespace != pid_namespace():
        return None
    return start_time(int(pid)) != started


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


def start_time(pid: int) -> str | None:
    """In clock ticks since boot; ``None`` for a process that is not there."""
    try:
        # The name, in parentheses, may hold blanks and parentheses itself.
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return None


def visible(pid: int | None, container_id: str) -> bool:
    """Whether ``pid`` is that container's process here: not where the engine numbers processes in another namespace."""
    if pid is None or not container_id:
        return False
    try:
        return container_id in Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii", errors="replace") or (
            # cgroup v2 with a namespace of our own hides the path; the mounts of a container name it as well.
            container_id in Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8", errors="replace")
        )
    except OSError:
        return False


# The keeper


class _Refused(Exception):
    pass


def keep(spec: Spec, arguments: Sequence[str], stop: threading.Event, output: IO[bytes]) -> int:
    """Creates, starts, follows and removes the container; returns its exit status."""
    import docker
    import requests

    lost = (requests.exceptions.RequestException, docker.errors.APIError, OSError)
    known = State()

    def remember(**facts: Any) -> None:
        nonlocal known
        known = State(**{**asdict(known), **facts})
        # A full disk must not keep a container alive.
        with contextlib.suppress(OSError):
            write_atomically(Path(spec.state_path), json.dumps(asdict(known)))

    try:
        client = docker.APIClient(**docker.utils.kwargs_from_env(), version="auto", timeout=REQUEST_TIMEOUT_S)
        identifier = _create(client, spec, arguments)
    except (docker.errors.DockerException, *lost) as error:
        raise _Refused(problem(error)) from None
    remember(id=identifier)
    try:
        try:
            # Before the start, so that nothing is missed.
            stream = client.attach(identifier, stdout=True, stderr=True, stream=True)
            client.start(identifier)
            pid = int(client.inspect_container(identifier)["State"]["Pid"]) or None
        except lost as error:
            raise _Refused(problem(error)) from None
        remember(pid=pid if visible(pid, identifier) else None)
        follower = threading.Thread(target=_copy, args=(stream, output), daemon=True)
        follower.start()
        ended = threading.Event()
        threading.Thread(target=_wait, args=(client, identifier, ended), daemon=True).start()
        peak = 0
        while not ended.wait(PEAK_EVERY_S) and not stop.is_set():
            peak = max(peak, _resident_bytes(known.pid))
        if stop.is_set():
            with contextlib.suppress(*lost):
                client.kill(identifier)
        final = _final_state(client, identifier, lost)
        follower.join(2.0)
        if final is None:
            remember(ended=True, peak_memory_bytes=peak, problem="the Docker engine is gone")
            raise _Refused("the Docker engine is gone: its container is left to `doctor --clean`")
        killed = bool(final["OOMKilled"]) or "oom" in _events(client, identifier, lost)
        if killed and not stop.is_set():
            # In the log as well: that can still be read when the guardian has removed the state's directory.
            output.write(f"{OUT_OF_MEMORY}\n".encode())
            output.flush()
        remember(
            ended=True,
            exit_code=int(final["ExitCode"]),
            oom_killed=killed,
            peak_memory_bytes=peak,
            problem=str(final.get("Error") or ""),
        )
        return int(final["ExitCode"])
    finally:
        try:
            client.remove_container(identifier, force=True, v=True)
        except docker.errors.NotFound:
            pass
        except lost:
            # No engine to ask: where the process can be seen from here it is ended by hand.
            if visible(known.pid, identifier):
                with contextlib.suppress(OSError):
                    os.kill(known.pid or 0, signal.SIGKILL)


def _create(client: Any, spec: Spec, arguments: Sequence[str]) -> str:
    from docker.types import DeviceRequest, LogConfig, Ulimit
    from docker.types import Mount as DockerMount

    requests = [DeviceRequest(device_ids=[spec.gpu], capabilities=[["gpu"]])] if spec.gpu is not None else []
    host = client.create_host_config(
        network_mode=spec.network,
        mounts=[
            DockerMount(mount.target or mount.source, mount.source, type="bind", read_only=mount.read_only)
            for mount in spec.mounts
        ],
        tmpfs=dict(spec.tmpfs),
        mem_limit=spec.memory_limit_bytes,
        # The same: no swap, which would turn a model that does not fit into one that is slow.
        memswap_limit=spec.memory_limit_bytes,
        shm_size=spec.shm_size_bytes,
        ipc_mode="host" if spec.host_ipc else None,
        device_requests=requests,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        # As NVIDIA recommends for CUDA: pinned memory, and room for the stacks of its threads.
        ulimits=[Ulimit(name="memlock", soft=-1, hard=-1), Ulimit(name="stack", soft=67108864, hard=67108864)]
        if spec.gpu is not None
        else None,
        # The log is this process's output; the engine need not keep a second one.
        log_config=LogConfig(type=LogConfig.types.NONE),
    )
    created = client.create_container(
        spec.image,
        [*spec.command, *arguments],
        name=spec.name,
        entrypoint=list(spec.entrypoint) if spec.entrypoint is not None else None,
        environment=dict(spec.environment),
        user=spec.user,
        working_dir=spec.working_directory,
        labels={STUDY_LABEL: spec.study_id, OWNER_LABEL: spec.owner},
        host_config=host,
        # The image's own would probe ports that this server does not have.
        healthcheck={"test": ["NONE"]},
    )
    return str(created["Id"])


def _copy(stream: Any, output: IO[bytes]) -> None:
    # A connection that breaks ends the log, not this process.
    with contextlib.suppress(Exception):
        for chunk in stream:
            output.write(chunk)
            output.flush()


def _wait(client: Any, identifier: str, ended: threading.Event) -> None:
    with contextlib.suppress(Exception):
        client.wait(identifier, timeout=None)
    ended.set()


def _final_state(client: Any, identifier: str, lost: tuple[type[Exception], ...]) -> Mapping[str, Any] | None:
    """The state of the ended container; ``None`` when no engine answers any more."""
    deadline = time.monotonic() + RECONNECT_S
    while time.monotonic() < deadline:
        try:
            found: Mapping[str, Any] = client.inspect_container(identifier)["State"]
        except lost:
            time.sleep(0.2)
            continue
        if not found["Running"]:
            return found
        # The connection was lost, not the container: nobody follows it any more, so it goes.
        with contextlib.suppress(*lost):
            client.kill(identifier)
        time.sleep(0.05)
    return None


def _events(client: Any, identifier: str, lost: tuple[type[Exception], ...]) -> set[str]:
    """What happened to it. OOMKilled tells of the first process only on some releases, the event of each."""
    found: set[str] = set()
    with contextlib.suppress(*lost):
        since = int(time.time()) - 24 * 3600
        for event in client.events(
            since=since, until=int(time.time()) + 1, filters={"container": identifier}, decode=True
        ):
            found.add(str(event.get("Action", "")))
    return found


def _resident_bytes(pid: int | None) -> int:
    if pid is None:
        return 0
    from optimizer.processes import descendants, resident_bytes

    return resident_bytes((pid, *descendants(pid)))


def problem(error: BaseException) -> str:
    """One line of what an engine, or the way to it, says."""
    text = str(getattr(error, "explanation", None) or error).strip()
    lines = text.splitlines()
    return lines[0] if lines else type(error).__name__


def main(arguments: list[str]) -> int:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    extra = arguments[2:] if arguments[1:2] == ["--"] else arguments[1:]
    try:
        return keep(Spec.read(Path(arguments[0])), extra, stop, sys.stdout.buffer)
    except _Refused as refused:
        print(f"container: {refused}", file=sys.stderr, flush=True)
        return ENGINE_FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
