"""A plan file as an engine: loading, its tensors and profiles, and whether the config fits it.

Works with the named-tensor API of TensorRT 8.5 to 11, told apart by ``hasattr``. Messages follow the native
backend's wording, so that what classifies those classifies these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorrt as trt
from trt_settings import Settings, TensorConfig

_TYPES: dict[str, tuple[str, Any]] = {
    "FLOAT": ("FP32", np.float32),
    "HALF": ("FP16", np.float16),
    "BF16": ("BF16", np.uint16),  # NumPy has no bfloat16: bits.
    "INT8": ("INT8", np.int8),
    "INT32": ("INT32", np.int32),
    "INT64": ("INT64", np.int64),
    "UINT8": ("UINT8", np.uint8),
    "BOOL": ("BOOL", np.bool_),
}

Shape = tuple[int, ...]


class EngineError(RuntimeError):
    """What TensorRT refused, with its own last words."""


@dataclass(frozen=True)
class Tensor:
    """One input or output. ``ranges`` has (min, opt, max) shapes of each profile, for inputs; a shape tensor's are
    those of its values.
    """

    name: str
    datatype: str
    dtype: np.dtype[Any]
    shape: Shape
    is_input: bool
    on_host: bool
    ranges: tuple[tuple[Shape, Shape, Shape], ...] = ()


class Log(trt.ILogger):
    """Keeps TensorRT's last errors, to quote them, and passes on warnings and errors."""

    def __init__(self, report: Any) -> None:
        trt.ILogger.__init__(self)
        self._report = report
        self.errors: deque[str] = deque(maxlen=4)

    def log(self, severity: Any, message: str) -> None:
        if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
            self.errors.append(message)
            self._report(f"TensorRT: {message}", True)
        elif severity == trt.ILogger.Severity.WARNING:
            self._report(f"TensorRT: {message}", False)

    def take(self) -> str:
        """The errors since the last call, joined."""
        text = "; ".join(self.errors)
        self.errors.clear()
        return text or "TensorRT gave no reason"


class Engine:
    """A deserialized plan. Raises :class:`EngineError` with the file, this machine's release and GPU, and why."""

    def __init__(self, plan: Path, log: Log, machine: str) -> None:
        self.log = log
        self.path = plan
        if not plan.is_file():
            raise EngineError(f"unable to find '{plan}': the version directory has no such plan file")
        trt.init_libnvinfer_plugins(log, "")
        self._runtime = trt.Runtime(log)
        log.errors.clear()
        self.engine = self._runtime.deserialize_cuda_engine(plan.read_bytes())
        if self.engine is None:
            raise EngineError(
                f"unable to create TensorRT engine: {log.take()} (plan file '{plan}', served by {machine}; "
                "a plan runs only with the TensorRT release and the kind of GPU that it was built with)"
            )
        if getattr(self.engine, "has_implicit_batch_dimension", False):
            raise EngineError(f"plan file '{plan}' has an implicit batch dimension: build it with EXPLICIT_BATCH")
        self.profile_count = int(self.engine.num_optimization_profiles)
        tensors = [self._describe(self.engine.get_tensor_name(i)) for i in range(self.engine.num_io_tensors)]
        self.inputs = tuple(tensor for tensor in tensors if tensor.is_input)
        self.outputs = tuple(tensor for tensor in tensors if not tensor.is_input)

    def _describe(self, name: str) -> Tensor:
        engine = self.engine
        kind = engine.get_tensor_dtype(name)
        if kind.name not in _TYPES:
            raise EngineError(f"tensor '{name}' of '{self.path}' has type {kind.name}, which Triton cannot carry")
        datatype, dtype = _TYPES[kind.name]
        is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        on_host = engine.get_tensor_location(name) == trt.TensorLocation.HOST
        ranges: tuple[tuple[Shape, Shape, Shape], ...] = ()
        if is_input:
            ranges = tuple(self._range(name, profile) for profile in range(self.profile_count))
        shape = tuple(engine.get_tensor_shape(name))
        return Tensor(name, datatype, np.dtype(dtype), shape, is_input, on_host, ranges)

    def _range(self, name: str, profile: int) -> tuple[Shape, Shape, Shape]:
        low, best, high = self.engine.get_tensor_profile_shape(name, profile)
        return tuple(low), tuple(best), tuple(high)

    @property
    def device_memory_bytes(self) -> int:
        """Scratch memory of one execution context, the largest over all profiles."""
        size = getattr(self.engine, "device_memory_size_v2", None)
        return int(self.engine.device_memory_size if size is None else size)

    def create_context(self, scratch: int, scratch_bytes: int, profile: int, stream: int) -> Any | None:
        """A context on ``profile`` that uses the caller's scratch memory; ``None`` when the profile is taken.

        Before TensorRT 10 two contexts share a profile only where the plan was built with the preview feature
        PROFILE_SHARING_0806.
        """
        engine = self.engine
        if hasattr(trt, "ExecutionContextAllocationStrategy"):
            context = engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        else:
            context = engine.create_execution_context_without_device_memory()
        if context is None:
            raise EngineError(f"unable to create TensorRT context: {self.log.take()}")
        if scratch_bytes:
            if hasattr(context, "set_device_memory"):
                context.set_device_memory(scratch, scratch_bytes)
            else:
                context.device_memory = scratch
        if context.active_optimization_profile != profile and not context.set_optimization_profile_async(
            profile, stream
        ):
            return None
        return context


def machine_text(name: str, capability: tuple[int, int], index: int) -> str:
    return f"TensorRT {trt.__version__} on {name}, compute {capability[0]}.{capability[1]}, GPU {index}"


def fits(tensor: Tensor, profile: int, shape: Sequence[int]) -> bool:
    low, _, high = tensor.ranges[profile]
    return len(shape) == len(low) and all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True))


def shape_text(shape: Sequence[int]) -> str:
    return "[" + ",".join(str(size) for size in shape) + "]"


def allowed_text(engine: Engine, profiles: Sequence[int]) -> str:
    """The ranges of every input under every profile in use, for the message of a request that fits none."""
    lines = []
    for profile in profiles:
        parts = []
        for tensor in engine.inputs:
            if not tensor.on_host:
                low, _, high = tensor.ranges[profile]
                parts.append(f"'{tensor.name}' {shape_text(low)} to {shape_text(high)}")
        lines.append(f"profile {profile}: " + ", ".join(parts))
    return "; ".join(lines)


def check(settings: Settings, engine: Engine, converts_int64: bool) -> str | None:
    """``None`` when the config can serve the engine, else the first contradiction."""
    for profile in settings.profiles:
        if not 0 <= profile < engine.profile_count:
            return (
                f"failed to find any Optimization Profile among [{', '.join(map(str, settings.profiles))}]: "
                f"the engine has profiles 0 to {engine.profile_count - 1}"
            )
    for what, configured, provided in (
        ("input", settings.inputs, engine.inputs),
        ("output", settings.outputs, engine.outputs),
    ):
        by_name = {tensor.name: tensor for tensor in provided}
        names = {entry.name for entry in configured}
        if len(configured) > len(provided):
            return (
                f"unable to load model '{settings.model}', configuration expects {len(configured)} {what}s, "
                f"model provides at most {len(provided)}"
            )
        for entry in configured:
            if entry.name not in by_name:
                return (
                    f"unexpected inference {what} '{entry.name}' for model '{settings.model}', "
                    f"the engine has: {', '.join(by_name)}"
                )
        for name in by_name:
            if name not in names:
                return f"expected configuration for {what} '{name}' for model '{settings.model}'"
        for entry in configured:
            problem = _check_tensor(settings, what, entry, by_name[entry.name], converts_int64)
            if problem:
                return problem
    return None


def _check_tensor(settings: Settings, what: str, entry: TensorConfig, tensor: Tensor, converts: bool) -> str | None:
    if entry.datatype != tensor.datatype and not (converts and (entry.datatype, tensor.datatype) == ("INT64", "INT32")):
        return (
            f"unexpected datatype TYPE_{tensor.datatype} for inference {what} '{entry.name}', "
            f"expecting TYPE_{entry.datatype}"
        )
    batched = settings.max_batch_size > 0 and not tensor.on_host
    expected = tensor.shape[1:] if batched and tensor.shape else tensor.shape
    if batched and not tensor.shape:
        return (
            f"model '{settings.model}', tensor '{entry.name}': the engine's tensor is a scalar and has no batch "
            "dimension: use max_batch_size 0"
        )
    # Triton refuses an empty shape without a batch dimension: a scalar is [1] there.
    scalar = not batched and not expected and entry.shape == (1,)
    if not (tensor.on_host or scalar) and (
        len(entry.shape) != len(expected)
        or any(want not in (-1, has) and has != -1 for want, has in zip(entry.shape, expected, strict=True))
    ):
        return (
            f"model '{settings.model}', tensor '{entry.name}': the model expects {len(tensor.shape)} dimensions "
            f"(shape {shape_text(tensor.shape)}) but the model configuration specifies "
            f"{len(entry.shape) + int(batched)} dimensions (shape "
            f"{shape_text((-1, *entry.shape) if batched else entry.shape)})"
        )
    if batched and tensor.is_input:
        largest = max(tensor.ranges[profile][2][0] for profile in settings.profiles)
        if largest < settings.max_batch_size:
            return (
                f"unable to load model '{settings.model}', configuration specified max-batch "
                f"{settings.max_batch_size} but TensorRT engine only supports max-batch {largest}"
            )
    return None
