"""A Triton server by its gRPC endpoint: health, repository, statistics, inference.

The generic calls of this module send and return raw bytes, so that the load generator can prebuild requests and parse
responses only when it needs them. Not thread-safe across fork: make one per process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from optimizer.errors import EnvironmentFailure, OptimizerError
from optimizer.records.measurement import ServerDelta
from optimizer.records.model import TRITON_TO_NUMPY, Array

if TYPE_CHECKING:
    from optimizer.records.samples import Arrays

MAX_MESSAGE_BYTES = 2**31 - 1
INFER_METHOD = "/inference.GRPCInferenceService/ModelInfer"


class TritonError(OptimizerError):
    """An answer of the server that is an error. ``status`` is the gRPC status name, ``problem`` the server's text."""

    exit_code = 3

    def __init__(self, problem: str, *, status: str, where: str | None = None) -> None:
        super().__init__(problem, where=where)
        self.status = status


class TritonClient:
    """``url`` is ``host:port`` of the gRPC endpoint. Every call has ``timeout_s`` unless it names its own."""

    def __init__(self, url: str, *, timeout_s: float = 30.0) -> None:
        import grpc
        from tritonclient.grpc import service_pb2, service_pb2_grpc

        self.url = url
        self.timeout_s = timeout_s
        self._pb: Any = service_pb2
        self._grpc: Any = grpc
        self._channel: Any = grpc.insecure_channel(
            url,
            options=[
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                # Subchannels are shared between channels by default: every client shall have its own connection.
                ("grpc.use_local_subchannel_pool", 1),
                # After a refused connection gRPC waits a second by default: half of a server's start.
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 1000),
                # A proxy in the environment is not meant for servers of one's own.
                ("grpc.enable_http_proxy", 0),
            ],
        )
        self._stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._infer_raw: Any = self._channel.unary_unary(INFER_METHOD)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> TritonClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, method: str, request: Any, timeout_s: float | None = None) -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=timeout_s or self.timeout_s)
        except self._grpc.RpcError as error:
            raise TritonError(error.details() or "", status=error.code().name, where=self.url) from None

    # Health and metadata

    def server_live(self) -> bool:
        try:
            return bool(self._call("ServerLive", self._pb.ServerLiveRequest(), 2.0).live)
        except TritonError:
            return False

    def server_ready(self) -> bool:
        try:
            return bool(self._call("ServerReady", self._pb.ServerReadyRequest(), 2.0).ready)
        except TritonError:
            return False

    def wait_ready(self, timeout_s: float) -> bool:
        return self._wait(self.server_ready, timeout_s)

    def wait_live(self, timeout_s: float) -> bool:
        return self._wait(self.server_live, timeout_s)

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(0.05)
        return False

    def server_version(self) -> str:
        return str(self._call("ServerMetadata", self._pb.ServerMetadataRequest()).version)

    def server_identity(self) -> tuple[str, str]:
        """The server's name (its ``--id``) and version."""
        answer = self._call("ServerMetadata", self._pb.ServerMetadataRequest())
        return str(answer.name), str(answer.version)

    def model_ready(self, name: str, version: str = "") -> bool:
        try:
            return bool(self._call("ModelReady", self._pb.ModelReadyRequest(name=name, version=version)).ready)
        except TritonError:
            return False

    def model_config(self, name: str, version: str = "") -> Any:
        """The effective ``ModelConfig`` message."""
        return self._call("ModelConfig", self._pb.ModelConfigRequest(name=name, version=version)).config

    def model_metadata(self, name: str, version: str = "") -> Any:
        return self._call("ModelMetadata", self._pb.ModelMetadataRequest(name=name, version=version))

    # Repository

    def repository_index(self, *, ready_only: bool = False) -> list[tuple[str, str, str, str]]:
        """Rows of (name, version, state, reason)."""
        answer = self._call("RepositoryIndex", self._pb.RepositoryIndexRequest(ready=ready_only))
        return [(row.name, row.version, row.state, row.reason) for row in answer.models]

    def load(self, name: str, *, config_json: str | None = None, timeout_s: float = 300.0) -> None:
        request = self._pb.RepositoryModelLoadRequest(model_name=name)
        if config_json is not None:
            request.parameters["config"].string_param = config_json
        self._call("RepositoryModelLoad", request, timeout_s)

    def unload(self, name: str, *, timeout_s: float = 60.0) -> None:
        """Asks, then waits until the server holds no version any more. Raises :class:`TritonError`."""
        self._call("RepositoryModelUnload", self._pb.RepositoryModelUnloadRequest(model_name=name), timeout_s)
        deadline = time.monotonic() + timeout_s
        while any(row[0] == name and row[2] in ("READY", "UNLOADING") for row in self.repository_index()):
            if time.monotonic() > deadline:
                raise TritonError(f"model {name} was still unloading after {timeout_s:g} s", status="DEADLINE_EXCEEDED")
            time.sleep(0.02)

    # Statistics

    def statistics(self, name: str, version: str = "") -> Statistics:
        answer = self._call("ModelStatistics", self._pb.ModelStatisticsRequest(name=name, version=version))
        return Statistics(answer.model_stats)

    # Shared memory

    def register_system_shared_memory(self, name: str, key: str, byte_size: int) -> None:
        """``key`` is the name for ``shm_open``, with its leading slash."""
        self._call(
            "SystemSharedMemoryRegister",
            self._pb.SystemSharedMemoryRegisterRequest(name=name, key=key, offset=0, byte_size=byte_size),
        )

    def register_cuda_shared_memory(self, name: str, raw_handle: bytes, device_id: int, byte_size: int) -> None:
        """``raw_handle`` is the 64 bytes of a ``cudaIpcMemHandle_t``."""
        self._call(
            "CudaSharedMemoryRegister",
            self._pb.CudaSharedMemoryRegisterRequest(
                name=name, raw_handle=raw_handle, device_id=device_id, byte_size=byte_size
            ),
        )

    def unregister_shared_memory(self, name: str, *, cuda: bool = False) -> None:
        """No error where the server does not know it."""
        kind = "Cuda" if cuda else "System"
        request = getattr(self._pb, f"{kind}SharedMemoryUnregisterRequest")(name=name)
        self._call(f"{kind}SharedMemoryUnregister", request, 2.0)

    def shared_memory_regions(self) -> list[str]:
        """Names of the registered system regions."""
        answer = self._call("SystemSharedMemoryStatus", self._pb.SystemSharedMemoryStatusRequest())
        return sorted(answer.regions)

    # Inference

    def infer(
        self, name: str, inputs: Arrays, datatypes: Mapping[str, str], *, version: str = "", timeout_s: float = 60.0,
        parameters: Mapping[str, int | bool | str] | None = None,
    ) -> dict[str, Array]:  # fmt: skip
        """One request. Raises :class:`TritonError`."""
        request = build_request(name, inputs, datatypes, version=version, parameters=parameters)
        return parse_response(self.infer_raw(request, timeout_s=timeout_s))[0]

    def infer_raw(self, request: bytes, *, timeout_s: float = 60.0) -> bytes:
        try:
            return bytes(self._infer_raw(request, timeout=timeout_s))
        except self._grpc.RpcError as error:
            raise TritonError(error.details() or "", status=error.code().name, where=self.url) from None

    def infer_future(self, request: bytes, *, timeout_s: float = 60.0) -> Any:
        """A grpc future of the raw response."""
        return self._infer_raw.future(request, timeout=timeout_s)


class Statistics:
    """A snapshot of ``ModelStatistics``; differences of two are what a window did."""

    def __init__(self, rows: Any) -> None:
        self.rows = list(rows)

    def since(self, earlier: Statistics) -> ServerDelta:
        """Summed over versions. A version that is absent from ``earlier`` counts from zero."""
        before = {(row.name, row.version): row for row in earlier.rows}
        totals = dict.fromkeys(("inference", "execution", "fail", "queue", "input", "infer", "output"), 0)
        batches: dict[int, int] = {}
        for row in self.rows:
            for sign, snapshot in ((1, row), (-1, before.get((row.name, row.version)))):
                if snapshot is None:
                    continue
                stats = snapshot.inference_stats
                totals["inference"] += sign * snapshot.inference_count
                totals["execution"] += sign * snapshot.execution_count
                totals["fail"] += sign * stats.fail.count
                totals["queue"] += sign * stats.queue.ns
                totals["input"] += sign * stats.compute_input.ns
                totals["infer"] += sign * stats.compute_infer.ns
                totals["output"] += sign * stats.compute_output.ns
                for batch in snapshot.batch_stats:
                    batches[batch.batch_size] = batches.get(batch.batch_size, 0) + sign * batch.compute_infer.count
        return ServerDelta(
            inference_count=totals["inference"],
            execution_count=totals["execution"],
            failure_count=totals["fail"],
            queue_us=totals["queue"] / 1e3,
            compute_input_us=totals["input"] / 1e3,
            compute_infer_us=totals["infer"] / 1e3,
            compute_output_us=totals["output"] / 1e3,
            batch_executions={size: count for size, count in sorted(batches.items()) if count},
        )


def build_request(
    name: str,
    inputs: Arrays,
    datatypes: Mapping[str, str],
    *,
    version: str = "",
    request_id: str = "",
    outputs: Sequence[str] = (),
    parameters: Mapping[str, int | bool | str] | None = None,
) -> bytes:
    """Serialized ``ModelInferRequest`` with raw contents. ``datatypes`` maps input name to Triton data type."""
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=name, model_version=version, id=request_id)
    for key, value in (parameters or {}).items():
        # bool first: it is an int to Python.
        kind = "bool_param" if isinstance(value, bool) else "int64_param" if isinstance(value, int) else "string_param"
        setattr(request.parameters[key], kind, value)
    for input_name, array in inputs.items():
        tensor = request.inputs.add()
        tensor.name = input_name
        tensor.datatype = datatypes[input_name]
        tensor.shape.extend(array.shape)
        request.raw_input_contents.append(to_wire(array, datatypes[input_name]))
    for output in outputs:
        request.outputs.add().name = output
    return bytes(request.SerializeToString())


def parse_response(data: bytes) -> tuple[dict[str, Array], dict[str, str]]:
    """Outputs by name, and their data types as the server said them."""
    from tritonclient.grpc import service_pb2

    response = service_pb2.ModelInferResponse.FromString(data)
    arrays: dict[str, Array] = {}
    datatypes: dict[str, str] = {}
    for index, output in enumerate(response.outputs):
        if index >= len(response.raw_output_contents):
            raise EnvironmentFailure(
                f"output {output.name} came without raw contents",
                remedy="use a server that answers with raw tensors",
            )
        arrays[output.name] = from_wire(response.raw_output_contents[index], output.datatype, tuple(output.shape))
        datatypes[output.name] = output.datatype
    return arrays, datatypes


def to_wire(array: Array, datatype: str) -> bytes:
    if datatype == "BYTES":
        items = (item if isinstance(item, bytes) else str(item).encode() for item in array.flat)
        return b"".join(len(item).to_bytes(4, "little") + item for item in items)
    if datatype == "BF16":
        return bf16_bits(array).tobytes()
    return np.ascontiguousarray(array, dtype=TRITON_TO_NUMPY[datatype]).tobytes()


def from_wire(data: bytes, datatype: str, shape: tuple[int, ...]) -> Array:
    """Raises ``ValueError`` when the bytes do not fill the shape (an output of 0 bytes is one such case)."""
    if datatype == "BYTES":
        items: list[bytes] = []
        offset = 0
        while offset < len(data):
            length = int.from_bytes(data[offset : offset + 4], "little")
            items.append(data[offset + 4 : offset + 4 + length])
            offset += 4 + length
        flat = np.empty(len(items), dtype=np.object_)
        flat[:] = items
        return flat.reshape(shape)
    if datatype == "BF16":
        bits = np.frombuffer(data, dtype=np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(shape)
    return np.frombuffer(data, dtype=TRITON_TO_NUMPY[datatype]).reshape(shape)


def bf16_bits(array: Array) -> Array:
    """FP32 to bfloat16 bits (uint16), round to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(array), np.uint16(0x7FC0), rounded)
