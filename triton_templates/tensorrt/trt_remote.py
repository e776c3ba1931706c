"""An instance's session in the engine process (:mod:`trt_executor`), with the interface of ``trt_session.Session``."""

from __future__ import annotations

import mmap
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import trt_channel
from trt_channel import Channel, Closed
from trt_device import CudaError
from trt_engine import EngineError, Shape, Tensor
from trt_phases import Phases
from trt_session import KEPT_EXECUTIONS, Execution, ShapeError

START_TIMEOUT_S = 300.0
"""Until an engine is there: large plans take long to read."""
END_TIMEOUT_S = 5.0

_started: list[subprocess.Popen[bytes]] = []


class ProfileTaken(EngineError):
    """The plan allows one context a profile: instances need engines of their own."""


class RemoteSession:
    """Not thread-safe: one per instance, used by one thread.

    Starts the engine process where none runs. When it ends, because of another instance's request or by force, the
    request in hand is run again in a new one, once.
    """

    def __init__(
        self, plan: Path, device: int, report: Callable[[str, bool], None], phases: Phases | None = None
    ) -> None:
        self._plan, self._device, self._report, self.phases = plan, device, report, phases
        self._opening: dict[str, Any] | None = None
        self._captures: list[tuple[Shape, ...]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._channel: Channel | None = None
        self._bytes: dict[str, np.ndarray] = {}
        self._executions: dict[tuple[Shape, ...], tuple[int, Execution]] = {}
        self.inputs: tuple[Tensor, ...] = ()
        self.outputs: tuple[Tensor, ...] = ()
        self.profile_count = 0
        try:
            self._connect()
        except Exception:
            self._leave()
            raise

    # The process

    def _connect(self) -> None:
        """Raises :class:`EngineError` or :class:`CudaError` with the engine process's own reason."""
        self._executions.clear()
        self._bytes.clear()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            channel = Channel(self._dial(deadline))
            try:
                _, document, _ = channel.receive()
            except Closed:
                # It was just ending.
                channel.close()
                if time.monotonic() > deadline:
                    raise EngineError("the engine process does not start") from None
                time.sleep(0.02)
                continue
            break
        self._channel = channel
        _raise(document)
        tensors = [_tensor(entry) for entry in document["tensors"]]
        self.inputs = tuple(tensor for tensor in tensors if tensor.is_input)
        self.outputs = tuple(tensor for tensor in tensors if not tensor.is_input)
        self.profile_count = int(document["profiles"])
        self._pid = int(document["pid"])
        if self._opening is not None:
            self._ask_surely(self._opening)
            for shapes in self._captures:
                self._ask_surely({"command": "capture", "shapes": shapes})

    def _dial(self, deadline: float) -> socket.socket:
        name = trt_channel.address(os.getppid(), self._plan, self._device)
        while True:
            connection = trt_channel.make_socket()
            try:
                connection.connect(name)
            except OSError:
                connection.close()
                self._start(name)
                if time.monotonic() > deadline:
                    raise EngineError("the engine process does not start") from None
                time.sleep(0.01)
                continue
            if trt_channel.same_user(connection):
                return connection
            connection.close()
            raise EngineError("the engine process's address belongs to another user")

    def _start(self, name: str) -> None:
        """Whoever can bind the address starts the process, with the socket listening already."""
        listener = trt_channel.make_socket()
        try:
            listener.bind(name)
        except OSError:
            listener.close()
            return
        listener.listen(128)
        here = Path(__file__).parent
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), *filter(None, sys.path)])}
        _reap()
        try:
            self._process = subprocess.Popen(
                [_python(), str(here / "trt_executor.py"), str(listener.fileno()), str(self._plan), str(self._device)],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(listener.fileno(),),
            )
        except OSError as error:
            raise EngineError(f"the engine process does not start: {error}") from None
        finally:
            listener.close()
        _started.append(self._process)

    # The interface of Session

    def open(self, profiles: Sequence[int], largest: Sequence[Shape]) -> None:
        self._opening = {"command": "open", "profiles": list(profiles), "largest": [list(shape) for shape in largest]}
        self._ask_surely(self._opening)

    @property
    def has_shape_inputs(self) -> bool:
        return any(tensor.on_host for tensor in self.inputs)

    def prepare(self, shapes: tuple[Shape, ...]) -> Execution:
        known = self._executions.get(shapes)
        if known is None:
            known = self._prepare(shapes)
        return known[1]

    def _prepare(self, shapes: tuple[Shape, ...]) -> tuple[int, Execution]:
        try:
            reply = self._ask({"command": "prepare", "shapes": shapes})
        except Closed:
            self._connect()
            reply = self._ask_surely({"command": "prepare", "shapes": shapes})
        inputs = tuple(self._view(t, shape) for t, shape in zip(self.inputs, shapes, strict=True))
        outputs = tuple(self._view(t, tuple(s)) for t, s in zip(self.outputs, reply["outputs"], strict=False))
        execution = Execution(shapes, 0, inputs, outputs, (), ())
        if len(self._executions) >= KEPT_EXECUTIONS:
            self._executions.pop(next(iter(self._executions)))
        self._executions[shapes] = (reply["number"], execution)
        return self._executions[shapes]

    def _view(self, tensor: Tensor, shape: Shape) -> np.ndarray:
        count = int(np.prod(shape, dtype=np.int64))
        return self._bytes[tensor.name][: count * tensor.dtype.itemsize].view(tensor.dtype).reshape(shape)

    def capture(self, shapes: tuple[Shape, ...]) -> bool:
        captured = bool(self._ask_surely({"command": "capture", "shapes": shapes})["captured"])
        if captured:
            self._captures.append(shapes)
        return captured

    def run(self, execution: Execution) -> tuple[np.ndarray, ...]:
        try:
            outputs = self._run(execution)
        except Closed:
            # The inputs are here still: once more, in a new process.
            self._report("the engine process has ended: starting another", True)
            kept = [array.copy() for array in execution.inputs]
            self._connect()
            execution = self.prepare(execution.shapes)
            for target, array in zip(execution.inputs, kept, strict=True):
                target[...] = array
            try:
                outputs = self._run(execution)
            except Closed:
                raise EngineError("the engine process ended twice during a request") from None
        if self.phases is not None:
            self.phases.end_of("compute")
        return outputs

    def _run(self, execution: Execution) -> tuple[np.ndarray, ...]:
        channel = self._channel
        if channel is None:
            raise Closed("not connected")
        channel.send_number(b"R", self._executions[execution.shapes][0])
        letter, content, descriptors = channel.receive()
        if letter == b"O":
            return execution.outputs
        self._map(content, descriptors)
        self._check(content)
        return tuple(self._view(t, tuple(s)) for t, s in zip(self.outputs, content["outputs"], strict=True))

    def run_broken(self, execution: Execution) -> tuple[np.ndarray, ...]:
        """For tests alone, as in ``Session``."""
        self._ask_surely({"command": "break", "number": self._executions[execution.shapes][0]})
        return execution.outputs

    def recover(self) -> str | None:
        """The engine process has recovered by itself, or has ended and is started again by the next request."""
        return None

    def close(self) -> None:
        """Leaves; the last instance waits until the process has ended and its GPU memory is free again."""
        if self._channel is None:
            return
        try:
            others = self._ask({"command": "close"})["others"]
        except (Closed, CudaError, EngineError):
            others = 0
        self._leave()
        if others == 0:
            _wait_for(self._pid, END_TIMEOUT_S)
        _reap()

    def _leave(self) -> None:
        self._executions.clear()
        self._bytes.clear()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None and not self._pid:
            # It never had an engine: it ends by itself, at once.
            try:
                self._process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._report(f"engine process {self._process.pid} does not end", True)
            _reap()

    # Messages

    def _ask(self, document: dict[str, Any]) -> dict[str, Any]:
        if self._channel is None:
            raise Closed("not connected")
        self._channel.send(document)
        _, reply, descriptors = self._channel.receive()
        self._map(reply, descriptors)
        self._check(reply)
        return reply

    def _ask_surely(self, document: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._ask(document)
        except Closed as error:
            raise EngineError(f"the engine process has ended: {error}") from None

    def _check(self, reply: dict[str, Any]) -> None:
        if "lost" in reply and self._channel is not None:
            self._channel.close()
            self._channel = None
        _raise(reply)

    def _map(self, reply: dict[str, Any], descriptors: list[int]) -> None:
        if descriptors:
            # Buffers were made anew: what was prepared is on the old ones.
            self._executions.clear()
        for name, size, descriptor in zip(reply.get("buffers", ()), reply.get("sizes", ()), descriptors, strict=True):
            self._bytes[name] = np.frombuffer(mmap.mmap(descriptor, size), dtype=np.uint8)
            os.close(descriptor)


def _raise(reply: dict[str, Any]) -> None:
    kind = reply.get("error")
    if kind is None:
        return
    text = reply["text"]
    if "lost" in reply:
        text += "; the engine process ends, and the next request starts another"
    if "PROFILE_SHARING_0806" in text and kind == "EngineError":
        raise ProfileTaken(text)
    if kind == "CudaError":
        call, code, name, reason = reply["cuda"]
        raise CudaError(call, code, name, reason + text[len(reply["text"]) :])
    if kind == "ShapeError":
        raise ShapeError(text)
    raise EngineError(text)


def _tensor(entry: dict[str, Any]) -> Tensor:
    return Tensor(
        entry["name"],
        entry["datatype"],
        np.dtype(entry["dtype"]),
        tuple(entry["shape"]),
        entry["is_input"],
        entry["on_host"],
        tuple(tuple(tuple(shape) for shape in triple) for triple in entry["ranges"]),
    )


def _python() -> str:
    """An interpreter like the one inside the stub, whose own executable is no interpreter."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    candidates = [sys.executable or "", str(Path(sys.exec_prefix) / "bin" / name), shutil.which(name) or ""]
    for candidate in candidates:
        if Path(candidate).name.startswith("python") and os.access(candidate, os.X_OK):
            return candidate
    raise EngineError(f"no {name} on PATH or in {sys.exec_prefix}/bin to run the engine process with")


def _reap() -> None:
    """An engine process outlives the instance that started it while others use it."""
    _started[:] = [process for process in _started if process.poll() is None]


def _wait_for(pid: int, seconds: float) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        select.select([descriptor], [], [], seconds)
    finally:
        os.close(descriptor)
