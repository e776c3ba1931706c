"""A plan from an ONNX model, by TensorRT directly (8.6 and later), cached by what it was made of."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Shape = tuple[int, ...]
Profile = Mapping[str, tuple[Shape, Shape, Shape]]


class BuildError(RuntimeError):
    """TensorRT returned nothing; the text has its errors."""


@dataclass(frozen=True)
class Plan:
    file: Path
    seconds: float
    """Of the build, also when the plan came from the cache."""
    size_bytes: int


def build(
    onnx_model: bytes,
    cache: Path,
    name: str,
    profiles: Sequence[Profile],
    *,
    flags: Sequence[str] = (),
    level: int = 3,
    shape_values: Mapping[str, tuple[Shape, Shape, Shape]] | None = None,
) -> Plan:
    """``profiles`` are (min, opt, max) shapes of each dynamic input; ``flags`` are names of ``BuilderFlag``.

    Raises :class:`BuildError`.
    """
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # seconds of TensorRT 8.6's start
    import tensorrt as trt

    recipe = json.dumps([trt.__version__, [dict(p) for p in profiles], list(flags), level, dict(shape_values or {})])
    key = hashlib.sha256(onnx_model + recipe.encode()).hexdigest()[:16]
    file = cache / f"{name}-{key}.plan"
    facts = file.with_suffix(".json")
    if file.exists() and facts.exists():
        return Plan(file, json.loads(facts.read_text())["seconds"], file.stat().st_size)
    cache.mkdir(parents=True, exist_ok=True)

    class Log(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.errors.append(message)

    log = Log()
    started = time.perf_counter()
    builder = trt.Builder(log)
    explicit = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    network = builder.create_network(0 if explicit is None else 1 << int(explicit))
    parser = trt.OnnxParser(network, log)
    if not parser.parse(onnx_model):
        raise BuildError("; ".join(parser.get_error(i).desc() for i in range(parser.num_errors)) or str(log.errors))
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 4 << 30)
    if hasattr(config, "builder_optimization_level"):
        config.builder_optimization_level = level
    for flag in flags:
        config.set_flag(getattr(trt.BuilderFlag, flag))
    sharing = getattr(getattr(trt, "PreviewFeature", None), "PROFILE_SHARING_0806", None)
    if sharing is not None:
        # One context per CUDA graph, all on one profile: TensorRT 10 and later always allow that.
        config.set_preview_feature(sharing, True)
    for shapes in profiles:
        profile = builder.create_optimization_profile()
        for tensor, (low, best, high) in shapes.items():
            profile.set_shape(tensor, low, best, high)
        for tensor, (low, best, high) in (shape_values or {}).items():
            profile.set_shape_input(tensor, low, best, high)
        if config.add_optimization_profile(profile) < 0:
            raise BuildError(f"profile {dict(shapes)} is not valid: {log.errors}")
    serialized = builder.build_serialized_network(network, config)
    if serialized is None:
        raise BuildError("; ".join(log.errors[-3:]) or "TensorRT returned nothing and no reason")
    file.write_bytes(bytes(serialized))
    seconds = time.perf_counter() - started
    facts.write_text(json.dumps({"seconds": seconds, "recipe": recipe}))
    return Plan(file, seconds, file.stat().st_size)
