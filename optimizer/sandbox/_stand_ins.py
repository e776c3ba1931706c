"""Which python-based backends stand in for native ones, as a launcher's ``python_backends`` setting says."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import triton_templates
from optimizer.errors import InputError


def stand_ins(extra: Mapping[str, str], automatic: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    """``none``, a list of names, or ``auto`` (also without the setting): then ``automatic`` says. Raises
    :class:`InputError` for a name that this project has no backend of."""
    asked = extra.get("python_backends", "auto")
    if asked == "none":
        return ()
    if asked == "auto":
        return automatic()
    names = tuple(name.strip() for name in asked.split(","))
    for name in names:
        if name not in triton_templates.names():
            raise InputError(
                f"no python-based backend {name!r}",
                field="python_backends",
                remedy="use auto, none, or some of: " + ", ".join(triton_templates.names()),
            )
    return names
