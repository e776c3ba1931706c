"""Where engines are built, and whether what is built there can be opened where it is served.

A plan is opened by the TensorRT that built it, or not at all; even images of one tag have differed. So engines are
built in the serving image where that can be, and elsewhere the two versions are compared before the first build.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optimizer.config import Settings
from optimizer.errors import EnvironmentFailure
from optimizer.sandbox import launchers
from optimizer.sandbox._base import Launcher
from optimizer.sandbox.docker import DockerLauncher

HERE = "none"
"""``--builder-image none``: build on this machine, whatever the sandbox is."""


@dataclass(frozen=True)
class Place:
    """``image`` is a content hash, ``None`` this machine; ``python`` the interpreter there, ``None`` the usual one."""

    image: str | None
    python: Path | str | None
    why: str


def place_of_builds(settings: Settings, launcher: Launcher) -> Place:
    """The image named, else the docker sandbox's own where it can build, else here.

    Raises :class:`EnvironmentFailure` where the image named is not here or has no TensorRT for Python.
    """
    builder = settings.builder
    named = builder.image if builder.image != HERE else None
    if named is not None:
        chosen = launchers.launcher("docker", image=named)
        assert isinstance(chosen, DockerLauncher)
    elif builder.image is None and builder.python is None and isinstance(launcher, DockerLauncher):
        chosen = launcher
    else:
        return Place(None, builder.python, "on this machine")
    image = chosen.image()
    if image.builder:
        # The module's version is that of the library in the image, unless somebody put a second one beside it.
        return Place(image.id, builder.python or image.python, f"in the image {image.reference}")
    if named is not None:
        raise EnvironmentFailure(
            "no Python in this image has TensorRT's module",
            where=named,
            field="--builder-image",
            remedy="derive one with compose/Dockerfile.gpu, or build here with --builder-image none",
        )
    return Place(None, None, f"on this machine: the image {image.reference} has no TensorRT for Python")


def refuse_mismatch(built_with: Mapping[str, str], served_with: Mapping[str, str], *, version_compatible: bool) -> None:
    """Compares ``tensorrt`` in the facts of an engine family and of a launcher; unknown versions pass.

    Raises :class:`EnvironmentFailure` naming both. Version-compatible plans may be opened by a newer release of the
    same major version, never by an older one.
    """
    builder, server = _version(built_with.get("tensorrt", "")), _version(served_with.get("tensorrt", ""))
    length = min(len(builder), len(server), 3)
    if length == 0 or builder[:length] == server[:length]:
        return
    newer = builder[0] == server[0] and builder[:length] < server[:length]
    if version_compatible and newer:
        return
    if version_compatible:
        remedy = "version-compatible plans need a server of the same major version that is not older than the builder"
    elif newer:
        remedy = (
            "build in the serving image (compose/Dockerfile.gpu), or ask for plans that fit with --version-compatible"
        )
    else:
        remedy = "build in the serving image: derive one with compose/Dockerfile.gpu and name it with --builder-image"
    raise EnvironmentFailure(
        f"engines would be built with TensorRT {built_with['tensorrt']} and served with {served_with['tensorrt']}",
        where=served_with.get("image"),
        field="TensorRT",
        remedy=remedy,
    )


def _version(text: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
