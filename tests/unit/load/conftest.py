"""A gRPC server in this process that speaks just enough of Triton's protocol, for tests of the load generator.

The model's name says what it does: ``echo`` answers with its input, ``slow`` after 20 ms, ``fail`` with an error,
``never`` not at all while the test runs, ``empty`` with an empty message, ``big`` with 3 MB.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import pytest


class FakeServer:
    def __init__(self) -> None:
        import grpc
        from tritonclient.grpc import service_pb2

        self._pb: Any = service_pb2
        self.received: Counter[bytes] = Counter()
        """First input's raw contents to the number of requests that carried them."""
        self.in_flight_together = 0
        """Most requests with the same input that were being served at one time."""
        self._serving: Counter[bytes] = Counter()
        self._lock = threading.Lock()
        self.released = threading.Event()
        self._server = grpc.server(
            futures.ThreadPoolExecutor(16), options=[("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]
        )
        handler = grpc.unary_unary_rpc_method_handler(self._infer)
        service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelInfer": handler})
        self._server.add_generic_rpc_handlers((service,))
        self.url = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _infer(self, data: bytes, context: Any) -> bytes:
        import grpc

        request = self._pb.ModelInferRequest.FromString(data)
        content = request.raw_input_contents[0]
        with self._lock:
            self.received[content] += 1
            self._serving[content] += 1
            self.in_flight_together = max(self.in_flight_together, self._serving[content])
        try:
            name = request.model_name
            if name == "fail":
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "näh: not today")
            if name == "slow":
                self.released.wait(0.02)
            if name == "never":
                self.released.wait(60)
            if name == "empty":
                return b""
            response = self._pb.ModelInferResponse(model_name=name)
            for tensor in request.inputs:
                output = response.outputs.add(name="OUT", datatype=tensor.datatype)
                output.shape.extend(tensor.shape)
            response.raw_output_contents.append(b"\x07" * 3_000_000 if name == "big" else content)
            return bytes(response.SerializeToString())
        finally:
            with self._lock:
                self._serving[content] -= 1

    def stop(self) -> None:
        self.released.set()
        self._server.stop(0).wait(10)


@pytest.fixture
def fake_server() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.stop()
