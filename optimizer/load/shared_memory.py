"""Tensors that reach the server, and come back, without going over the wire.

Inputs lie side by side in one region that nobody writes to any more: any number of requests may read one. Answers need
a slot of their own per request in flight, so every load process has a region of slots.

Files in /dev/shm carry a token, by which the guardian of a load process removes them should its owner be killed; the
registration with the server is taken back by the load process, which outlives its owner for that long.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimizer.errors import EnvironmentFailure
from optimizer.records.model import ITEM_BYTES
from optimizer.records.samples import Sample
from optimizer.triton.client import TritonClient, TritonError, to_wire

SHARED_MEMORY = Path("/dev/shm")
ALIGNMENT = 64
RELEASE_S = 2.0
RELEASE_PAUSE_S = 0.02
NAME = "triton_optimizer_load"
Places = list[dict[str, tuple[int, int]]]


@dataclass(frozen=True)
class OutputSlots:
    """Where answers go: output name to the bytes that the largest answer needs. ``prefix`` names the region."""

    sizes: Mapping[str, int]
    prefix: str


class SystemRegion:
    """A file in /dev/shm, mapped."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self._path = SHARED_MEMORY / name
        try:
            with self._path.open("x+b") as file:
                # Reserves the pages: a full /dev/shm is an error here, not a SIGBUS on the first write.
                os.posix_fallocate(file.fileno(), 0, size)
                self.memory = mmap.mmap(file.fileno(), size)
        except OSError as error:
            self._path.unlink(missing_ok=True)
            raise EnvironmentFailure(
                f"{size} bytes of shared memory cannot be had ({error.strerror})",
                where=self._path,
                remedy="give /dev/shm more room, use fewer samples, or measure without shared memory",
            ) from None

    def register(self, client: TritonClient) -> None:
        register(client, self.name, lambda: client.register_system_shared_memory(self.name, f"/{self.name}", self.size))

    def close(self) -> None:
        with contextlib.suppress(BufferError):
            self.memory.close()
        self._path.unlink(missing_ok=True)


class CudaRegion:
    """Device memory that the server opens by its IPC handle. Needs cuda-python and a server on the same GPU."""

    def __init__(self, name: str, data: bytes, *, device: int = 0) -> None:
        self.name = name
        self.size = len(data)
        self._device = device
        self._runtime = _cuda_runtime()
        self._call("cudaSetDevice", device)
        (self._pointer,) = self._call("cudaMalloc", len(data))
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call("cudaMemcpy", self._pointer, data, len(data), kind)

    def register(self, client: TritonClient) -> None:
        (handle,) = self._call("cudaIpcGetMemHandle", self._pointer)
        register(
            client,
            self.name,
            lambda: client.register_cuda_shared_memory(self.name, bytes(handle.reserved), self._device, self.size),
        )

    def close(self) -> None:
        if self._pointer is not None:
            self._runtime.cudaFree(self._pointer)
            self._pointer = None

    def _call(self, function: str, *arguments: object) -> tuple[Any, ...]:
        error, *results = getattr(self._runtime, function)(*arguments)
        if int(error) != 0:
            raise EnvironmentFailure(
                f"{function} failed with {error}", remedy="free GPU memory, or measure without CUDA shared memory"
            )
        return tuple(results)


def register(client: TritonClient, name: str, action: Callable[[], None]) -> None:
    try:
        action()
    except TritonError as error:
        remedy = "measure without shared memory, or let the server see this host's /dev/shm (docker: --ipc=host)"
        if error.status == "UNAVAILABLE":
            remedy = "see whether the server runs, and at this address"
        problem = f"the server does not take shared memory {name}: {error.problem}"
        raise EnvironmentFailure(problem, where=client.url, remedy=remedy) from None


def unregister(client: TritonClient, name: str, *, cuda: bool = False) -> None:
    """Triton keeps a region while a request uses it, so this may take a while; after ``RELEASE_S`` it says on stderr
    why it could not. (The server may be gone, and with it what was registered.)"""
    deadline = time.monotonic() + RELEASE_S
    while True:
        try:
            client.unregister_shared_memory(name, cuda=cuda)
            return
        except TritonError as error:
            if "in use" not in error.problem or time.monotonic() > deadline:
                print(f"shared memory {name} is still registered with {client.url}: {error.problem}", file=sys.stderr)
                return
        time.sleep(RELEASE_PAUSE_S)


def lay_out(samples: Sequence[Sample], datatypes: Mapping[str, str]) -> tuple[bytes, Places]:
    """All inputs in one piece, and (offset, bytes) of each."""
    data = bytearray()
    places: Places = []
    for sample in samples:
        places.append({})
        for name, array in sample.inputs.items():
            wire = to_wire(array, datatypes[name])
            places[-1][name] = (len(data), len(wire))
            data += wire
            data += bytes(-len(data) % ALIGNMENT)
    return bytes(data), places


class OutputRegion:
    """A load process's slots. ``request_part(slot)`` goes behind a serialized request and directs its answer there."""

    def __init__(self, client: TritonClient, slots: OutputSlots, count: int, name: str) -> None:
        self._offsets: dict[str, int] = {}
        self._sizes = dict(slots.sizes)
        size = 0
        for output, length in slots.sizes.items():
            self._offsets[output] = size
            size += length + -length % ALIGNMENT
        self._slot_bytes = size
        self.count = count
        self.region = SystemRegion(name, max(1, size * count))
        self._client = client
        try:
            self.region.register(client)
        except EnvironmentFailure:
            self.region.close()
            raise
        self._parts = [self._part(slot) for slot in range(count)]

    def _part(self, slot: int) -> bytes:
        from tritonclient.grpc import service_pb2

        request = service_pb2.ModelInferRequest()
        for output, size in self._sizes.items():
            tensor = request.outputs.add(name=output)
            tensor.parameters["shared_memory_region"].string_param = self.region.name
            tensor.parameters["shared_memory_byte_size"].int64_param = size
            tensor.parameters["shared_memory_offset"].int64_param = slot * self._slot_bytes + self._offsets[output]
        return bytes(request.SerializeToString())

    def request_part(self, slot: int) -> bytes:
        return self._parts[slot]

    def with_contents(self, answer: bytes, slot: int) -> bytes:
        """An answer whose tensors lie in the slot, as if they had come over the wire. Copies, since the slot's next
        request overwrites them. A slot that the server did not write still holds an answer to another sample, which
        validation then finds wrong."""
        from tritonclient.grpc import service_pb2

        response = service_pb2.ModelInferResponse.FromString(answer)
        carried = list(response.raw_output_contents)
        del response.raw_output_contents[:]
        for number, output in enumerate(response.outputs):
            if output.name in self._offsets:
                start = slot * self._slot_bytes + self._offsets[output.name]
                room = self.region.memory[start : start + self._sizes[output.name]]
                response.raw_output_contents.append(room[: wire_bytes(output.datatype, output.shape, room)])
            else:
                response.raw_output_contents.append(carried[number])
        return bytes(response.SerializeToString())

    def close(self) -> None:
        unregister(self._client, self.region.name)
        self.region.close()


def wire_bytes(datatype: str, shape: Sequence[int], data: bytes) -> int:
    """How much of ``data`` a tensor of this type and shape takes (the server does not say)."""
    elements = math.prod(shape)
    if datatype != "BYTES":
        return elements * ITEM_BYTES[datatype]
    end = 0
    for _ in range(elements):
        end += 4 + int.from_bytes(data[end : end + 4], "little")
    return end


def _cuda_runtime() -> Any:
    try:
        from cuda.bindings import runtime
    except ImportError:
        try:
            from cuda import cudart as runtime
        except ImportError:
            raise EnvironmentFailure(
                "CUDA shared memory needs cuda-python",
                remedy="install triton-optimizer[tensorrt], or use system shared memory",
            ) from None
    return runtime
