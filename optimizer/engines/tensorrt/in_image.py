"""Runs a worker in a container of the serving image, so that a plan is built with the TensorRT that opens it.

The container sees this project, the model, the build's directory and the timing caches, each under its own path, and
no network. It is one process more for the supervisor, which ends it as any other.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimizer import container

PROJECT = "/usr/src/triton-optimizer-mounted"
SPEC, STATE = "container.spec.json", "container.json"
# A kill and a removal are two requests to an engine that may be busy.
GRACE_S = 30.0
SHM_SIZE = 1 << 30
_READ_FROM = ("onnx", "weights_of")
_WRITTEN_TO = ("plan", "inspection", "timing_cache_directory")


@dataclass(frozen=True)
class InImage:
    """``command`` for the supervisor; ``state`` tells afterwards what became of the container."""

    command: Sequence[Path | str]
    state_path: Path

    def state(self) -> container.State:
        return container.state(self.state_path)


def in_image(
    image: str,
    words: Sequence[Path | str],
    request: Mapping[str, Any],
    directory: Path,
    *,
    project: Path,
    python_path: str = "",
    gpu: str | None = None,
    memory_limit_bytes: int | None = None,
) -> InImage:
    """``words`` is the worker's command inside the image. Raises ``OSError`` where the directory takes no file."""
    state_path = directory / STATE
    state_path.unlink(missing_ok=True)
    spec = container.Spec(
        name=f"triton-optimizer-build-{os.getpid()}-{secrets.token_hex(4)}",
        image=image,
        entrypoint=(),
        command=tuple(str(word) for word in words),
        state_path=str(state_path),
        environment={
            "PYTHONPATH": os.pathsep.join(part for part in (PROJECT, python_path) if part),
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": "/tmp",
            **({} if gpu else {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}),
            **{key: os.environ[key] for key in _passed_on() if key in os.environ},
        },
        mounts=(
            container.Mount(str(project / "optimizer"), f"{PROJECT}/optimizer"),
            *mounts(request, directory),
        ),
        # Paths of a request may be relative.
        working_directory=str(Path.cwd()),
        user=f"{os.getuid()}:{os.getgid()}",
        network="none",
        gpu=gpu,
        memory_limit_bytes=memory_limit_bytes,
        shm_size_bytes=SHM_SIZE,
        owner=container.owner(),
    )
    path = directory / SPEC
    spec.write(path)
    return InImage(container.command(path), state_path)


def mounts(request: Mapping[str, Any], directory: Path) -> list[container.Mount]:
    """Directories that the request names: the build's own and the caches' to write, the model's to read.

    A model that is a link is also looked for where it lies; external data lie beside it.
    """
    writable = {directory.absolute()}
    for key in _WRITTEN_TO:
        if request.get(key):
            path = Path(request[key]).absolute()
            writable.add(path if key.endswith("directory") else path.parent)
    readable: set[Path] = set()
    for key in _READ_FROM:
        if request.get(key):
            path = Path(request[key]).absolute()
            readable |= {path.parent, path.resolve().parent}
            with contextlib.suppress(OSError):
                # External data may be links of their own.
                readable |= {item.resolve().parent for item in path.parent.iterdir() if item.is_symlink()}
    # A directory inside another one that is mounted already needs no mount of its own, unless it is to be written.
    return [
        *(container.Mount(str(path), read_only=True) for path in sorted(readable - writable)),
        *(container.Mount(str(path), read_only=False) for path in sorted(writable)),
    ]


def _passed_on() -> tuple[str, ...]:
    from optimizer.engines.tensorrt.capabilities import ENVIRONMENT

    return ENVIRONMENT
