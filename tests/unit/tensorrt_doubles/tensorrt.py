"""TensorRT's runtime with NumPy as the engine: a plan is JSON that names a function of ``FUNCTIONS``.

``{"function": "affine", "tensors": [{"name", "type", "shape", "input", "host"}], "profiles": [{name: [min, opt, max]}],
"sharing": true, "memory": 1024}``. Has the calls of TensorRT 8.6 that the backend makes and refuses what that refuses:
shapes outside the active profile, a second context on a profile where the plan has no profile sharing.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
from cuda.bindings import runtime

__version__ = "8.6.0"


class DataType(Enum):
    FLOAT = 0
    HALF = 1
    INT8 = 2
    INT32 = 3
    BOOL = 4
    UINT8 = 5
    FP8 = 6
    BF16 = 7
    INT64 = 8


_NUMPY = {
    "FLOAT": np.float32, "HALF": np.float16, "INT8": np.int8, "INT32": np.int32, "BOOL": np.bool_,
    "UINT8": np.uint8, "BF16": np.uint16, "INT64": np.int64,
}  # fmt: skip


class TensorIOMode(Enum):
    NONE = 0
    INPUT = 1
    OUTPUT = 2


class TensorLocation(Enum):
    DEVICE = 0
    HOST = 1


class ILogger:
    class Severity(Enum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2
        INFO = 3
        VERBOSE = 4

    def __init__(self) -> None:
        pass


def init_libnvinfer_plugins(logger: ILogger, namespace: str) -> bool:
    return True


Values = dict[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]

FUNCTIONS: dict[str, tuple[Callable[[Shapes, Values], Shapes], Callable[[Values], Values]]] = {
    "affine": (lambda shapes, _: {"y": shapes["x"]}, lambda v: {"y": v["x"] * 2 + 1}),
    "identity": (lambda shapes, _: {"y": shapes["x"]}, lambda v: {"y": v["x"]}),
    "row_sum": (lambda shapes, _: {"y": (shapes["x"][0], 1)}, lambda v: {"y": v["x"].sum(axis=1, keepdims=True)}),
    "two": (
        lambda shapes, _: {"sum": shapes["a"], "more": shapes["b"]},
        lambda v: {"sum": v["a"] + v["b"].astype(np.float32), "more": v["b"] + 1},
    ),
    "scale": (
        lambda shapes, _: {"y": shapes["x"], "total": ()},
        lambda v: {"y": v["x"] * v["factor"], "total": np.asarray((v["x"] * v["factor"]).sum(), np.float32)},
    ),
    "expand": (
        lambda _, values: {"y": tuple(int(size) for size in values["shape"])},
        lambda v: {"y": np.broadcast_to(v["x"], tuple(v["shape"]))},
    ),
    "total": (lambda _, __: {"y": (1,)}, lambda v: {"y": v["x"].sum(keepdims=True).reshape(1)}),
    "unknown_size": (lambda _, __: {"y": (-1,)}, lambda v: {"y": v["x"]}),
}


class Runtime:
    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def deserialize_cuda_engine(self, data: bytes) -> ICudaEngine | None:
        try:
            plan = json.loads(data)
        except ValueError:
            self.logger.log(ILogger.Severity.ERROR, "1: [stdArchiveReader.cpp::StdArchiveReader::32] magicTagRead")
            return None
        if plan.get("version", 236) != 236:
            self.logger.log(
                ILogger.Severity.ERROR,
                "Version tag does not match. Note: Current Version: 236, Serialized Engine Version: 239",
            )
            return None
        return ICudaEngine(plan, self.logger)


class ICudaEngine:
    def __init__(self, plan: dict[str, Any], logger: Any) -> None:
        self.plan, self.logger = plan, logger
        self.tensors = {tensor["name"]: tensor for tensor in plan["tensors"]}
        self.profiles = [
            {name: [tuple(shape) for shape in shapes] for name, shapes in profile.items()}
            for profile in plan.get("profiles", [{}])
        ]
        self.taken: set[int] = set()
        self.has_implicit_batch_dimension = False
        self.num_optimization_profiles = len(self.profiles)
        self.num_io_tensors = len(self.tensors)
        self.device_memory_size = plan.get("memory", 1024)

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType[self.tensors[name]["type"]]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if self.tensors[name].get("input") else TensorIOMode.OUTPUT

    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation.HOST if self.tensors[name].get("host") else TensorLocation.DEVICE

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name]["shape"])

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[tuple[int, ...]]:
        fixed = tuple(self.tensors[name]["shape"])
        return self.profiles[profile].get(name, [fixed] * 3)

    def create_execution_context_without_device_memory(self) -> IExecutionContext:
        return IExecutionContext(self)


class IExecutionContext:
    def __init__(self, engine: ICudaEngine) -> None:
        self.engine = engine
        self.device_memory = 0
        self.addresses: dict[str, int] = {}
        self.shapes: Shapes = {}
        self.active_optimization_profile = -1
        if self._free(0):
            engine.taken.add(0)
            self.active_optimization_profile = 0

    def _free(self, profile: int) -> bool:
        return self.engine.plan.get("sharing", True) or profile not in self.engine.taken

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        if not self._free(profile):
            self.engine.logger.log(ILogger.Severity.ERROR, f"profile {profile} is in use by another context")
            return False
        self.engine.taken.add(profile)
        self.active_optimization_profile = profile
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        low, _, high = self.engine.get_tensor_profile_shape(name, self.active_optimization_profile)
        if len(shape) != len(low) or not all(a <= x <= b for a, x, b in zip(low, shape, high, strict=True)):
            self.engine.logger.log(ILogger.Severity.ERROR, f"{name}: {shape} is not in {low} to {high}")
            return False
        self.shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return address != 0

    def _input_shapes(self) -> Shapes:
        names = [name for name, tensor in self.engine.tensors.items() if tensor.get("input")]
        return {name: self.shapes.get(name, self.engine.get_tensor_shape(name)) for name in names}

    def _host_values(self) -> Values:
        return {
            name: self._array(name, shape)
            for name, shape in self._input_shapes().items()
            if self.engine.tensors[name].get("host")
        }

    def _array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        dtype = np.dtype(_NUMPY[self.engine.tensors[name]["type"]])
        count = int(np.prod(shape, dtype=np.int64))
        memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(self.addresses[name])
        return np.frombuffer(memory, dtype=dtype).reshape(shape)

    def infer_shapes(self) -> list[str]:
        return [name for name, shape in self._input_shapes().items() if -1 in shape]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        shapes = self._input_shapes()
        if name in shapes:
            return shapes[name]
        return FUNCTIONS[self.engine.plan["function"]][0](shapes, self._host_values())[name]

    def execute_async_v3(self, stream: int) -> bool:
        if self.engine.device_memory_size and not self.device_memory:
            self.engine.logger.log(ILogger.Severity.ERROR, "no device memory was set")
            return False
        shapes = self._input_shapes()
        results = FUNCTIONS[self.engine.plan["function"]][0](shapes, self._host_values())
        # What a captured graph keeps are the addresses and shapes of now.
        inputs = {name: self._array(name, shape) for name, shape in shapes.items()}
        if self.addresses[next(iter(results))] == 1 << 20:
            runtime.state["sticky"] = 700
            return True
        outputs = {name: self._array(name, shape) for name, shape in results.items()}

        def work() -> None:
            for name, value in FUNCTIONS[self.engine.plan["function"]][1](inputs).items():
                outputs[name][...] = value

        runtime.enqueue(work)
        return True
