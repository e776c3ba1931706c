"""The ``docker`` launcher: a Triton image, by tag or digest, on this machine's Docker engine.

The server has the host's network and listens on loopback ports only. It sees the study's private repository, read-only
and under the same path. The container hangs on a process of the optimizer's (:mod:`optimizer.container`), so it ends
with the optimizer. Native backends of the image are used as they are; where it has none, the python-based ones of
:mod:`triton_templates` are mounted, and ``info.python_backends`` says so.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import triton_templates
from optimizer import container
from optimizer.errors import EnvironmentFailure, InputError
from optimizer.records.deployment import LoadFailure
from optimizer.sandbox import _image, _known_answer, _local, engine
from optimizer.sandbox._base import SandboxOptions
from optimizer.sandbox._image import Image
from optimizer.sandbox._stand_ins import stand_ins as stand_ins_of
from optimizer.triton.client import TritonError

EXTRA = ("image", "python_backends", "shm_size", "tmp_size", "ipc", "user", "version_compatible", "unload_timeout_s")
# A kill and a removal are two requests to an engine that may be busy.
GRACE_S = 30.0
SHM_SIZE = "1g"
BACKENDS = "/opt/tritonserver/backends"
GPU_REMEDY = (
    "install nvidia-container-toolkit, then: nvidia-ctk runtime configure --runtime=docker && systemctl restart docker"
)


class DockerLauncher:
    """``image``: tag or digest. ``python_backends``: ``auto`` (those that the image lacks), ``none``, or names.

    ``shm_size`` (default 1g), ``tmp_size`` (of a /tmp in memory; default: on the image's disk) are sizes as docker run
    takes them. ``ipc``: ``private``, or ``host`` for a load through system shared memory. ``user``: ``UID:GID``, this
    process's own by default. ``version_compatible``: ``on`` lets the server load version-compatible TensorRT plans.
    """

    name = "docker"

    def __init__(self, **extra: str) -> None:
        self._extra = extra

    def available(self) -> str | None:
        try:
            _image.examine(self._extra.get("image"))
        except (EnvironmentFailure, InputError) as failure:
            return failure.message.replace("\n ", ";")
        return None

    def facts(self) -> Mapping[str, str]:
        image = _image.examine(self._extra.get("image"))
        return _facts(image, _stand_ins(image, self._extra))

    def image(self) -> Image:
        """What is in the image. Raises as :meth:`start` does."""
        return _image.examine(self._extra.get("image"))

    def start(self, options: SandboxOptions) -> _local.LocalSandbox:
        options = _local.with_extra(options, self._extra, EXTRA)
        image = _image.examine(options.extra.get("image"))
        stand_ins = _stand_ins(image, options.extra)
        sandbox = _local.start(
            options, lambda private: self._command(image, stand_ins, private, options), kind=DockerSandbox
        )
        if stand_ins:
            try:
                _known_answer.check(sandbox, None, where=image.id)
            except BaseException:
                sandbox.close()
                raise
        return sandbox

    def _command(
        self, image: Image, stand_ins: tuple[str, ...], private: _local.PrivateDirectory, options: SandboxOptions
    ) -> _local.ServerCommand:
        extra = options.extra
        mounts = [container.Mount(str(private.path / "models"))]
        for name in stand_ins:
            # From the private directory: the one path that an engine beside this container is sure to see as well.
            copied = private.path / "backends" / name
            shutil.copytree(triton_templates.path(name), copied, ignore=shutil.ignore_patterns("__pycache__"))
            mounts.append(container.Mount(str(copied), f"{BACKENDS}/{name}"))
        command = [image.executable]
        if extra.get("version_compatible") == "on":
            command.append("--backend-config=tensorrt,version-compatible=true")
        spec = container.Spec(
            name=f"triton-optimizer-{private.token}",
            image=image.id,
            # NVIDIA's entry point chooses the CUDA libraries that fit the driver, then becomes the server.
            entrypoint=None if any("nvidia_entrypoint" in word for word in image.entrypoint) else (),
            command=tuple(command),
            state_path=str(private.path / "container.json"),
            environment={
                "HOME": "/tmp",
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONUNBUFFERED": "1",
                # Without a GPU asked for, an engine whose default runtime is NVIDIA's would show all of them.
                **({} if options.gpu else {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}),
            },
            mounts=tuple(mounts),
            tmpfs={"/tmp": f"rw,exec,mode=1777,size={extra['tmp_size']}"} if "tmp_size" in extra else {},
            user=extra.get("user", f"{os.getuid()}:{os.getgid()}"),
            gpu=options.gpu,
            memory_limit_bytes=options.memory_limit_bytes,
            shm_size_bytes=_bytes(extra.get("shm_size", SHM_SIZE), "shm_size"),
            host_ipc=extra.get("ipc", "private") == "host",
            study_id=options.study_id,
            owner=container.owner(),
        )
        path = private.path / "container.spec.json"
        spec.write(path)
        executable, *arguments = container.command(path)
        return _local.ServerCommand(
            executable=Path(executable),
            arguments=[str(word) for word in arguments],
            environment=dict(os.environ),
            launcher=self.name,
            python_backends=stand_ins,
            facts=_facts(image, stand_ins),
            copy_files=True,
            limits_itself=True,
            grace_s=GRACE_S,
            address=image.reference,
        )


class DockerSandbox(_local.LocalSandbox):
    """The process below the guardian keeps the container; the server's own is where the engine put it."""

    def server_pid(self) -> int | None:
        state = self._state()
        # Of a container that has ended the number may be anybody's by now.
        return state.pid if not state.ended and container.visible(state.pid, state.id) else None

    def memory_bytes(self) -> int | None:
        seen = super().memory_bytes()
        return seen if seen is not None else self._engines_memory_bytes()

    def _engines_memory_bytes(self) -> int | None:
        """As the engine counts it, without the page cache that can be dropped: this process sees no other's."""
        identifier = self._state().id
        if not identifier:
            return None
        with contextlib.suppress(EnvironmentFailure, OSError, KeyError, TypeError):
            client = engine.connect()
            try:
                found = client.api.stats(identifier, stream=False, one_shot=True)["memory_stats"]
                cache = found["stats"].get("inactive_file", found["stats"].get("total_inactive_file", 0))
                return int(found["usage"]) - int(cache)
            finally:
                client.close()
        return None

    _known = container.State()

    def _state(self) -> container.State:
        """The guardian removes the directory a moment before its status can be read: then what was known last."""
        state = container.state(self._private.path / "container.json")
        if state.id:
            self._known = state
        return self._known

    def _start_failure(self, what: str) -> Exception:
        refused = re.search(r"^container: (.*)$", self._read_log(0), re.MULTILINE)
        if refused is None:
            return super()._start_failure(what)
        cause, remedy = refused[1], None
        if container.OUT_OF_MEMORY in refused[0]:
            cause, remedy = self._out_of_memory(), "raise the sandbox's memory limit"
        elif "could not select device driver" in cause or "nvidia" in cause.lower():
            cause, remedy = f"the Docker engine has no GPU runtime: {cause}", GPU_REMEDY
        elif "bind source path does not exist" in cause or "invalid mount config" in cause:
            remedy = "mount the study's directory into the optimizer's container under the path that it has on the host"
        elif "engine is gone" in cause:
            remedy = "start the engine again, then `resume` the study"
        return EnvironmentFailure(cause, where=self._command.where, remedy=remedy)

    def _load_failure(self, name: str, error: TritonError, log_start: int) -> LoadFailure:
        failure = super()._load_failure(name, error, log_start)
        killed = self._kills()
        if killed > self._seen_kills or (failure.code == "server_died" and self._ended_for_memory()):
            self._seen_kills = killed
            return LoadFailure(name, "out_of_memory", self._out_of_memory(), failure.log_excerpt)
        return failure

    _seen_kills = 0

    def _kills(self) -> int:
        """Processes of the container that the kernel has killed for want of memory, as its cgroup counts them."""
        pid = self.server_pid()
        if pid is None:
            return 0
        # Seen from within: cgroup v2, and the memory controller of v1.
        for path in ("memory.events", "memory/memory.oom_control"):
            with contextlib.suppress(OSError, ValueError):
                text = Path(f"/proc/{pid}/root/sys/fs/cgroup/{path}").read_text(encoding="ascii")
                match = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
                if match:
                    return int(match[1])
        return 0

    def _ended_for_memory(self) -> bool:
        return container.OUT_OF_MEMORY in self._read_log()

    def _out_of_memory(self) -> str:
        limit = self._options.memory_limit_bytes
        within = f" (limit {limit >> 20} MiB)" if limit is not None else ""
        return f"the kernel killed a process of the container for want of memory{within}"

    def _last_words(self, log: str | None = None) -> str:
        if self._ended_for_memory():
            return self._out_of_memory()
        text = log if log is not None else self._read_log()
        refused = re.findall(r"^container: (.*)$", text, re.MULTILINE)
        return refused[-1] if refused else super()._last_words(log)


def _stand_ins(image: Image, extra: Mapping[str, str]) -> tuple[str, ...]:
    def automatic() -> tuple[str, ...]:
        if "python" not in image.native:
            return ()
        return tuple(name for name in triton_templates.names() if name not in image.native)

    return stand_ins_of(extra, automatic)


def _facts(image: Image, stand_ins: tuple[str, ...]) -> dict[str, str]:
    return {**image.facts(), "python_backends": ",".join(stand_ins)}


def _bytes(text: str, setting: str) -> int:
    """``512m``, ``1g``, or a number of bytes. Raises :class:`InputError`."""
    match = re.fullmatch(r"(\d+)([bkmg]?)", text.strip().lower())
    if match is None:
        raise InputError(f"{text!r} is not a size", field=setting, remedy="write a number and b, k, m or g, such as 1g")
    return int(match[1]) << {"": 0, "b": 0, "k": 10, "m": 20, "g": 30}[match[2]]
