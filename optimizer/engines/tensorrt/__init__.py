"""TensorRT engines, from TensorRT 8.6 to 11.x and TensorRT-RTX: built in supervised worker processes.

:class:`~optimizer.engines.tensorrt.family.TensorRTFamily` is the way in. The modules ``worker``, ``capabilities``,
``settings``, ``network``, ``timing_cache`` and ``failures`` run in the worker, under whatever interpreter has the
TensorRT that will serve the plan: they import the standard library, TensorRT and, where it is there, onnx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optimizer.engines.tensorrt.family import TensorRTFamily

__all__ = ["TensorRTFamily"]


def __getattr__(name: str) -> object:
    # Lazily: the worker imports this package under interpreters that have none of the project's dependencies.
    if name == "TensorRTFamily":
        from optimizer.engines.tensorrt.family import TensorRTFamily

        return TensorRTFamily
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
