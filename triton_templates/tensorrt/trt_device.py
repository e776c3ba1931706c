"""The few CUDA calls that the backend needs, on cuda-python, with errors that say what was asked for.

Imports the standard library, numpy and cuda-python. Device and host memory are plain addresses (``int``).
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np


class CudaError(RuntimeError):
    """A CUDA call that failed. ``code`` is the number of ``cudaError_t``, ``name`` its name."""

    def __init__(self, call: str, code: int, name: str, text: str) -> None:
        super().__init__(f"{call}: {name} ({code}): {text}")
        self.call = call
        self.code = code
        self.name = name
        self.text = text


OUT_OF_MEMORY = 2
# After these a CUDA context answers every call with the same error until its process ends (CUDA runtime API,
# cudaError_t: "leaves the process in an inconsistent state").
STICKY = frozenset({700, 702, 710, 714, 715, 716, 717, 718, 719, 721})


def runtime() -> Any:
    """cuda-python's runtime module: ``cuda.bindings.runtime`` from 12.6, ``cuda.cudart`` before."""
    try:
        from cuda.bindings import runtime as module
    except ImportError:
        from cuda import cudart as module
    return module


def compute_capability(index: int) -> tuple[int, int]:
    """Of one GPU, without making a CUDA context on it. Raises :class:`CudaError`."""
    module = runtime()
    numbers = []
    for part in ("Major", "Minor"):
        error, *values = module.cudaDeviceGetAttribute(
            getattr(module.cudaDeviceAttr, f"cudaDevAttrComputeCapability{part}"), index
        )
        if int(error) != 0:
            name = getattr(error, "name", str(error))
            raise CudaError(f"cudaDeviceGetAttribute(compute capability, GPU {index})", int(error), name, "")
        numbers.append(int(values[0]))
    return numbers[0], numbers[1]


class Device:
    """One GPU as seen by one process. Every method raises :class:`CudaError`."""

    def __init__(self, index: int) -> None:
        self._rt = runtime()
        self.index = index
        self._call("cudaSetDevice", index)
        kinds = self._rt.cudaMemcpyKind
        self._to_device = kinds.cudaMemcpyHostToDevice
        self._to_host = kinds.cudaMemcpyDeviceToHost
        self._success = self._rt.cudaError_t.cudaSuccess
        self._copy = self._rt.cudaMemcpyAsync
        self._synchronize = self._rt.cudaStreamSynchronize
        self._launch = self._rt.cudaGraphLaunch

    def _call(self, function: str, *arguments: Any) -> Any:
        error, *values = getattr(self._rt, function)(*arguments)
        if int(error) != 0:
            self._fail(f"{function}({', '.join(map(str, arguments))})", error)
        return values[0] if values else None

    def _fail(self, call: str, error: Any) -> None:
        # An error that is not sticky would otherwise be reported again by the next, innocent call.
        self._rt.cudaGetLastError()
        name, text = "unknown error", ""
        try:
            name = self._rt.cudaGetErrorName(error)[1].decode()
            text = self._rt.cudaGetErrorString(error)[1].decode()
        except (AttributeError, IndexError, TypeError, ValueError):
            pass
        raise CudaError(call, int(error), name, text)

    def use(self) -> None:
        """Once in every thread but the one that made this object: the current device is a thread's."""
        self._call("cudaSetDevice", self.index)

    # Identity

    def name(self) -> str:
        properties = self._call("cudaGetDeviceProperties", self.index)
        name = properties.name
        return name.decode(errors="replace").rstrip("\0") if isinstance(name, bytes) else str(name)

    def compute_capability(self) -> tuple[int, int]:
        return compute_capability(self.index)

    def free_bytes(self) -> int:
        error, free, _ = self._rt.cudaMemGetInfo()
        if int(error) != 0:
            self._fail("cudaMemGetInfo()", error)
        return int(free)

    # Memory

    def allocate(self, byte_size: int) -> int:
        return int(self._call("cudaMalloc", byte_size))

    def free(self, address: int) -> None:
        self._call("cudaFree", address)

    def allocate_pinned(self, byte_size: int) -> int:
        return int(self._call("cudaHostAlloc", byte_size, 0))

    def free_pinned(self, address: int) -> None:
        self._call("cudaFreeHost", address)

    def register(self, address: int, byte_size: int) -> None:
        """Pins memory that somebody else allocated."""
        self._call("cudaHostRegister", address, byte_size, 0)

    def unregister(self, address: int) -> None:
        self._call("cudaHostUnregister", address)

    # Streams and graphs

    def stream(self) -> Any:
        return self._call("cudaStreamCreateWithFlags", 1)  # cudaStreamNonBlocking

    def destroy_stream(self, stream: Any) -> None:
        self._call("cudaStreamDestroy", stream)

    def copy_in(self, device: int, host: int, byte_size: int, stream: Any) -> None:
        (error,) = self._copy(device, host, byte_size, self._to_device, stream)
        if error != self._success:
            self._fail(f"cudaMemcpyAsync(host to device, {byte_size} bytes)", error)

    def copy_out(self, host: int, device: int, byte_size: int, stream: Any) -> None:
        (error,) = self._copy(host, device, byte_size, self._to_host, stream)
        if error != self._success:
            self._fail(f"cudaMemcpyAsync(device to host, {byte_size} bytes)", error)

    def synchronize(self, stream: Any) -> None:
        (error,) = self._synchronize(stream)
        if error != self._success:
            self._fail("cudaStreamSynchronize", error)

    def usable(self) -> bool:
        """Whether the CUDA context still works: a sticky error makes every call fail."""
        self._rt.cudaGetLastError()
        return int(self._rt.cudaDeviceSynchronize()[0]) == 0

    def begin_capture(self, stream: Any) -> None:
        modes = self._rt.cudaStreamCaptureMode
        self._call("cudaStreamBeginCapture", stream, modes.cudaStreamCaptureModeThreadLocal)

    def end_capture(self, stream: Any) -> Any:
        return self._call("cudaStreamEndCapture", stream)

    def instantiate(self, graph: Any) -> Any:
        """An executable graph; ``graph`` itself is given up."""
        try:
            return self._call("cudaGraphInstantiate", graph, 0)
        finally:
            self._call("cudaGraphDestroy", graph)

    def launch(self, graph: Any, stream: Any) -> None:
        (error,) = self._launch(graph, stream)
        if error != self._success:
            self._fail("cudaGraphLaunch", error)

    def destroy_graph(self, graph: Any) -> None:
        self._call("cudaGraphExecDestroy", graph)


def bytes_at(address: int, byte_size: int) -> np.ndarray:
    """A uint8 array over memory that somebody else owns."""
    return np.frombuffer((ctypes.c_uint8 * byte_size).from_address(address), dtype=np.uint8)
