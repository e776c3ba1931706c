"""The process that holds one engine for all instances of a model on one GPU.

Triton's python backend makes a process of every instance. Contexts of different processes take turns on a GPU and each
holds its own copy of the weights; contexts of one process run side by side on one copy. So instances only gather and
answer, in processes of their own, and this process runs their batches: a thread, an execution context and a stream for
each. Batches are in memory that both ends share and that is pinned here: nothing is copied in between.

Started by the first instance with a listening socket; ends when the last one has gone, also when they are killed.
An error that CUDA does not survive ends this process: the next request starts another.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from trt_channel import Channel, Closed, same_user
from trt_device import CudaError, Device
from trt_engine import Engine, EngineError, Log, Tensor, machine_text
from trt_session import KEPT_EXECUTIONS, Buffer, Execution, Session, ShapeError

FIRST_CONNECTION_TIMEOUT_S = 30.0
EXIT_AFTER_LOST_CONTEXT = 70


class SharedBuffer(Buffer):
    """Host memory that the instance maps too. ``descriptor`` is to be sent while it is not ``None``."""

    def __init__(self, device: Device, tensor: Tensor) -> None:
        super().__init__(device, tensor)
        self.descriptor: int | None = None
        self._map: mmap.mmap | None = None

    def allocate_host(self, byte_size: int) -> int:
        self._close_descriptor()
        self.descriptor = os.memfd_create(f"tensorrt-{self.tensor.name}"[:200])
        os.ftruncate(self.descriptor, byte_size)
        self._map = mmap.mmap(self.descriptor, byte_size)
        address = ctypes.addressof(ctypes.c_uint8.from_buffer(self._map))
        self.device.register(address, byte_size)
        return address

    def free_host(self, address: int) -> None:
        self.device.unregister(address)
        # Not closed by hand: arrays on it may still be referred to; it goes with the last of them.
        self._map = None
        self._close_descriptor()

    def _close_descriptor(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class Client:
    """One instance's connection: its session and the executions that it may ask for by number."""

    def __init__(self, owner: Executor, channel: Channel) -> None:
        self.owner, self.channel = owner, channel
        self.session: Session | None = None
        self.executions: dict[int, Execution] = {}
        self._numbers = itertools.count()

    def serve(self) -> None:
        """Until the instance goes. Runs in a thread of its own."""
        try:
            self.owner.device.use()
            self.channel.send(self.owner.describe())
            while True:
                letter, content, _ = self.channel.receive()
                if letter == b"R":
                    self._run(content)
                else:
                    self._answer(content)
        except Closed:
            pass
        finally:
            with self.owner.lock:
                self._close()
            self.channel.close()
            self.owner.gone(self)

    def _close(self) -> None:
        self.executions.clear()
        if self.session is not None:
            self.session.close()
            self.session = None

    def _answer(self, document: dict[str, Any]) -> None:
        command = document["command"]
        try:
            with self.owner.lock:
                if command == "open":
                    reply = self._open(document)
                elif command == "prepare":
                    reply = self._prepare(_shapes(document["shapes"]))
                elif command == "close":
                    self._close()
                    self.owner.clients.discard(self)
                    reply = {"others": len(self.owner.clients)}
                elif command == "capture":
                    assert self.session is not None
                    reply = {"captured": self.session.capture(_shapes(document["shapes"]))}
                else:
                    assert self.session is not None
                    self.session.run_broken(self.executions[document["number"]])
                    reply = {}
        except Exception as error:  # noqa: BLE001 - whatever it is, the instance must hear it, not lose its engine
            self._failed(error)
            return
        self._send(reply)

    def _open(self, document: dict[str, Any]) -> dict[str, Any]:
        owner = self.owner
        self.session = Session(owner.engine, owner.device, document["profiles"], owner.report, None, SharedBuffer)
        self.session.preallocate(_shapes(document["largest"]))
        return {}

    def _prepare(self, shapes: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
        assert self.session is not None
        execution = self.session.prepare(shapes)
        number = next(self._numbers)
        self.executions[number] = execution
        # The instance keeps fewer and drops the oldest first, so it never asks for one that is dropped here.
        if len(self.executions) > 2 * KEPT_EXECUTIONS:
            del self.executions[next(iter(self.executions))]
        return {
            "number": number,
            "outputs": [list(output.shape) for output in execution.outputs],
            "graph": execution.graph is not None,
        }

    def _run(self, number: int) -> None:
        session = self.session
        assert session is not None
        execution = self.executions[number]
        try:
            if session.has_shape_inputs:
                with self.owner.lock:
                    outputs = session.run(execution)
                self._send({"outputs": [list(output.shape) for output in outputs]})
                return
            session.run(execution)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)
            return
        self.channel.send_number(b"O", number)

    def _send(self, reply: dict[str, Any]) -> None:
        """With the buffers that the instance has not mapped yet; then it forgets what it had prepared."""
        names, sizes, descriptors = [], [], []
        buffers = self.session.buffers.values() if self.session is not None else ()
        for buffer in buffers:
            assert isinstance(buffer, SharedBuffer)
            if buffer.descriptor is not None:
                names.append(buffer.tensor.name)
                sizes.append(buffer.capacity)
                descriptors.append(buffer.descriptor)
        self.channel.send({**reply, "buffers": names, "sizes": sizes}, descriptors)
        for buffer in buffers:
            assert isinstance(buffer, SharedBuffer)
            buffer._close_descriptor()

    def _failed(self, error: Exception) -> None:
        document = _failure(error)
        if not isinstance(error, ShapeError):
            lost = self.session.recover() if self.session is not None else None
            if lost is not None:
                document["lost"] = lost
        if "lost" not in document:
            self._send(document)
            return
        try:
            self.channel.send(document)
        finally:
            # Nothing can be given back any more, and the other instances must not wait: the driver frees it all.
            self.owner.report(f"the engine process ends: {document['text']}", True)
            os._exit(EXIT_AFTER_LOST_CONTEXT)


class Executor:
    def __init__(self, listener: socket.socket, plan: Path, device: int) -> None:
        self.listener = listener
        self.lock = threading.Lock()
        self.clients: set[Client] = set()
        self.device = Device(device)
        capability = self.device.compute_capability()
        machine = machine_text(self.device.name(), capability, device)
        self.engine = Engine(plan, Log(self.report), machine)

    def report(self, text: str, is_error: bool) -> None:
        print(f"{'E' if is_error else 'W'} tensorrt engine process {os.getpid()}: {text}", file=sys.stderr, flush=True)

    def describe(self) -> dict[str, Any]:
        return {
            "tensors": [
                {
                    "name": tensor.name,
                    "datatype": tensor.datatype,
                    "dtype": tensor.dtype.str,
                    "shape": tensor.shape,
                    "is_input": tensor.is_input,
                    "on_host": tensor.on_host,
                    "ranges": tensor.ranges,
                }
                for tensor in (*self.engine.inputs, *self.engine.outputs)
            ],
            "profiles": self.engine.profile_count,
            "pid": os.getpid(),
        }

    def serve(self) -> None:
        self.listener.settimeout(FIRST_CONNECTION_TIMEOUT_S)
        while True:
            try:
                connection, _ = self.listener.accept()
            except TimeoutError:
                with self.lock:
                    if not self.clients:
                        os._exit(0)
                continue
            if not same_user(connection):
                connection.close()
                continue
            connection.settimeout(None)
            client = Client(self, Channel(connection))
            with self.lock:
                self.clients.add(client)
            threading.Thread(target=client.serve, daemon=True).start()

    def gone(self, client: Client) -> None:
        with self.lock:
            self.clients.discard(client)
            if self.clients:
                return
            # Whoever connects now finds the socket closed, and starts another process.
            self.listener.close()
            os._exit(0)


def _failure(error: Exception) -> dict[str, Any]:
    if isinstance(error, CudaError):
        return {"error": "CudaError", "text": str(error), "cuda": [error.call, error.code, error.name, error.text]}
    if isinstance(error, (ShapeError, EngineError)):
        return {"error": type(error).__name__, "text": str(error)}
    return {"error": "EngineError", "text": f"{type(error).__name__}: {error}"}


def _shapes(document: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(shape) for shape in document)


def main(arguments: list[str]) -> int:
    listener = socket.socket(fileno=int(arguments[0]))
    try:
        executor = Executor(listener, Path(arguments[1]), int(arguments[2]))
    except (EngineError, CudaError) as error:
        # Everybody who waits gets the reason.
        failure = _failure(error)
        listener.settimeout(0.1)
        try:
            while True:
                channel = Channel(listener.accept()[0])
                with contextlib.suppress(Closed):
                    channel.send(failure)
                channel.close()
        except TimeoutError:
            return 1
    executor.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
