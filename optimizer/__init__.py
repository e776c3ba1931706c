"""Tunes Triton Inference Server model repositories at the serving level.

The package reads like its job: ``repository`` reads, ``routes`` and ``search`` propose, ``engines`` build, ``sandbox``
deploys, ``load`` measures, ``accuracy`` validates, ``judge`` decides, ``apply`` writes back; ``study`` is the sentence.

``optimize``, ``bench`` and ``Study`` are the Python interface (:mod:`optimizer.api`), loaded when they are first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optimizer.api import Study, bench, optimize

__all__ = ["Study", "__version__", "bench", "optimize"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # By name, so that `import optimizer` stays light and the layers below see no import of the interface.
    if name not in ("Study", "bench", "optimize"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module("optimizer.api"), name)
