"""What an imported TensorRT can do, asked of the module itself: attributes and enum members, never version tables.

:func:`describe` needs nothing but the import, so it also works on bindings whose library is missing;
:func:`probe` adds what only a live builder knows (it needs a GPU, except for TensorRT-RTX).
Runs in the worker: standard library only.
"""

from __future__ import annotations

import ctypes
import os
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

KNOWN_MODULES = ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings", "tensorrt_bindings")

ENVIRONMENT = ("TRT_BYPASS_BUILD_ROUTE_WHITELIST", "__LUNOWUD")
"""Environment variables that change what build routes do: part of the fingerprint."""


@dataclass(frozen=True)
class Capabilities:
    """Names are lower case texts as TensorRT's enums spell them, so that the record survives JSON."""

    module: str
    version: str
    weak_typing: bool
    """Precision is chosen by builder flags. ``False``: the network's own types decide (strongly typed only)."""
    strong_typing: bool
    explicit_batch_flag: bool
    """``EXPLICIT_BATCH`` exists and is passed: TensorRT 8 requires it, 10 tolerates it, 11 has dropped it."""
    builder_flags: tuple[str, ...]
    precision_flags: tuple[str, ...]
    data_types: tuple[str, ...]
    tactic_sources: tuple[str, ...]
    hardware_compatibility: tuple[str, ...]
    tiling_levels: tuple[str, ...]
    build_route: bool
    l2_limit: bool
    aux_streams: bool
    max_tactics: bool
    optimization_level: bool
    sparsity: bool
    version_compatible: bool
    timing_cache: bool
    progress_monitor: bool
    engine_stat: bool
    serialization_config: bool
    engine_validity: bool
    inspector: bool
    device_memory_v2: bool
    device_memory_v1: bool
    int64: bool
    runtime_for_triton: bool
    """Whether Triton's ``tensorrt`` backend can load such a plan at all: TensorRT-RTX has its own plan format."""
    live: bool = False
    """A builder was made here, so the fields below are known."""
    live_error: str = ""
    all_build_routes: str = ""
    """The tuner's own JSON, ``""`` where the tuner is off."""
    default_flags: tuple[str, ...] = ()
    default_tactic_sources: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    """Knob values that are in the API and that the live builder did not take, as ``knob=value``."""
    gpu: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Capabilities:
        known = {item.name for item in fields(cls)}
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in document.items()
        }
        return cls(**{key: value for key, value in values.items() if key in known})

    @property
    def product(self) -> str:
        return "TensorRT-RTX" if "rtx" in self.module else "TensorRT"

    @property
    def builder(self) -> str:
        return f"{self.product} {self.version}"


def members(module: Any, enum: str) -> tuple[str, ...]:
    """Lower-case member names of ``module.enum``, in their own order; empty where there is no such enum."""
    found = getattr(getattr(module, enum, None), "__members__", {})
    return tuple(str(name).lower() for name in found)


def has(module: Any, owner: str, attribute: str) -> bool:
    return hasattr(getattr(module, owner, None), attribute)


def describe(module: Any, name: str) -> Capabilities:
    """Static capabilities of an imported TensorRT module; nothing of it is instantiated."""
    flags = members(module, "BuilderFlag")
    creation = members(module, "NetworkDefinitionCreationFlag")
    precision = tuple(flag for flag in ("fp16", "bf16", "int8", "fp8") if flag in flags)
    types = members(module, "DataType")
    return Capabilities(
        module=name,
        version=str(getattr(module, "__version__", "unknown")),
        weak_typing="fp16" in precision,
        strong_typing="strongly_typed" in creation or "fp16" not in precision,
        explicit_batch_flag="explicit_batch" in creation,
        builder_flags=flags,
        precision_flags=precision,
        data_types=types,
        tactic_sources=members(module, "TacticSource"),
        hardware_compatibility=members(module, "HardwareCompatibilityLevel"),
        tiling_levels=members(module, "TilingOptimizationLevel")
        if has(module, "IBuilderConfig", "tiling_optimization_level")
        else (),
        build_route=has(module, "IBuilderConfig", "build_route"),
        l2_limit=has(module, "IBuilderConfig", "l2_limit_for_tiling"),
        aux_streams=has(module, "IBuilderConfig", "max_aux_streams"),
        max_tactics=has(module, "IBuilderConfig", "max_num_tactics"),
        optimization_level=has(module, "IBuilderConfig", "builder_optimization_level"),
        sparsity="sparse_weights" in flags,
        version_compatible="version_compatible" in flags,
        timing_cache=has(module, "IBuilderConfig", "create_timing_cache"),
        progress_monitor=has(module, "IBuilderConfig", "progress_monitor"),
        engine_stat=has(module, "ICudaEngine", "get_engine_stat"),
        serialization_config=has(module, "ICudaEngine", "create_serialization_config"),
        engine_validity=has(module, "Runtime", "get_engine_validity"),
        inspector=has(module, "ICudaEngine", "create_engine_inspector"),
        device_memory_v2=has(module, "ICudaEngine", "device_memory_size_v2"),
        device_memory_v1=has(module, "ICudaEngine", "device_memory_size"),
        int64="int64" in types,
        runtime_for_triton=not hasattr(module, "IRuntimeCache") or "rtx" not in name,
        environment={key: os.environ[key] for key in ENVIRONMENT if key in os.environ},
    )


def probe(module: Any, name: str) -> Capabilities:
    """:func:`describe`, and what a live builder adds where one can be made."""
    static = describe(module, name)
    gpu = gpu_identity()
    try:
        logger = module.Logger(module.Logger.ERROR)
        builder = module.Builder(logger)
        config = builder.create_builder_config()
    except Exception as error:  # noqa: BLE001 - bindings raise whatever they like without a GPU
        return replace(static, gpu=gpu, live_error=f"{type(error).__name__}: {error}".splitlines()[0])
    flags = getattr(module.BuilderFlag, "__members__", {})
    sources = getattr(getattr(module, "TacticSource", None), "__members__", {})
    mask = int(config.get_tactic_sources()) if static.tactic_sources else 0
    return replace(
        static,
        gpu=gpu,
        live=True,
        timing_cache=static.timing_cache and _caches_timings(config),
        all_build_routes=str(config.all_build_routes or "") if static.build_route else "",
        default_flags=tuple(key.lower() for key, flag in flags.items() if config.get_flag(flag)),
        default_tactic_sources=tuple(key.lower() for key, source in sources.items() if mask >> int(source) & 1),
        rejected=tuple(_rejected(module, config, static)),
    )


def _rejected(module: Any, config: Any, static: Capabilities) -> Iterator[str]:
    """Values that the setter swallows without taking them: TensorRT-RTX has the attribute, logs, and keeps NONE."""
    for knob, attribute, enum, values in (
        ("hardware_compatibility", "hardware_compatibility_level", "HardwareCompatibilityLevel", None),
        ("tiling_level", "tiling_optimization_level", "TilingOptimizationLevel", static.tiling_levels),
    ):
        if not hasattr(config, attribute):
            continue
        for key, member in getattr(module, enum).__members__.items():
            if values is not None and key.lower() not in values:
                continue
            try:
                setattr(config, attribute, member)
                taken = getattr(config, attribute) == member
            except Exception:  # noqa: BLE001 - a refusal is the answer
                taken = False
            if not taken:
                yield f"{knob}={key.lower()}"


def _caches_timings(config: Any) -> bool:
    """TensorRT-RTX keeps the methods and says in a warning that they do nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            taken = config.set_timing_cache(config.create_timing_cache(b""), False)
        except Exception:  # noqa: BLE001 - a refusal is the answer
            return False
    return taken is not False and not any("no-op" in str(item.message) for item in caught)


def gpu_identity() -> dict[str, str]:
    """Name, UUID, compute capability and driver of the first visible GPU, from the driver itself; empty without one.

    libcuda by ctypes, so that the builder's interpreter needs no CUDA package.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {}
    device, driver = ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return {}
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, 256, device)
    raw = (ctypes.c_ubyte * 16)()
    cuda.cuDeviceGetUuid(ctypes.byref(raw), device)
    major, minor = ctypes.c_int(), ctypes.c_int()
    # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75, _MINOR = 76
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
    cuda.cuDriverGetVersion(ctypes.byref(driver))
    return {
        "name": name.value.decode(errors="replace"),
        "uuid": f"GPU-{uuid.UUID(bytes=bytes(raw))}",
        "compute_capability": f"{major.value}.{minor.value}",
        "cuda_driver": f"{driver.value // 1000}.{driver.value % 1000 // 10}",
    }
