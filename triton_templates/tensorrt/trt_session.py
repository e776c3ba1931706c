"""One instance's way through the GPU: contexts, one stream, buffers, and a prepared execution for every shape.

Memory: one pinned host buffer and one device buffer a tensor, made for the largest shape of the profiles in use where
that is moderate and grown when a request needs more; one scratch buffer that all contexts of the instance share, which
is safe since they run on one stream, one after the other.

CUDA graphs: TensorRT captures a context's state, so a context that is used for another shape after a capture makes the
graph undefined (stale outputs, Triton server #8550). Here every graph has a context of its own, which is never used
for anything else, and holds the copies too: one launch runs a whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from trt_device import CudaError, Device, bytes_at
from trt_engine import Engine, EngineError, Shape, Tensor, fits, shape_text
from trt_phases import Phases

PREALLOCATE_BYTES = 128 << 20
"""Larger buffers than this wait for the first request that needs them."""
KEPT_EXECUTIONS = 256
"""Prepared shapes that are kept; a model with free dimensions may see any number."""
_ALIGNMENT = 256


class ShapeError(ValueError):
    """A shape that no profile in use admits."""


class Buffer:
    """Host and device memory of one tensor. Host tensors (shape tensors) have no device part."""

    def __init__(self, device: Device, tensor: Tensor) -> None:
        self.device, self.tensor = device, tensor
        self.capacity = 0
        self.on_device = 0
        self.address = 0
        self.bytes: np.ndarray = np.empty(0, dtype=np.uint8)

    def reserve(self, byte_size: int) -> bool:
        """Whether the addresses changed. The stream must be idle. Raises :class:`CudaError`, leaving it empty."""
        if self.address and byte_size <= self.capacity:
            return False
        self.release()
        size = -(-max(byte_size, 1) // _ALIGNMENT) * _ALIGNMENT
        try:
            self.address = self.allocate_host(size)
            if not self.tensor.on_host:
                self.on_device = self.device.allocate(size)
        except CudaError:
            self.release()
            raise
        self.bytes = bytes_at(self.address, size)
        self.capacity = size
        return True

    def allocate_host(self, byte_size: int) -> int:
        return self.device.allocate_pinned(byte_size)

    def free_host(self, address: int) -> None:
        self.device.free_pinned(address)

    def release(self) -> None:
        self.capacity = 0
        self.bytes = np.empty(0, dtype=np.uint8)
        if self.address:
            self.free_host(self.address)
            self.address = 0
        if self.on_device:
            self.device.free(self.on_device)
            self.on_device = 0

    def view(self, shape: Shape) -> np.ndarray:
        """The host side as an array of ``shape``, in place."""
        count = int(np.prod(shape, dtype=np.int64))
        return self.bytes[: count * self.tensor.dtype.itemsize].view(self.tensor.dtype).reshape(shape)


@dataclass
class Execution:
    """Everything that a batch of one shape needs, prepared. ``inputs`` and ``outputs`` are views on pinned memory, in
    the engine's order.
    """

    shapes: tuple[Shape, ...]
    profile: int
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    copies_in: tuple[tuple[int, int, int], ...]
    copies_out: tuple[tuple[int, int, int], ...]
    graph: Any = None
    context: Any = None
    """The graph's own, kept alive with it."""


class Session:
    """Not thread-safe: one per instance, used by one thread."""

    def __init__(
        self,
        engine: Engine,
        device: Device,
        profiles: Sequence[int],
        report: Callable[[str, bool], None],
        phases: Phases | None = None,
        buffer_type: type[Buffer] = Buffer,
    ) -> None:
        self.engine, self.device, self.phases = engine, device, phases
        self.profiles = tuple(profiles)
        self._report = report
        self.stream = device.stream()
        self._stream_number = int(self.stream)
        self._lost = False
        self._scratch = 0
        self._scratch_bytes = engine.device_memory_bytes
        self._contexts: dict[int, Any] = {}
        self._current: dict[int, Execution | None] = {}
        self._executions: dict[tuple[Shape, ...], Execution] = {}
        self._graphs: dict[tuple[Shape, ...], Execution] = {}
        self.buffers = {tensor.name: buffer_type(device, tensor) for tensor in (*engine.inputs, *engine.outputs)}
        self._shape_inputs = tuple(tensor for tensor in engine.inputs if tensor.on_host)
        try:
            self._scratch = device.allocate(self._scratch_bytes) if self._scratch_bytes else 0
            for profile in self.profiles:
                self._contexts[profile] = self._context(profile)
            device.synchronize(self.stream)
        except Exception:
            self.close()
            raise

    @property
    def has_shape_inputs(self) -> bool:
        return bool(self._shape_inputs)

    # Preparation

    def _context(self, profile: int) -> Any:
        context = self.engine.create_context(self._scratch, self._scratch_bytes, profile, self._stream_number)
        if context is None:
            raise EngineError(
                f"unable to set optimization profile {profile}: {self.engine.log.take()}; before TensorRT 10 a profile "
                "serves one context, unless the plan was built with the preview feature PROFILE_SHARING_0806"
            )
        return context

    def preallocate(self, largest: Sequence[Shape]) -> None:
        """Makes buffers for ``largest`` input shapes, where that is moderate; the rest comes with the requests."""
        for tensor, shape in zip(self.engine.inputs, largest, strict=True):
            size = _byte_size(tensor, shape)
            if size <= PREALLOCATE_BYTES:
                self.buffers[tensor.name].reserve(size)
        if not self._shape_inputs and all(_byte_size(t, s) <= PREALLOCATE_BYTES for t, s in self._paired(largest)):
            self.prepare(tuple(largest))

    def _paired(self, shapes: Sequence[Shape]) -> Iterator[tuple[Tensor, Shape]]:
        return zip(self.engine.inputs, shapes, strict=True)

    def profile_for(self, shapes: Sequence[Shape]) -> int:
        """The profile in use that admits the shapes and has the nearest optimum. Raises :class:`ShapeError`."""
        best: tuple[int, int] | None = None
        for profile in self.profiles:
            if all(tensor.on_host or fits(tensor, profile, shape) for tensor, shape in self._paired(shapes)):
                away = sum(
                    abs(size - wanted)
                    for tensor, shape in self._paired(shapes)
                    for size, wanted in zip(shape, tensor.ranges[profile][1], strict=False)
                    if not tensor.on_host
                )
                if best is None or away < best[0]:
                    best = (away, profile)
        if best is None:
            raise ShapeError(
                ", ".join(f"'{tensor.name}' {shape_text(shape)}" for tensor, shape in self._paired(shapes))
            )
        return best[1]

    def prepare(self, shapes: tuple[Shape, ...]) -> Execution:
        """The execution for full input shapes, in the engine's order of inputs; cached.

        With shape tensors the values decide about the outputs: then only inputs are prepared, and
        :meth:`run` completes it. Raises :class:`ShapeError`, :class:`EngineError`, :class:`CudaError`.
        """
        execution = self._graphs.get(shapes) or self._executions.get(shapes)
        if execution is not None:
            return execution
        profile = self.profile_for(shapes)
        sizes = {tensor.name: _byte_size(tensor, shape) for tensor, shape in self._paired(shapes)}
        self._reserve(sizes)
        output_shapes: tuple[Shape, ...] = ()
        if not self._shape_inputs:
            context = self._contexts[profile]
            self._current[profile] = None
            output_shapes = self._infer(context, shapes)
            outputs = zip(self.engine.outputs, output_shapes, strict=True)
            self._reserve({tensor.name: _byte_size(tensor, shape) for tensor, shape in outputs})
        execution = self._execution(shapes, profile, output_shapes)
        if len(self._executions) >= KEPT_EXECUTIONS:
            self._executions.pop(next(iter(self._executions)))
        self._executions[shapes] = execution
        return execution

    def _reserve(self, sizes: Mapping[str, int]) -> None:
        if any(not self.buffers[name].address or size > self.buffers[name].capacity for name, size in sizes.items()):
            # Everything prepared holds the old addresses.
            self.device.synchronize(self.stream)
            captured = tuple(self._graphs)
            self._forget()
            for name, size in sizes.items():
                self.buffers[name].reserve(size)
            for shapes in captured:
                self._report(f"a buffer grew: the CUDA graph for {shapes} is captured again", False)
                self.capture(shapes)

    def _forget(self) -> None:
        for execution in self._graphs.values():
            self.device.destroy_graph(execution.graph)
        self._graphs.clear()
        self._executions.clear()
        self._current.clear()

    def _infer(self, context: Any, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        for tensor, shape in self._paired(shapes):
            # What a shape tensor holds decides about shapes, so it must be there before they are asked for.
            if tensor.on_host and not context.set_tensor_address(tensor.name, self.buffers[tensor.name].address):
                raise EngineError(f"unable to set the address of '{tensor.name}': {self.engine.log.take()}")
            if -1 in tensor.shape and not context.set_input_shape(tensor.name, shape):
                raise EngineError(
                    f"unable to set the shape of input '{tensor.name}' to {shape_text(shape)}: {self.engine.log.take()}"
                )
        missing = context.infer_shapes()
        if missing:
            raise EngineError(f"input shapes leave {', '.join(missing)} open: {self.engine.log.take()}")
        found = tuple(tuple(context.get_tensor_shape(tensor.name)) for tensor in self.engine.outputs)
        for tensor, shape in zip(self.engine.outputs, found, strict=True):
            if any(size < 0 for size in shape):
                raise EngineError(
                    f"output '{tensor.name}' has shape {shape_text(shape)}: its size depends on the data, "
                    "which this backend does not serve"
                )
        return found

    def _execution(self, shapes: tuple[Shape, ...], profile: int, output_shapes: tuple[Shape, ...]) -> Execution:
        copies_in, copies_out = [], []
        inputs, outputs = [], []
        for tensor, shape in self._paired(shapes):
            buffer = self.buffers[tensor.name]
            inputs.append(buffer.view(shape))
            if not tensor.on_host and _byte_size(tensor, shape):
                copies_in.append((buffer.on_device, buffer.address, _byte_size(tensor, shape)))
        for tensor, shape in zip(self.engine.outputs, output_shapes, strict=False):
            buffer = self.buffers[tensor.name]
            outputs.append(buffer.view(shape))
            if not tensor.on_host and _byte_size(tensor, shape):
                copies_out.append((buffer.address, buffer.on_device, _byte_size(tensor, shape)))
        return Execution(shapes, profile, tuple(inputs), tuple(outputs), tuple(copies_in), tuple(copies_out))

    # CUDA graphs

    def capture(self, shapes: tuple[Shape, ...]) -> bool:
        """Makes a graph for the shapes; on failure says why and leaves the ordinary way."""
        if self._shape_inputs:
            self._report("no CUDA graphs: the engine has shape tensors, which the host reads", False)
            return False
        try:
            plain = self.prepare(shapes)
            if plain.graph is not None:
                return True
            context = self.engine.create_context(self._scratch, self._scratch_bytes, plain.profile, self._stream_number)
            if context is None:
                self._report(
                    "no CUDA graphs: each needs a context of its own on its profile, and this plan was built without "
                    f"the preview feature PROFILE_SHARING_0806 ({self.engine.log.take()})",
                    False,
                )
                return False
            output_shapes = self._infer(context, shapes)
            execution = self._execution(shapes, plain.profile, output_shapes)
            self._bind(context)
            self._enqueue(context, execution)  # TensorRT finishes its set-up for a shape in the first run.
            self.device.synchronize(self.stream)
            self.device.begin_capture(self.stream)
            try:
                self._enqueue(context, execution)
            finally:
                graph = self.device.end_capture(self.stream)
            execution.graph = self.device.instantiate(graph)
            execution.context = context
            self._graphs[shapes] = execution
            self._executions.pop(shapes, None)
        except (CudaError, EngineError, ShapeError) as error:
            self._report(f"no CUDA graph for {shapes}: {error}", False)
            return False
        return True

    @property
    def captured(self) -> tuple[tuple[Shape, ...], ...]:
        return tuple(self._graphs)

    # Execution

    def run(self, execution: Execution) -> tuple[np.ndarray, ...]:
        """Runs what is in ``execution.inputs``; the outputs stay valid until the next run of this session."""
        if execution.graph is not None:
            self.device.launch(execution.graph, self.stream)
            self.device.synchronize(self.stream)
            if self.phases is not None:
                self.phases.end_of("compute")
            return execution.outputs
        profile = execution.profile
        context = self._contexts[profile]
        if self._shape_inputs:
            output_shapes = self._infer(context, execution.shapes)
            pairs = zip(self.engine.outputs, output_shapes, strict=True)
            for tensor, shape in pairs:
                # Outputs alone: the inputs are gathered already.
                self.buffers[tensor.name].reserve(_byte_size(tensor, shape))
            execution = self._execution(execution.shapes, profile, output_shapes)
            self._bind(context)
        elif self._current.get(profile) is not execution:
            self._infer(context, execution.shapes)
            self._bind(context)
            self._current[profile] = execution
        self._enqueue(context, execution, self.phases)
        self.device.synchronize(self.stream)
        if self.phases is not None:
            self.phases.end_of("copy_out")
        return execution.outputs

    def _bind(self, context: Any) -> None:
        for name, buffer in self.buffers.items():
            address = buffer.address if buffer.tensor.on_host else buffer.on_device
            if not context.set_tensor_address(name, address):
                raise EngineError(f"unable to set the address of '{name}': {self.engine.log.take()}")

    def _enqueue(self, context: Any, execution: Execution, phases: Phases | None = None) -> None:
        device, stream = self.device, self.stream
        for target, source, byte_size in execution.copies_in:
            device.copy_in(target, source, byte_size, stream)
        if phases is not None:
            device.synchronize(stream)
            phases.end_of("copy_in")
        if not context.execute_async_v3(self._stream_number):
            raise EngineError(f"failed to enqueue the execution: {self.engine.log.take()}")
        if phases is not None:
            device.synchronize(stream)
            phases.end_of("compute")
        for target, source, byte_size in execution.copies_out:
            device.copy_out(target, source, byte_size, stream)

    def run_broken(self, execution: Execution) -> tuple[np.ndarray, ...]:
        """For tests alone: the engine writes to an address that is nobody's, which ends the CUDA context."""
        context = self._contexts[execution.profile]
        self._infer(context, execution.shapes)
        self._bind(context)
        self._current.clear()
        context.set_tensor_address(self.engine.outputs[0].name, 1 << 20)
        self._enqueue(context, execution)
        self.device.synchronize(self.stream)
        return execution.outputs

    def recover(self) -> str | None:
        """After an error: ``None`` when this session works again, else why it never will."""
        if not self.device.usable():
            self._lost = True
            return "the GPU context is lost"
        try:
            self._rebuild()
        except (CudaError, EngineError) as error:
            return f"the execution context could not be made again: {error}"
        return None

    def _rebuild(self) -> None:
        """New contexts and graphs, after an error that the CUDA context survived."""
        captured = tuple(self._graphs)
        self._forget()
        self._contexts.clear()
        for profile in self.profiles:
            self._contexts[profile] = self._context(profile)
        self.device.synchronize(self.stream)
        for shapes in captured:
            self.capture(shapes)

    def close(self) -> None:
        """Gives everything back; after a sticky error the memory is the driver's to free, when the process ends."""
        if self._lost:
            return
        try:
            self._forget()
            self._contexts.clear()
            for buffer in self.buffers.values():
                buffer.release()
            if self._scratch:
                self.device.free(self._scratch)
                self._scratch = 0
            if self.stream is not None:
                self.device.destroy_stream(self.stream)
                self.stream = None
        except CudaError as error:
            self._report(f"while closing: {error}", True)


def _byte_size(tensor: Tensor, shape: Shape) -> int:
    return int(np.prod(shape, dtype=np.int64)) * tensor.dtype.itemsize
