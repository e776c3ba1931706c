"""Python-based backends and config fragments that this project puts behind a Triton server.

``onnxruntime`` and ``tensorrt`` are directories for Triton's ``--backend-directory``: ``<name>/model.py`` beside the
modules that it imports. They serve a model whose config names the native backend of that name, unchanged, on a server
that has only the python backend.
"""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).parent


def names() -> tuple[str, ...]:
    """Every template there is, sorted."""
    return tuple(sorted(path.parent.name for path in _ROOT.glob("*/model.py")))


def path(name: str) -> Path:
    """The directory of one template. Raises ``KeyError`` naming the ones there are."""
    directory = _ROOT / name
    if name not in names():
        raise KeyError(f"no template {name!r}; there are: {', '.join(names())}")
    return directory
