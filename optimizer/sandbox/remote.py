"""The ``remote`` launcher: a server that runs already, in explicit mode, and whose repository can be written from here.

It touches only the models that it loaded itself, under names that were free; these are unloaded and removed at the end,
also when the optimizer is killed.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from optimizer import processes
from optimizer.errors import EnvironmentFailure, InputError
from optimizer.records.deployment import Deployment, LoadFailure, ServerInfo
from optimizer.sandbox import _local, _messages, _repository
from optimizer.sandbox._base import SandboxOptions
from optimizer.triton.client import TritonClient, TritonError

# What the sandboxes of this process have loaded, by server and name, newest last. A study opens a second sandbox for
# its final check; on a server that there is only once, that one takes the model over and then gives it back.
_HOLDERS: dict[tuple[str, str], list[tuple[RemoteSandbox, Deployment]]] = {}
_HOLDERS_LOCK = threading.RLock()

EXTRA = ("url", "repository", "http_url", "metrics_url", "link", "unload_timeout_s")
JANITOR_GRACE_S = 90.0


class RemoteLauncher:
    """``url``: gRPC ``host:port``. ``repository``: the server's model repository as a path on this machine.

    ``link``: ``copy`` (default) or ``symlink``, where the server sees this machine's paths.
    """

    name = "remote"

    def __init__(self, **extra: str) -> None:
        self._extra = extra

    def available(self) -> str | None:
        try:
            self._check(self._extra)
        except (EnvironmentFailure, InputError) as failure:
            return failure.message.replace("\n ", ";")
        return None

    def facts(self) -> Mapping[str, str]:
        self._check(self._extra)
        with TritonClient(self._extra["url"]) as client:
            return {"triton": client.server_version(), "server": self._extra["url"]}

    def start(self, options: SandboxOptions) -> RemoteSandbox:
        options = _local.with_extra(options, self._extra, EXTRA)
        self._check(options.extra, wait_s=options.ready_timeout_s)
        return RemoteSandbox(options)

    def _check(self, extra: Mapping[str, str], wait_s: float = 3.0) -> None:
        for key in ("url", "repository"):
            if not extra.get(key):
                raise InputError("is missing", field=key, remedy=f"the remote sandbox needs {key}")
        if extra.get("link", "copy") not in ("copy", "symlink"):
            raise InputError(f"unknown value {extra['link']!r}", field="link", remedy="use copy or symlink")
        if not Path(extra["repository"]).is_dir():
            raise InputError(
                "not a directory",
                where=extra["repository"],
                field="repository",
                remedy="name the server's model repository by a path that is valid on this machine",
            )
        with TritonClient(extra["url"]) as client:
            # Live, not ready: by default one model of its own that did not load makes a server unready.
            if not client.wait_live(wait_s):
                raise EnvironmentFailure(
                    "no Triton server answers",
                    where=extra["url"],
                    remedy="start it with --model-control-mode=explicit, and name its gRPC port",
                )


class RemoteSandbox:
    def __init__(self, options: SandboxOptions) -> None:
        extra = options.extra
        self._options = options
        self._url = extra["url"]
        self._repository = Path(extra["repository"]).resolve()
        self._copy = extra.get("link", "copy") == "copy"
        self._unload_timeout_s = float(extra.get("unload_timeout_s", _local.UNLOAD_TIMEOUT_S))
        self._lock = threading.RLock()
        self._closed = False
        self._private = _local.PrivateDirectory(options.workdir)
        self._markers = self._private.path / "loaded"
        self._markers.mkdir()
        self._client = TritonClient(self._url)
        try:
            self._version = self._client.server_version()
            self._janitor = processes.start(
                [sys.executable, "-m", "optimizer.sandbox._janitor", self._url, self._markers],
                log_path=self._private.path / "janitor.log",
                remove=[f"/dev/shm/{self._private.shared_memory_prefix}*", self._private.path],
                grace_s=JANITOR_GRACE_S,
            )
        except BaseException:
            self._client.close()
            self._private.remove()
            raise

    @property
    def info(self) -> ServerInfo:
        extra = self._options.extra
        return ServerInfo(
            launcher=RemoteLauncher.name,
            grpc_url=self._url,
            http_url=extra.get("http_url", ""),
            metrics_url=extra.get("metrics_url"),
            version=self._version,
            facts={"triton": self._version, "server": self._url},
        )

    def load(self, deployment: Deployment) -> LoadFailure | None:
        name = deployment.name
        if not _repository.usable(name):
            return _local.unusable(name)
        with self._lock, _HOLDERS_LOCK:
            self._require_alive()
            marker = self._markers / name
            holders = _HOLDERS.setdefault((self._url, name), [])
            if holders or marker.exists():
                self._take_away(name)
                holders[:] = [holder for holder in holders if holder[0] is not self]
            elif (self._repository / name).exists() or self._serves(name):
                return LoadFailure(name, "name_taken", f"the server has a model {name} that is not this study's")
            try:
                # The marker first: whatever happens from here on is cleaned up.
                marker.write_text(str(self._repository / name), encoding="utf-8")
                self._put(deployment)
            except InputError as error:
                failure = LoadFailure(name, "invalid_config", error.message)
            except TritonError as error:
                failure = self._load_failure(name, error)
            else:
                holders.append((self, deployment))
                return None
            with contextlib.suppress(TritonError, EnvironmentFailure):
                self._give_back(name, holders)
                marker.unlink()
            return failure

    def _load_failure(self, name: str, error: TritonError) -> LoadFailure:
        if error.status == "DEADLINE_EXCEEDED":
            return LoadFailure(name, "timeout", f"not loaded after {self._options.load_timeout_s:g} s")
        if error.status == "UNAVAILABLE" and not self._client.server_live():
            return LoadFailure(name, "server_died", error.problem)
        if "polling is enabled" in error.problem or "explicit model load" in error.problem:
            raise EnvironmentFailure(
                "the server does not take loads on request",
                where=self._url,
                remedy="start it with --model-control-mode=explicit",
            )
        if "failed to poll" in error.problem:
            return LoadFailure(name, "invalid_config", f"{error.problem} (the server's own log says why)")
        message = _messages.root_error([error.problem]).replace(f"{self._repository}/", "")
        return LoadFailure(name, _messages.classify(message), message)

    def unload(self, name: str) -> None:
        with self._lock, _HOLDERS_LOCK:
            marker = self._markers / name
            if self._closed or not _repository.usable(name) or not marker.exists():
                return
            holders = _HOLDERS.get((self._url, name), [])
            newest = not holders or holders[-1][0] is self
            holders[:] = [holder for holder in holders if holder[0] is not self]
            # One that took the model over since then needs it.
            if newest:
                self._give_back(name, holders)
            marker.unlink()

    def _give_back(self, name: str, holders: Sequence[tuple[RemoteSandbox, Deployment]]) -> None:
        """Takes the model away; whoever had it before gets it again."""
        self._take_away(name)
        if holders:
            try:
                self._put(holders[-1][1])
            except TritonError as error:
                raise EnvironmentFailure(
                    f"model {name} does not load any more: {error.problem}",
                    where=self._url,
                    remedy="look at the server's log; the model was replaced by this study's and could not be restored",
                ) from None

    def _put(self, deployment: Deployment) -> None:
        _repository.write(self._repository, deployment, copy=self._copy)
        self._client.load(deployment.name, timeout_s=self._options.load_timeout_s)

    def _take_away(self, name: str) -> None:
        try:
            self._client.unload(name, timeout_s=self._unload_timeout_s)
        except TritonError as error:
            # Not known to the server: nothing of it was ever loaded.
            if error.status in ("DEADLINE_EXCEEDED", "UNAVAILABLE"):
                raise EnvironmentFailure(
                    f"model {name} does not unload: {error.problem}", where=self._url, remedy="look at the server's log"
                ) from None
        _repository.remove(self._repository, name)

    def alive(self) -> bool:
        return not self._closed and self._client.server_live()

    def memory_bytes(self) -> int | None:
        return None

    def log_tail(self, lines: int = 40) -> str:  # noqa: ARG002 - the log is the server's own, elsewhere
        return ""

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            for marker in list(self._markers.iterdir()):
                with contextlib.suppress(TritonError, EnvironmentFailure):
                    self.unload(marker.name)
            self._closed = True
            self._client.close()
            # Whatever is still there is the janitor's: it tries again, and removes the directories.
            self._janitor.stop()
            self._private.remove()

    def __enter__(self) -> RemoteSandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serves(self, name: str) -> bool:
        """In any state but "unloaded", which stays in the index for ever."""
        return any(row[0] == name and row[3] != "unloaded" for row in self._client.repository_index())

    def _require_alive(self) -> None:
        if self._closed:
            raise EnvironmentFailure(
                "this sandbox is closed", where=self._url, remedy="this is a bug: use it inside its with block"
            )
        if not self._client.server_live():
            raise EnvironmentFailure("the server is gone", where=self._url, remedy="start it again")
