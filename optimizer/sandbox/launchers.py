"""Launchers by name, and the choice of one. A new launcher is one entry in ``_LAUNCHERS``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from optimizer.errors import EnvironmentFailure, InputError
from optimizer.sandbox._base import Launcher
from optimizer.sandbox._local import check_extra

# name: module and class; the module's EXTRA are the settings that the class takes, all of them optional texts.
_LAUNCHERS = {
    "embedded": ("optimizer.sandbox.embedded", "EmbeddedLauncher"),
    "process": ("optimizer.sandbox.process", "ProcessLauncher"),
    "docker": ("optimizer.sandbox.docker", "DockerLauncher"),
    "remote": ("optimizer.sandbox.remote", "RemoteLauncher"),
}
NAMES = tuple(_LAUNCHERS)
# Tried in this order by ``auto``: a server that was installed here on purpose comes first. ``remote`` is somebody's
# server, and ``docker`` needs an image: naming that is asking for it.
AUTO = ("process", "embedded")


def launcher(name: str, **extra: str) -> Launcher:
    """A launcher by its ``--sandbox`` name.

    Raises :class:`InputError` naming the launchers, or the settings of this one, that there are.
    """
    if name not in _LAUNCHERS:
        raise InputError(f"no sandbox {name!r}", field="sandbox", remedy="use one of: auto, " + ", ".join(NAMES))
    module_name, class_name = _LAUNCHERS[name]
    module: Any = importlib.import_module(module_name)
    check_extra(extra, module.EXTRA)
    made: Callable[..., Launcher] = getattr(module, class_name)
    return made(**extra)


def settings_of(name: str) -> tuple[str, ...]:
    module: Any = importlib.import_module(_LAUNCHERS[name][0])
    return tuple(module.EXTRA)


def choose(name: str = "auto", **extra: str) -> tuple[Launcher, str]:
    """A launcher that can start here, and why this one. Raises :class:`EnvironmentFailure` when none can."""
    if name != "auto":
        chosen = launcher(name, **extra)
        problem = chosen.available()
        if problem:
            raise EnvironmentFailure(
                problem, field=f"sandbox {name}", remedy="`triton-optimizer doctor` shows the shortest way to each"
            )
        return chosen, "asked for"
    for setting, named in (("image", "docker"), ("url", "remote")):
        if extra.get(setting):
            return choose(named, **extra)[0], f"the {setting} {extra[setting]} was named"
    refused: list[str] = []
    for candidate in AUTO:
        foreign = [setting for setting in extra if setting not in settings_of(candidate)]
        if foreign:
            refused.append(f"{candidate} has no setting {foreign[0]}")
            continue
        chosen = launcher(candidate, **extra)
        problem = chosen.available()
        if problem is None:
            return chosen, "; ".join([*refused, f"{candidate} can start here"])
        refused.append(f"{candidate} cannot: {problem}")
    raise EnvironmentFailure(
        "no sandbox can start here: " + "; ".join(refused),
        field="sandbox",
        remedy="`triton-optimizer doctor` shows the shortest way to each",
    )
