"""The HTTP connection against a server that dribbles, and the layout of shared memory."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from optimizer.load.bodies import http_bodies, shared_memory_bodies
from optimizer.load.http1 import Http1Connection, as_grpc_answer, request_head
from optimizer.load.http2 import Completion, ConnectionLost
from optimizer.load.shared_memory import ALIGNMENT, SystemRegion, lay_out, wire_bytes
from optimizer.load.worker import model_name_field
from optimizer.records.samples import Sample
from optimizer.triton.client import parse_response, to_wire

Serve = Callable[[list[bytes]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A server that takes one connection, reads a request, sends the pieces one by one, and closes."""
    threads: list[threading.Thread] = []

    def start(pieces: list[bytes]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))

        def work() -> None:
            with listener, listener.accept()[0] as connection:
                connection.recv(1 << 16)
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(0.02)

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for thread in threads:
        thread.join()


def one_answer(url: str) -> Completion:
    connection = Http1Connection(url)
    connection.queue(3, request_head(url, "m", 2, 2), b"{}", True)
    assert (connection.in_flight, connection.capacity) == (1, 0)
    connection.flush()
    try:
        while True:
            select.select([connection], [], [], 5)
            if found := connection.receive():
                assert connection.in_flight == 0
                return found[0]
    finally:
        connection.close()


TENSOR = np.arange(4, dtype=np.float32).tobytes()
DOCUMENT = json.dumps(
    {
        "model_name": "m",
        "outputs": [
            {"name": "Y", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": len(TENSOR)}},
        ],
    }
).encode()
HEAD = (
    f"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: {len(DOCUMENT)}\r\n"
    f"Content-Length: {len(DOCUMENT) + len(TENSOR)}\r\n\r\n"
).encode()


@pytest.mark.parametrize("cut", [1, 20, len(HEAD) - 2, len(HEAD), len(HEAD) + 5])
def test_an_answer_in_pieces(serve: Serve, cut: int) -> None:
    whole = HEAD + DOCUMENT + TENSOR
    completion = one_answer(serve([whole[:cut], whole[cut:]]))
    assert (completion.token, completion.failure) == (3, None)
    assert completion.body is not None
    arrays, datatypes = parse_response(as_grpc_answer(completion.body))
    assert arrays["Y"].tolist() == [[0, 1, 2, 3]]
    assert datatypes == {"Y": "FP32"}


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (b'HTTP/1.1 400 Bad Request\r\nContent-Length: 16\r\n\r\n{"error":"wrong"', "HTTP_400: "),
        (b'HTTP/1.1 404 Not Found\r\nContent-Length: 17\r\n\r\n{"error":"gone!"}', "HTTP_404: gone!"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP_200: an answer without a body"),
    ],
)
def test_failing_answers(serve: Serve, answer: bytes, failure: str) -> None:
    found = one_answer(serve([answer]))
    assert found.body is None
    assert (found.failure or "").startswith(failure)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n", b"SSH-2.0-OpenSSH\r\n\r\n"])
def test_no_answer_is_a_lost_connection(serve: Serve, answer: bytes) -> None:
    with pytest.raises(ConnectionLost):
        one_answer(serve([answer]))


def test_http_requests_carry_the_tensors_behind_their_description() -> None:
    sample = Sample("a", {"X": np.ones((1, 2), np.float32), "T": np.array([[b"ab", b""]], object)})
    bodies = http_bodies([sample], {"X": "FP32", "T": "BYTES"})
    text, tensors = bodies.payloads[0][: bodies.json_bytes[0]], bodies.payloads[0][bodies.json_bytes[0] :]
    assert [entry["parameters"]["binary_data_size"] for entry in json.loads(text)["inputs"]] == [8, 10]
    assert tensors == to_wire(sample.inputs["X"], "FP32") + to_wire(sample.inputs["T"], "BYTES")
    assert b"/v2/models/a%2Fb/infer" in request_head("h:1", "a/b", 10, 5)


def test_a_name_in_front_becomes_part_of_the_message() -> None:
    from tritonclient.grpc import service_pb2

    sample = Sample("a", {"X": np.ones((1, 2), np.float32)})
    data, places = lay_out([sample], {"X": "FP32"})
    (payload,) = shared_memory_bodies([sample], {"X": "FP32"}, places, "region").payloads
    for name in ("m", "n" * 200, "é"):
        request = service_pb2.ModelInferRequest.FromString(model_name_field(name) + payload)
        assert request.model_name == name
        assert request.inputs[0].parameters["shared_memory_byte_size"].int64_param == 8
        assert list(request.inputs[0].shape) == [1, 2]
        assert not request.raw_input_contents
    assert data[:8] == to_wire(sample.inputs["X"], "FP32")


def test_inputs_lie_side_by_side() -> None:
    samples = [Sample(str(n), {"X": np.full((n + 1, 3), n, np.int64)}) for n in range(5)]
    data, places = lay_out(samples, {"X": "INT64"})
    ends = [0]
    for sample, place in zip(samples, places, strict=True):
        offset, size = place["X"]
        assert offset % ALIGNMENT == 0
        assert offset >= ends[-1]
        assert data[offset : offset + size] == sample.inputs["X"].tobytes()
        ends.append(offset + size)


def test_the_bytes_of_an_answer_in_a_slot() -> None:
    strings = np.array([b"abc", b""], object)
    assert wire_bytes("BYTES", [2], to_wire(strings, "BYTES") + b"rubbish") == 4 + 3 + 4
    assert wire_bytes("FP16", [3, 5], b"") == 30
    assert wire_bytes("FP32", [0, 5], b"") == 0


def test_a_region_is_a_file_that_goes() -> None:
    from optimizer.load.shared_memory import NAME, SHARED_MEMORY

    name = f"{NAME}_test_{threading.get_ident()}"
    region = SystemRegion(name, 100)
    region.memory[:3] = b"abc"
    assert (SHARED_MEMORY / name).read_bytes()[:4] == b"abc\0"
    region.close()
    assert not (SHARED_MEMORY / name).exists()
