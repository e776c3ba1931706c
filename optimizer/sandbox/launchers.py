"""Launchers by name, and the choice of one."""

from __future__ import annotations

from optimizer.errors import EnvironmentFailure, InputError
from optimizer.sandbox._base import Launcher

NAMES = ("embedded",)


def launcher(name: str, **extra: str) -> Launcher:
    """A launcher by its ``--sandbox`` name. Raises :class:`InputError` naming the ones there are."""
    if name == "embedded":
        from optimizer.sandbox.embedded import EmbeddedLauncher

        return EmbeddedLauncher(**extra)
    raise InputError(f"no launcher {name!r}", field="sandbox", remedy="use one of: auto, " + ", ".join(NAMES))


def choose(name: str = "auto", **extra: str) -> tuple[Launcher, str]:
    """A launcher that can start here, and why this one. Raises :class:`EnvironmentFailure` when none can."""
    if name != "auto":
        chosen = launcher(name, **extra)
        problem = chosen.available()
        if problem:
            raise EnvironmentFailure(problem, field="sandbox")
        return chosen, "asked for"
    refused: list[str] = []
    for candidate in NAMES:
        chosen = launcher(candidate)
        problem = chosen.available()
        if problem is None:
            return chosen, "; ".join([*refused, f"{candidate} can start here"])
        refused.append(f"{candidate} cannot: {problem}")
    raise EnvironmentFailure("no sandbox can start here: " + "; ".join(refused), field="sandbox")
