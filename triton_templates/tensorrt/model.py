"""Serves TensorRT plans from Triton's python backend, under the unchanged native config.

Every model instance is a process of its own. All requests of one ``execute`` are copied once, into pinned memory, and
run as one batch on the instance's own execution context and stream; responses are views on pinned memory, which Triton
copies once, into the shared memory of its python backend.

One instance on a GPU holds its engine itself. Several share one, in a process that only they use (``trt_executor``):
GPU contexts of different processes take turns, and each would hold its own copy of everything.

Parameters of the config, which the native backend ignores (each also an environment variable
``TENSORRT_BACKEND_<NAME>``):

``engine_process``     ``auto`` (the default, see above), ``own`` or ``shared``
``pipeline``           ``on``: the next batch is gathered while one runs and is answered (see ``trt_lanes``); needs
                       response senders outside decoupled mode (Triton 24.09) and a second context on the profile
``profile_phases``     time per phase, reported at unload (see ``trt_phases``)
``int64_as_int32``     serve INT64 of the config with an engine that has INT32, as TensorRT before 10 makes it
``fault_injection``    for tests: a request with the parameter ``inject_cuda_error`` ends the CUDA context
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
import trt_settings
from trt_device import OUT_OF_MEMORY, CudaError, Device, compute_capability
from trt_dlpack import BFloat16, bits_of
from trt_engine import Engine, EngineError, Log, allowed_text, check, fits, machine_text, shape_text
from trt_lanes import Lane, Lanes
from trt_phases import Phases
from trt_remote import ProfileTaken, RemoteSession
from trt_session import Execution, Session, ShapeError

_INT32 = np.iinfo(np.int32)


class TritonPythonModel:
    """Triton makes one per instance, in a process of its own, and calls it from one thread."""

    def initialize(self, args: dict[str, str]) -> None:
        self._instance = args["model_instance_name"]
        self._dead = ""
        self._session: Session | RemoteSession | None = None
        self._second: Session | RemoteSession | None = None
        self._lanes: Lanes | None = None
        self._device: Device | None = None
        self._phases: Phases | None = None
        try:
            self._settings = trt_settings.read(args["model_config"], self._instance)
            self._open(args)
        except (trt_settings.ConfigError, EngineError, CudaError) as error:
            self._close()
            raise pb_utils.TritonModelException(_explained(error)) from None

    def _open(self, args: dict[str, str]) -> None:
        settings = self._settings
        if args["model_instance_kind"] not in ("GPU", "KIND_GPU"):
            raise trt_settings.ConfigError(
                f"instance group of kind {args['model_instance_kind']} of model '{settings.model}' is not supported "
                "for TensorRT models: use KIND_GPU"
            )
        index = int(args["model_instance_device_id"])
        where = os.environ.get("TENSORRT_BACKEND_PROFILE", "")
        self._profile_to = where
        self._phases = Phases() if where or self._flag("profile_phases") else None
        self._converts = self._flag("int64_as_int32")
        self._faults = self._flag("fault_injection")
        capability = compute_capability(index)
        plan = Path(args["model_repository"]) / args["model_version"] / settings.plan_for(capability)
        self._batched = settings.max_batch_size > 0
        engine = None
        if self._shares(args["model_config"], index):
            engine = self._join(plan, index)
        if engine is None:
            engine = self._own(plan, index)
        self._engine = engine
        self._one_by_one = not self._batched or any(tensor.on_host for tensor in engine.inputs)
        configured = {entry.name: entry.datatype for entry in (*settings.inputs, *settings.outputs)}
        self._input_names = tuple(tensor.name for tensor in engine.inputs)
        self._output_names = tuple(tensor.name for tensor in engine.outputs)
        # Triton has no scalars without a batch dimension, so the config says [1]; and a batching model's client sends a
        # batch dimension with a shape tensor, which the engine does not have.
        self._unwrapped = {t.name: len(t.shape) + 1 for t in engine.inputs if t.on_host or not t.shape}
        self._bf16 = frozenset(t.name for t in (*engine.inputs, *engine.outputs) if t.datatype == "BF16")
        self._narrowed = frozenset(
            t.name for t in (*engine.inputs, *engine.outputs) if configured[t.name] == "INT64" != t.datatype
        )
        self._plain_outputs = not (self._bf16 | self._narrowed).intersection(self._output_names)
        self._plain_inputs = not (self._bf16 | self._narrowed).intersection(self._input_names) and not self._unwrapped
        self._padded: dict[int, int] = {}
        if self._flag("pipeline") and self._phases is None:
            self._second = self._another_session(plan, index)
        if settings.graphs:
            self._capture_graphs()
        if self._second is not None:
            self._lanes = Lanes((self._session, self._second), self._device.use if self._device else _nothing)

    def _shares(self, config: str, device: int) -> bool:
        wanted = self._settings.parameters.get("engine_process") or os.environ.get(
            "TENSORRT_BACKEND_ENGINE_PROCESS", ""
        )
        if wanted not in ("", "auto", "own", "shared"):
            raise trt_settings.ConfigError(f"parameter engine_process is '{wanted}': use auto, own or shared")
        return wanted == "shared" or (wanted != "own" and trt_settings.instances_on(config, device) > 1)

    def _own(self, plan: Path, index: int) -> Engine:
        device = self._device = Device(index)
        capability = device.compute_capability()
        engine = Engine(plan, Log(_report), machine_text(device.name(), capability, index))
        self._check(engine)
        session = self._session = Session(engine, device, self._settings.profiles, _report, self._phases)
        session.preallocate([self._largest(tensor) for tensor in engine.inputs])
        return engine

    def _join(self, plan: Path, index: int) -> RemoteSession | None:
        """``None`` where the plan does not allow several contexts on a profile: then everybody has an engine."""
        if not plan.is_file():
            raise EngineError(f"unable to find '{plan}': the version directory has no such plan file")
        remote = self._session = RemoteSession(plan, index, _report, self._phases)
        self._check(remote)
        try:
            remote.open(self._settings.profiles, [self._largest(tensor) for tensor in remote.inputs])
        except ProfileTaken as error:
            _report(f"{self._instance}: an engine of its own, since {error}", False)
            remote.close()
            self._session = None
            return None
        return remote

    def _another_session(self, plan: Path, index: int) -> Session | RemoteSession | None:
        """For a second batch in flight; ``None``, and said so, where the plan or the memory does not allow it."""
        largest = [self._largest(tensor) for tensor in self._engine.inputs]
        session: Session | RemoteSession | None = None
        try:
            if isinstance(self._session, RemoteSession):
                session = RemoteSession(plan, index, _report)
                session.open(self._settings.profiles, largest)
            else:
                assert self._device is not None and isinstance(self._engine, Engine)
                session = Session(self._engine, self._device, self._settings.profiles, _report)
                session.preallocate(largest)
        except (EngineError, CudaError) as error:
            _report(f"{self._instance}: one batch at a time, since {error}", False)
            if session is not None:
                session.close()
            return None
        return session

    def _check(self, engine: Any) -> None:
        problem = check(self._settings, engine, self._converts)
        if problem:
            raise EngineError(problem)

    def _flag(self, name: str) -> bool:
        return self._settings.flag(name) or os.environ.get(f"TENSORRT_BACKEND_{name.upper()}", "") not in ("", "0")

    def _largest(self, tensor: Any) -> tuple[int, ...]:
        # The first profile in use: buffers grow when another one needs more.
        shape = tensor.ranges[self._settings.profiles[0]][2]
        if self._batched and not tensor.on_host:
            return (min(shape[0], self._settings.max_batch_size), *shape[1:])
        return shape

    def _capture_graphs(self) -> None:
        assert self._session is not None
        done = []
        for spec in self._settings.graph_specs:
            shapes = []
            for tensor in self._engine.inputs:
                rest = spec.shapes.get(tensor.name, tensor.shape[1:] if self._batched else tensor.shape)
                shapes.append((spec.batch_size, *rest) if self._batched else tuple(rest))
            if any(size < 0 for shape in shapes for size in shape):
                _report("no CUDA graph: free dimensions need a graph_spec with the input's dims", False)
                continue
            captured = [s.capture(tuple(shapes)) for s in (self._session, self._second) if s is not None]
            if all(captured):
                done.append(spec.batch_size)
                if spec.lower_bound and self._batched and not spec.shapes:
                    for rows in range(spec.lower_bound, spec.batch_size):
                        self._padded[rows] = min(spec.batch_size, self._padded.get(rows, spec.batch_size))
        for rows in done:
            self._padded.pop(rows, None)
        _report(f"{self._instance}: CUDA graphs for batch sizes {done}", False)

    def is_ready(self) -> bool:
        return not self._dead

    # Requests

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        phases = self._phases
        if phases is not None:
            phases.begin()
        responses: list[Any] = [None] * len(requests)
        if self._dead:
            return [_failure(self._dead, pb_utils.TritonError.UNAVAILABLE) for _ in requests]
        groups = self._read(requests, responses)
        if self._lanes is not None:
            for key, items in groups.items():
                for chunk in self._chunks(key, items):
                    self._serve_ahead(*chunk, responses)
            return responses
        if phases is not None:
            phases.end_of("read")
        chunks = [chunk for key, items in groups.items() for chunk in self._chunks(key, items)]
        for position, (key, items, rows) in enumerate(chunks):
            # The stub copies a response's memory only after execute returns: only the last run may keep it in place.
            self._serve(key, items, rows, responses, last=position == len(chunks) - 1)
        if phases is not None:
            phases.count(len(requests), sum(rows for _, _, rows in chunks))
        return responses

    def _read(self, requests: Sequence[Any], responses: list[Any]) -> dict[Any, list[Any]]:
        """Requests grouped by their shapes without the batch dimension; (index, request, arrays, rows) of each."""
        groups: dict[Any, list[Any]] = {}
        batched = not self._one_by_one
        alone = self._plain_inputs and len(self._input_names) == 1
        for index, request in enumerate(requests):
            tensors = request.inputs()
            if alone and len(tensors) == 1:
                arrays = (tensors[0].as_numpy(),)
            else:
                try:
                    arrays = self._arrays(tensors)
                except ValueError as error:
                    responses[index] = _failure(str(error), pb_utils.TritonError.INVALID_ARG)
                    continue
            key = tuple([array.shape[1:] for array in arrays] if batched else [array.shape for array in arrays])
            item = (index, request, arrays, arrays[0].shape[0] if batched else 1)
            if key in groups:
                groups[key].append(item)
            else:
                groups[key] = [item]
        return groups

    def _arrays(self, tensors: Sequence[Any]) -> tuple[np.ndarray, ...]:
        """In the engine's order, with the engine's types. Raises ``ValueError``."""
        by_name = {tensor.name(): tensor for tensor in tensors}
        arrays = []
        for name in self._input_names:
            tensor = by_name.get(name)
            if tensor is None:
                raise ValueError(f"input '{name}' is missing: this engine needs every input")
            if name in self._bf16:
                arrays.append(bits_of(tensor))
                continue
            array = tensor.as_numpy()
            if name in self._narrowed and array.size and (array.min() < _INT32.min or array.max() > _INT32.max):
                raise ValueError(f"input '{name}' has values that do not fit the engine's INT32")
            arrays.append(array[0] if array.ndim == self._unwrapped.get(name) else array)
        return tuple(arrays)

    def _chunks(self, key: Any, items: list[Any]) -> list[tuple[Any, list[Any], int]]:
        """As many requests together as the engine takes, in order; rows of each chunk."""
        if self._one_by_one:
            return [(key, [item], 1) for item in items]
        limit = self._row_limit(key)
        chunks: list[tuple[Any, list[Any], int]] = []
        members: list[Any] = []
        total = 0
        for item in items:
            if members and total + item[3] > limit:
                chunks.append((key, members, total))
                members, total = [], 0
            members.append(item)
            total += item[3]
        if members:
            chunks.append((key, members, total))
        return chunks

    def _row_limit(self, key: Any) -> int:
        limits = [
            min(tensor.ranges[profile][2][0] for tensor in self._engine.inputs)
            for profile in self._settings.profiles
            if all(
                fits(tensor, profile, (tensor.ranges[profile][2][0], *rest))
                for tensor, rest in zip(self._engine.inputs, key, strict=True)
            )
        ]
        return max(limits, default=1)

    def _serve(self, key: Any, items: list[Any], rows: int, responses: list[Any], last: bool) -> None:
        session = self._session
        assert session is not None
        try:
            execution = self._gather(session, key, items, rows)
            if self._phases is not None:
                self._phases.end_of("gather")
            outputs = session.run_broken(execution) if self._broken(items) else session.run(execution)
            self._respond(items, outputs, rows, responses, last)
            if self._phases is not None:
                self._phases.end_of("respond")
        except (ShapeError, CudaError, EngineError) as error:
            self._fail(items, responses, *self._told(session, error))

    def _serve_ahead(self, key: Any, items: list[Any], rows: int, responses: list[Any]) -> None:
        """Gathers here and leaves the rest to a lane; ``None`` in ``responses`` then means: sent by its sender."""
        assert self._lanes is not None
        lane = self._lanes.take()
        try:
            senders = [item[1].get_response_sender() for item in items]
        except Exception as error:  # noqa: BLE001 - the stub's own exceptions; before Triton 24.09 there are no senders
            self._lanes.give_back(lane)
            _report(f"{self._instance}: one batch at a time, since there are no response senders: {error}", False)
            self._stop_lanes()
            self._serve(key, items, rows, responses, last=False)
            return
        try:
            execution = self._gather(lane.session, key, items, rows)
            broken = self._broken(items)
        except (ShapeError, CudaError, EngineError) as error:
            self._fail(items, responses, *self._told(lane.session, error))
            self._lanes.give_back(lane)
            return
        lane.hand_over(lambda: self._finish(lane, execution, items, rows, senders, broken))

    def _finish(
        self, lane: Lane, execution: Execution, items: list[Any], rows: int, senders: list[Any], broken: bool
    ) -> None:
        """In the lane's thread: runs the batch and answers every request of it, whatever happens."""
        answers: dict[int, Any] = {}
        try:
            outputs = lane.session.run_broken(execution) if broken else lane.session.run(execution)
            self._respond(items, outputs, rows, answers, last=True)
        except (ShapeError, CudaError, EngineError) as error:
            self._fail(items, answers, *self._told(lane.session, error))
        except Exception as error:  # noqa: BLE001 - a request without an answer would wait for ever
            self._fail(items, answers, f"{type(error).__name__}: {error}", pb_utils.TritonError.INTERNAL)
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        for item, sender in zip(items, senders, strict=True):
            try:
                sender.send(answers[item[0]], flags=final)
            except Exception as error:  # noqa: BLE001 - one answer that cannot be sent must not hold the others
                _report(f"{self._instance}: an answer could not be sent: {error}", True)

    def _stop_lanes(self) -> None:
        if self._lanes is not None:
            if not self._lanes.stop():
                _report(f"{self._instance}: a batch does not end", True)
            self._lanes = None

    def _gather(self, session: Session | RemoteSession, key: Any, items: list[Any], rows: int) -> Execution:
        """The requests' rows, one behind the other, in the execution's pinned memory."""
        run_rows = self._padded.get(rows, rows)
        shapes = key if self._one_by_one else tuple((run_rows, *rest) for rest in key)
        execution = session.prepare(shapes)
        if self._one_by_one:
            for target, array in zip(execution.inputs, items[0][2], strict=True):
                target[...] = array
            return execution
        offset = 0
        for _, _, arrays, count in items:
            stop = offset + count
            for target, array in zip(execution.inputs, arrays, strict=True):
                target[offset:stop] = array
            offset = stop
        return execution

    def _broken(self, items: list[Any]) -> bool:
        return self._faults and any("inject_cuda_error" in item[1].parameters() for item in items)

    def _respond(
        self, items: list[Any], outputs: Any, rows: int, responses: list[Any] | dict[int, Any], last: bool
    ) -> None:
        names = self._output_names
        if not last:
            outputs = tuple(output.copy() for output in outputs)
        if not self._plain_outputs:
            outputs = tuple(
                output.astype(np.int64) if name in self._narrowed else output
                for name, output in zip(names, outputs, strict=True)
            )
        make, response = pb_utils.Tensor, pb_utils.InferenceResponse
        if len(names) == 1 and not self._bf16 and not self._one_by_one:
            name, output = names[0], outputs[0]
            self._check_rows(name, output, rows)
            offset = 0
            for index, _, _, count in items:
                stop = offset + count
                responses[index] = response([make(name, output[offset:stop])])
                offset = stop
            return
        if not self._one_by_one:
            for name, output in zip(names, outputs, strict=True):
                self._check_rows(name, output, rows)
        offset = 0
        for index, request, _, count in items:
            wanted = request.requested_output_names() if len(names) > 1 else names
            tensors = []
            for name, output in zip(names, outputs, strict=True):
                if name in wanted:
                    part = np.atleast_1d(output) if self._one_by_one else output[offset : offset + count]
                    tensors.append(make.from_dlpack(name, BFloat16(part)) if name in self._bf16 else make(name, part))
            responses[index] = response(tensors)
            offset += count

    def _check_rows(self, name: str, output: np.ndarray, rows: int) -> None:
        if not output.ndim or output.shape[0] < rows:
            raise EngineError(
                f"output '{name}' has shape {shape_text(output.shape)} for a batch of {rows}: its first dimension is "
                "not the batch: use max_batch_size 0"
            )

    # Failures

    def _fail(self, items: list[Any], responses: list[Any] | dict[int, Any], text: str, code: int) -> None:
        for index, _, _, _ in items:
            responses[index] = _failure(text, code)

    def _told(self, session: Session | RemoteSession, error: Exception) -> tuple[str, int]:
        """What the requests of a failed batch hear; the session works again afterwards where it can."""
        if isinstance(error, ShapeError):
            text = (
                f"request for model '{self._settings.model}' has a shape that no optimization profile in use admits: "
                f"{error}; allowed are {allowed_text(self._engine, self._settings.profiles)}"
            )
            return text, pb_utils.TritonError.INVALID_ARG
        return self._after_error(session, error), pb_utils.TritonError.INTERNAL

    def _after_error(self, session: Session | RemoteSession, error: Exception) -> str:
        """The message for the requests; makes the session work again where the CUDA context has survived."""
        text = _explained(error)
        reason = session.recover()
        if reason is None:
            return text
        # No exit: an unload waits for ever for a stub that is gone (Triton 2.51). The process stays to say what
        # happened; it ends at unload, and the driver then takes the memory back.
        self._dead = f"{text}; {reason} for instance '{self._instance}': unload the model and load it again"
        _report(self._dead, True)
        return self._dead

    def finalize(self) -> None:
        if self._phases is not None:
            print(f"phases {self._phases.write(self._instance, self._profile_to)}", flush=True)
        self._close()

    def _close(self) -> None:
        self._stop_lanes()
        for session in (self._second, self._session):
            if session is not None:
                session.close()
        self._second = self._session = None


def _nothing() -> None:
    """The engine process has its own current device."""


def _report(text: str, is_error: bool) -> None:
    logger = pb_utils.Logger
    (logger.log_error if is_error else logger.log_warn)(text)


def _failure(text: str, code: int) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code))


def _explained(error: Exception) -> str:
    if isinstance(error, CudaError) and error.code == OUT_OF_MEMORY:
        return f"out of GPU memory: {error}; each instance holds its own copy of the engine: use fewer instances"
    return str(error)
