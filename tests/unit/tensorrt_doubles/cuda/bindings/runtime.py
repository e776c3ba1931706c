# ruff: noqa: N801, N802, N815 (CUDA's own names)
"""CUDA's runtime with the CPU as the device: the calls that the TensorRT backend makes, and their order.

Device memory is host memory from malloc. A stream runs at once, except while it is captured: then work is recorded
and runs at each launch, with the addresses of the capture. ``fail_next`` makes one call fail, ``memory_limit`` makes
allocations fail; a sticky error stays. Also counts what is allocated, to show that all is given back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum
from typing import Any


class cudaError_t(IntEnum):
    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorIllegalAddress = 700
    cudaErrorStreamCaptureInvalidated = 901


class cudaMemcpyKind(IntEnum):
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2


class cudaStreamCaptureMode(IntEnum):
    cudaStreamCaptureModeThreadLocal = 1


class cudaDeviceAttr(IntEnum):
    cudaDevAttrComputeCapabilityMajor = 75
    cudaDevAttrComputeCapabilityMinor = 76


SUCCESS = cudaError_t.cudaSuccess
STICKY = {700}

live: dict[int, Any] = {}
calls: list[str] = []
state: dict[str, Any] = {"sticky": 0, "fail_next": {}, "memory_limit": None, "capture": None, "streams": 0}


def reset() -> None:
    live.clear()
    calls.clear()
    state.update(sticky=0, fail_next={}, memory_limit=None, capture=None, streams=0)


def enqueue(work: Callable[[], None]) -> None:
    """For the double of TensorRT: work in stream order."""
    if state["capture"] is not None:
        state["capture"].append(work)
    else:
        work()


def _enter(name: str) -> cudaError_t:
    calls.append(name)
    if state["sticky"]:
        return cudaError_t(state["sticky"])
    code = state["fail_next"].pop(name, 0)
    if code in STICKY:
        state["sticky"] = code
    return cudaError_t(code)


def cudaSetDevice(index: int) -> tuple[cudaError_t]:
    return (_enter("cudaSetDevice"),)


def cudaGetLastError() -> tuple[cudaError_t]:
    return (cudaError_t(state["sticky"]),)


def cudaGetErrorName(error: cudaError_t) -> tuple[cudaError_t, bytes]:
    return SUCCESS, error.name.encode()


def cudaGetErrorString(error: cudaError_t) -> tuple[cudaError_t, bytes]:
    return SUCCESS, b"text of " + error.name.encode()


class _Properties:
    name = b"Double GPU"


def cudaGetDeviceProperties(index: int) -> tuple[cudaError_t, Any]:
    return _enter("cudaGetDeviceProperties"), _Properties()


def cudaDeviceGetAttribute(attribute: cudaDeviceAttr, index: int) -> tuple[cudaError_t, int]:
    return SUCCESS, 9 if attribute == cudaDeviceAttr.cudaDevAttrComputeCapabilityMajor else 0


def cudaMemGetInfo() -> tuple[cudaError_t, int, int]:
    return _enter("cudaMemGetInfo"), 1 << 30, 1 << 31


def _allocate(name: str, size: int) -> tuple[cudaError_t, int | None]:
    error = _enter(name)
    limit = state["memory_limit"]
    if error == 0 and limit is not None and size + sum(map(len, live.values())) > limit:
        error = cudaError_t.cudaErrorMemoryAllocation
    if error != 0:
        return error, None
    # Aligned like the real one; the memory starts as noise, as on a device.
    memory = (ctypes.c_uint8 * (size + 256))(*b"\xa5" * min(size, 64))
    address = -(-ctypes.addressof(memory) // 256) * 256
    live[address] = memory
    return SUCCESS, address


def _free(name: str, address: int) -> tuple[cudaError_t]:
    error = _enter(name)
    if error == 0 and live.pop(address, None) is None:
        error = cudaError_t.cudaErrorInvalidValue
    return (error,)


def cudaMalloc(size: int) -> tuple[cudaError_t, int | None]:
    return _allocate("cudaMalloc", size)


def cudaFree(address: int) -> tuple[cudaError_t]:
    return _free("cudaFree", address)


def cudaHostAlloc(size: int, flags: int) -> tuple[cudaError_t, int | None]:
    return _allocate("cudaHostAlloc", size)


def cudaFreeHost(address: int) -> tuple[cudaError_t]:
    return _free("cudaFreeHost", address)


def cudaHostRegister(address: int, size: int, flags: int) -> tuple[cudaError_t]:
    return (_enter("cudaHostRegister"),)


def cudaHostUnregister(address: int) -> tuple[cudaError_t]:
    return (_enter("cudaHostUnregister"),)


def cudaStreamCreateWithFlags(flags: int) -> tuple[cudaError_t, int]:
    state["streams"] += 1
    return _enter("cudaStreamCreateWithFlags"), 17


def cudaStreamDestroy(stream: int) -> tuple[cudaError_t]:
    state["streams"] -= 1
    return (_enter("cudaStreamDestroy"),)


def cudaMemcpyAsync(target: int, source: int, size: int, kind: cudaMemcpyKind, stream: int) -> tuple[cudaError_t]:
    error = _enter("cudaMemcpyAsync")
    if error == 0:
        enqueue(lambda: ctypes.memmove(target, source, size) and None)
    return (error,)


def cudaStreamSynchronize(stream: int) -> tuple[cudaError_t]:
    if state["capture"] is not None:
        return (cudaError_t.cudaErrorStreamCaptureInvalidated,)
    return (_enter("cudaStreamSynchronize"),)


def cudaDeviceSynchronize() -> tuple[cudaError_t]:
    return (_enter("cudaDeviceSynchronize"),)


def cudaStreamBeginCapture(stream: int, mode: cudaStreamCaptureMode) -> tuple[cudaError_t]:
    error = _enter("cudaStreamBeginCapture")
    if error == 0:
        state["capture"] = []
    return (error,)


def cudaStreamEndCapture(stream: int) -> tuple[cudaError_t, Any]:
    graph, state["capture"] = state["capture"], None
    return _enter("cudaStreamEndCapture"), graph


def cudaGraphInstantiate(graph: Any, flags: int) -> tuple[cudaError_t, Any]:
    return _enter("cudaGraphInstantiate"), list(graph)


def cudaGraphDestroy(graph: Any) -> tuple[cudaError_t]:
    return (_enter("cudaGraphDestroy"),)


def cudaGraphExecDestroy(graph: Any) -> tuple[cudaError_t]:
    return (_enter("cudaGraphExecDestroy"),)


def cudaGraphLaunch(graph: Any, stream: int) -> tuple[cudaError_t]:
    error = _enter("cudaGraphLaunch")
    if error == 0:
        for work in graph:
            work()
    return (error,)
