"""A sandbox whose server is a process of this machine: what the launchers ``embedded`` and ``process`` share."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from optimizer import container, processes
from optimizer.errors import EnvironmentFailure, InputError
from optimizer.records.deployment import Deployment, LoadFailure, ServerInfo
from optimizer.sandbox import _messages, _repository, _tree
from optimizer.sandbox._base import SandboxOptions
from optimizer.triton.client import TritonClient, TritonError

START_ATTEMPTS = 4
UNLOAD_TIMEOUT_S = 30.0
# For a server whose sockets may not be looked at.
ALL_STARTED_S = 2.0
LAST_WORDS_S = 5.0
LOST_STUB_S = 4.0
LOG_BYTES = 1 << 20
# Nothing of a sandbox is worth a graceful end, which takes a second for every instance.
GRACE_S = 0.5
NOTE = "directory"


@dataclass(frozen=True)
class ServerCommand:
    """How to start a server in a private directory that exists already."""

    executable: Path
    arguments: Sequence[str]
    environment: Mapping[str, str]
    launcher: str
    python_backends: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    copy_files: bool = False
    """Where the server cannot follow links out of its private directory."""
    limits_itself: bool = False
    """The memory limit of the options is kept by other means than one on the address space."""
    grace_s: float = GRACE_S
    address: str = ""
    """What failures name, where that is not the executable."""

    @property
    def where(self) -> str:
        return self.address or str(self.executable)


def check_extra(extra: Mapping[str, str], known: Sequence[str]) -> None:
    """Raises :class:`InputError` for a key that the launcher does not know, naming the nearest."""
    for key in extra:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            raise InputError(
                "unknown setting of this sandbox",
                field=key,
                remedy=f"did you mean {near[0]!r}?" if near else "use one of: " + ", ".join(known),
            )


def with_extra(options: SandboxOptions, defaults: Mapping[str, str], known: Sequence[str]) -> SandboxOptions:
    """The launcher's own settings below those of the options. Raises :class:`InputError`."""
    check_extra(options.extra, known)
    return replace(options, extra={**defaults, **options.extra})


class PrivateDirectory:
    """``<workdir>/sandbox-<token>``; the token also names the server and its shared memory.

    A note in /dev/shm says where it is and whose, for ``doctor --clean``: a guardian that was itself killed −9 leaves
    both behind. It goes with the shared memory, whose prefix it has.
    """

    def __init__(self, workdir: Path) -> None:
        if not workdir.is_dir():
            raise InputError("not a directory", where=workdir, field="workdir", remedy="name an existing directory")
        self.token = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.path = safe_directory(workdir) / f"sandbox-{self.token}"
        self.path.mkdir()
        (self.path / "models").mkdir()
        self._note = Path(f"/dev/shm/{self.shared_memory_prefix}{NOTE}")
        with contextlib.suppress(OSError):
            self._note.write_text(f"{container.owner()}\n{self.path}\n", encoding="utf-8")

    @property
    def shared_memory_prefix(self) -> str:
        return f"triton-optimizer-{self.token}-"

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._note.unlink(missing_ok=True)


def safe_directory(workdir: Path) -> Path:
    """``workdir``, absolute as Triton, its stubs and their links need it; or the directory for temporary files.

    Triton's python backend starts its stubs by a line for the shell with no quotes: with a blank in the path the stub
    gets another one, and the load never ends.
    """
    for directory in (workdir.resolve(), Path(tempfile.gettempdir()).resolve()):
        if re.fullmatch(r"[\w./+@,=-]+", str(directory)):
            return directory
    raise InputError(
        "Triton cannot start models from a path with blanks or characters that mean something to a shell",
        where=workdir,
        field="workdir",
        remedy="name a plain path with --study, or set TMPDIR to one",
    )


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            probe = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            probe.bind(("127.0.0.1", 0))
            ports.append(int(probe.getsockname()[1]))
        return ports


def server_arguments(private: PrivateDirectory, ports: Sequence[int], python_backends: Sequence[str] = ()) -> list[str]:
    """Everything that makes a server a sandbox; the launcher adds where its backends are."""
    http, grpc, metrics = ports
    return [
        f"--id={private.token}",
        f"--model-repository={private.path / 'models'}",
        "--model-control-mode=explicit",
        "--disable-auto-complete-config",
        # A candidate that fails to load does not make the server unready.
        "--strict-readiness=false",
        "--allow-http=true",
        "--http-address=127.0.0.1",
        f"--http-port={http}",
        "--allow-grpc=true",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={grpc}",
        "--allow-metrics=true",
        "--metrics-address=127.0.0.1",
        f"--metrics-port={metrics}",
        "--exit-timeout-secs=1",
        "--log-verbose=0",
        # A python-based backend reads the settings under its own name, not those of "python".
        *(
            f"--backend-config={name},shm-region-prefix-name={private.shared_memory_prefix}"
            for name in ("python", *python_backends)
        ),
    ]


def start(
    options: SandboxOptions,
    command: Callable[[PrivateDirectory], ServerCommand],
    ports: Callable[[int], Sequence[int]] = free_ports,
    kind: type[LocalSandbox] | None = None,
) -> LocalSandbox:
    """Starts a server in a private directory that ``command`` fills; once more when a port was taken in between.

    Leaves nothing behind when it fails. Raises :class:`EnvironmentFailure` with the server's root error line.
    """
    attempt = 1
    while True:
        private = PrivateDirectory(options.workdir)
        try:
            made = command(private)
            sandbox = (kind or LocalSandbox)(private, options, made, ports(3))
        except BaseException:
            private.remove()
            raise
        try:
            sandbox.wait_ready()
        except _PortTaken as taken:
            sandbox.close()
            if attempt == START_ATTEMPTS:
                raise EnvironmentFailure(
                    f"no free port after {START_ATTEMPTS} attempts: {taken}",
                    where=made.where,
                    remedy="free ports on 127.0.0.1, and try again",
                ) from None
            attempt += 1
        except BaseException:
            sandbox.close()
            raise
        else:
            return sandbox


class _PortTaken(Exception):
    pass


class LocalSandbox:
    """One server process below its guardian, its private repository, and a gRPC client."""

    def __init__(
        self, private: PrivateDirectory, options: SandboxOptions, command: ServerCommand, ports: Sequence[int]
    ) -> None:
        self._private = private
        self._options = options
        self._command = command
        self._ports = ports
        self._log_path = private.path / "server.log"
        self._log_path.touch()
        # The guardian removes the directory as soon as the server has ended; an open file can still be read.
        self._log = self._log_path.open("rb")
        self._log_lock = threading.Lock()
        self._closed_log: str | None = None
        self._locks: dict[str, threading.Lock] = {}
        self._locks_guard = threading.Lock()
        self._client = TritonClient(f"127.0.0.1:{ports[1]}", timeout_s=30.0)
        self._process = processes.start(
            [command.executable, *command.arguments, *server_arguments(private, ports, command.python_backends)],
            env=command.environment,
            cwd=private.path,
            log_path=self._log_path,
            # The guardian removes these also when this process is killed: first the memory, then the directory.
            remove=(f"/dev/shm/{private.shared_memory_prefix}*", private.path),
            grace_s=command.grace_s,
            # CUDA reserves address space far beyond what it uses, so a limit on it would only break the GPU.
            memory_limit_bytes=None if command.limits_itself or options.gpu is not None else options.memory_limit_bytes,
        )
        self._version = ""
        self._stubs: dict[str, int] = {}
        self._stuck: set[str] = set()
        self._unload_timeout_s = float(options.extra.get("unload_timeout_s", UNLOAD_TIMEOUT_S))

    # Start

    def wait_ready(self) -> None:
        deadline = time.monotonic() + self._options.ready_timeout_s
        ready_since: float | None = None
        while True:
            if self._process.poll() is not None:
                raise self._start_failure(f"the server ended with status {self._process.poll()}")
            # gRPC answers a moment before HTTP and metrics, whose ports may turn out to be taken.
            if self._client.server_ready():
                ready_since = ready_since or time.monotonic()
                if self._listens() or time.monotonic() - ready_since > ALL_STARTED_S:
                    break
            if time.monotonic() > deadline:
                raise self._start_failure(f"the server was not ready after {self._options.ready_timeout_s:g} s")
            time.sleep(0.02)
        identity, self._version = self._client.server_identity()
        if identity != self._private.token:
            raise _PortTaken(f"port {self._ports[1]} is served by {identity!r}")

    def _listens(self) -> bool:
        """All three ports belong to this server's processes; the log says "Started" before it knows."""
        pid = self.server_pid()
        return pid is not None and set(self._ports) <= _tree.listening_ports(pid)

    def _start_failure(self, what: str) -> Exception:
        log = self._read_log(0)
        if re.search(r"ddress already in use|[Ff]ailed to (start|bind).*port|Socket '.*' already in use", log):
            return _PortTaken(_messages.root_error(_messages.error_lines(log)) or "address already in use")
        cause = _messages.root_error(_messages.error_lines(log))
        if not cause:
            lines = [line.strip() for line in log.splitlines() if line.strip()]
            cause = lines[-1] if lines else "it wrote no log"
        remedy = None
        if "cannot open shared object" in cause:
            remedy = "install the missing library, or repair the installation of the server"
        elif self._options.memory_limit_bytes is not None and self._options.gpu is None:
            remedy = "raise the sandbox's memory limit: the server alone reserves about 1.3 GB of address space"
        elif "not ready after" in what:
            remedy = "raise the sandbox's ready timeout, or look for what keeps this machine busy"
        return EnvironmentFailure(f"{what}: {cause}", where=self._command.where, remedy=remedy)

    # Sandbox

    @property
    def info(self) -> ServerInfo:
        http, grpc, metrics = self._ports
        return ServerInfo(
            launcher=self._command.launcher,
            grpc_url=f"127.0.0.1:{grpc}",
            http_url=f"127.0.0.1:{http}",
            metrics_url=f"127.0.0.1:{metrics}",
            version=self._version,
            pid=self.server_pid(),
            python_backends=self._command.python_backends,
            facts={"triton": self._version, **self._command.facts},
        )

    @property
    def directory(self) -> Path:
        """The private directory; everything in it goes when the sandbox closes."""
        return self._private.path

    def load(self, deployment: Deployment) -> LoadFailure | None:
        if not _repository.usable(deployment.name):
            return unusable(deployment.name)
        with self._lock(deployment.name):
            self._require_alive()
            if deployment.name in self._stuck:
                raise EnvironmentFailure(
                    f"the server still holds an earlier model {deployment.name}, whose process died",
                    where=self._command.where,
                    remedy="start a new sandbox, or use another name",
                )
            log_start = self._log_size()
            try:
                self._unload(deployment.name)
                _repository.write(self._private.path / "models", deployment, copy=self._command.copy_files)
            except InputError as error:
                return LoadFailure(deployment.name, "invalid_config", error.message)
            try:
                self._client.load(deployment.name, timeout_s=self._options.load_timeout_s)
            except TritonError as error:
                failure = self._load_failure(deployment.name, error, log_start)
            else:
                self._stubs[deployment.name] = len(self._live_stubs(deployment.name))
                return None
            with contextlib.suppress(TritonError, EnvironmentFailure):
                self._unload(deployment.name)
            return failure

    def unload(self, name: str) -> None:
        if _repository.usable(name):
            with self._lock(name):
                self._require_alive()
                self._unload(name)

    def server_pid(self) -> int | None:
        """The server's process, if it can be seen from here."""
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None and self._client.server_live()

    def memory_bytes(self) -> int | None:
        pid = self.server_pid()
        return _tree.tree_bytes(pid) if pid is not None else None

    def log_tail(self, lines: int = 40) -> str:
        if self._closed_log is not None:
            return tail(self._closed_log, lines)
        return tail(self._read_log(), lines)

    def close(self) -> None:
        if self._closed_log is None:
            self._closed_log = tail(self._read_log(), 200)
            self._client.close()
            self._process.stop()
            self._log.close()
            self._private.remove()

    def __enter__(self) -> LocalSandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Inside

    def _lock(self, name: str) -> threading.Lock:
        with self._locks_guard:
            return self._locks.setdefault(name, threading.Lock())

    def _require_alive(self) -> None:
        if self._closed_log is not None:
            raise EnvironmentFailure(
                "this sandbox is closed", where=self.info.grpc_url, remedy="this is a bug: use it inside its with block"
            )
        # A server that was just killed stops answering a moment before its guardian has cleaned up after it.
        if self._process.poll() is None and not self._client.server_live():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LAST_WORDS_S)
        status = self._process.poll()
        if status is not None:
            raise EnvironmentFailure(
                f"the sandbox's server is gone (exit status {status}): {self._last_words()}",
                where=self._command.where,
                remedy="start a new sandbox",
            )

    def _unload(self, name: str) -> None:
        directory = self._private.path / "models" / name
        if not directory.exists():
            return
        # Without its process a python-based model cannot finish what it was doing: Triton waits for ever.
        crashed = self._stubs.get(name, 0) > len(self._live_stubs(name))
        if not self._unloaded(name, LOST_STUB_S if crashed else self._unload_timeout_s):
            self._end_stubs(name)
            if not self._unloaded(name, LOST_STUB_S):
                # Its memory went with its processes; the name is lost to this server.
                self._stuck.add(name)
        self._stubs.pop(name, None)
        _repository.remove(directory.parent, name)

    def _unloaded(self, name: str, timeout_s: float) -> bool:
        try:
            self._client.unload(name, timeout_s=timeout_s)
        except TritonError as error:
            self._require_alive()
            # Anything else: the server does not know it, since it never loaded.
            return error.status != "DEADLINE_EXCEEDED"
        return True

    def _live_stubs(self, name: str) -> list[int]:
        pid = self.server_pid()
        return _tree.stubs(pid, name) if pid is not None else []

    def _end_stubs(self, name: str) -> None:
        for pid in self._live_stubs(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _load_failure(self, name: str, error: TritonError, log_start: int) -> LoadFailure:
        # A server that was killed closes the connection a moment before its exit status can be read.
        if error.status == "UNAVAILABLE":
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LAST_WORDS_S)
        excerpt = self._read_log(log_start)
        if self._process.poll() is not None:
            return LoadFailure(name, "server_died", self._last_words(excerpt), tail(excerpt))
        if error.status == "DEADLINE_EXCEEDED":
            self._end_stubs(name)
            return LoadFailure(
                name,
                "timeout",
                f"not loaded after {self._options.load_timeout_s:g} s",
                tail(excerpt),
            )
        logged = _messages.error_lines(excerpt)
        about = [line for line in logged if name in line]
        # Not the index's reasons: where the config cannot be read they are those of an earlier load.
        message = _messages.root_error([error.problem, *about, *logged])
        # The private directory means nothing to anybody: "<name>/1/model.onnx" does.
        message = message.replace(f"{self._private.path / 'models'}/", "")
        return LoadFailure(name, _messages.classify(message), message, tail(excerpt))

    def _log_size(self) -> int:
        return os.fstat(self._log.fileno()).st_size

    def _read_log(self, start: int | None = None) -> str:
        """From ``start``, or its last part."""
        with self._log_lock:
            self._log.seek(max(0, self._log_size() - LOG_BYTES) if start is None else start)
            return self._log.read(LOG_BYTES).decode(errors="replace")

    def _last_words(self, log: str | None = None) -> str:
        text = log if log is not None else tail(self._read_log(), 60)
        return _messages.root_error(reversed(_messages.error_lines(text))) or "it left no message"


def unusable(name: str) -> LoadFailure:
    return LoadFailure(name, "invalid_config", f"{name!r} cannot be a model's directory name")


def tail(text: str, lines: int = 40) -> str:
    return "\n".join(text.splitlines()[-lines:])
