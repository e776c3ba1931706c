"""The lean HTTP/2 client against gRPC's own server."""

from __future__ import annotations

import select
import time
from typing import Any

import hpack
import numpy as np
import pytest

from optimizer.load.http2 import Completion, ConnectionLost, Http2Connection, failure_of, request_headers
from optimizer.load.worker import INFER_PATH, model_name_field
from optimizer.triton.client import build_request, parse_response


def request(values: int, *, fill: float = 0.0) -> bytes:
    return build_request("", {"IN": np.full((1, values), fill, np.float32)}, {"IN": "FP32"})


def answers(connection: Http2Connection, count: int, *, limit_s: float = 20.0) -> list[Completion]:
    found: list[Completion] = []
    deadline = time.monotonic() + limit_s
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} answers"
        select.select([connection], [connection] if connection.wants_write else [], [], 0.5)
        found += connection.receive()
        connection.flush()
    return found


def test_answers_come_back_under_their_tokens(fake_server: Any) -> None:
    connection = Http2Connection(fake_server.url, INFER_PATH)
    for token in range(50):
        connection.queue(token, model_name_field("echo"), request(4, fill=token), True)
    connection.flush()
    found = answers(connection, 50)
    assert sorted(completion.token for completion in found) == list(range(50))
    for completion in found:
        assert completion.failure is None
        assert completion.body is not None
        assert parse_response(completion.body)[0]["OUT"][0, 0] == completion.token
    assert connection.in_flight == 0
    connection.close()


@pytest.mark.parametrize("values", [4_000, 20_000, 1_500_000])
def test_large_requests_respect_flow_control(fake_server: Any, values: int) -> None:
    """Larger than a frame, than a stream's window, and than the connection's, several at once."""
    connection = Http2Connection(fake_server.url, INFER_PATH)
    for token in range(3):
        connection.queue(token, model_name_field("echo"), request(values, fill=token + 0.5), True)
    connection.flush()
    for completion in answers(connection, 3):
        assert completion.failure is None
        assert completion.body is not None
        output = parse_response(completion.body)[0]["OUT"]
        assert output.shape == (1, values)
        assert (output == completion.token + 0.5).all()
    connection.close()


def test_large_answers_are_complete_and_dropped_when_not_wanted(fake_server: Any) -> None:
    connection = Http2Connection(fake_server.url, INFER_PATH)
    for token in range(4):
        connection.queue(token, model_name_field("big"), request(4), token % 2 == 0)
    connection.flush()
    bodies = {completion.token: completion.body for completion in answers(connection, 4)}
    assert [bodies[token] is not None for token in range(4)] == [True, False, True, False]
    body = bodies[0]
    assert body is not None
    assert body.count(b"\x07") >= 3_000_000
    connection.close()


def test_an_error_keeps_status_and_text(fake_server: Any) -> None:
    connection = Http2Connection(fake_server.url, INFER_PATH)
    for token in range(2):
        connection.queue(token, model_name_field("fail"), request(4), False)
    connection.flush()
    assert {completion.failure for completion in answers(connection, 2)} == {"INVALID_ARGUMENT: näh: not today"}
    connection.close()


def test_an_unknown_method_is_a_failure(fake_server: Any) -> None:
    connection = Http2Connection(fake_server.url, "/inference.GRPCInferenceService/Nothing")
    connection.queue(0, b"", b"", False)
    connection.flush()
    failure = answers(connection, 1)[0].failure
    assert failure is not None
    assert failure.startswith("UNIMPLEMENTED: ")
    connection.close()


def test_a_message_of_no_bytes_is_an_answer(fake_server: Any) -> None:
    """An empty protobuf message is legal; an OK without any message is not."""
    connection = Http2Connection(fake_server.url, INFER_PATH)
    connection.queue(0, model_name_field("empty"), request(4), True)
    connection.flush()
    assert answers(connection, 1) == [Completion(0, None, b"")]
    connection.close()


def test_a_stopped_server_is_a_lost_connection(fake_server: Any) -> None:
    connection = Http2Connection(fake_server.url, INFER_PATH)
    connection.queue(7, model_name_field("never"), request(4), False)
    connection.flush()
    connection.queue(8, model_name_field("echo"), request(4), False)
    connection.flush()
    assert [completion.token for completion in answers(connection, 1)] == [8]
    assert connection.tokens() == [7]
    fake_server.stop()
    with pytest.raises(ConnectionLost):
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            select.select([connection], [], [], 0.5)
            connection.receive()
    connection.close()


def test_nobody_there() -> None:
    with pytest.raises(ConnectionLost, match=r"cannot connect to 127\.0\.0\.1:1: "):
        Http2Connection("127.0.0.1:1", INFER_PATH)


def test_request_headers_decode_to_what_grpc_wants() -> None:
    path = "/" + "x" * 300
    assert [tuple(header) for header in hpack.Decoder().decode(request_headers("localhost:8001", path))] == [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost:8001"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("grpc-status", "0")], None),
        ([("grpc-status", "5"), ("grpc-message", "no%20such%20model")], "NOT_FOUND: no such model"),
        ([("grpc-status", "99")], "STATUS_99: "),
        ([(":status", "503")], "UNKNOWN: answer without grpc-status, HTTP status 503"),
    ],
)
def test_trailers(headers: list[tuple[str, str]], expected: str | None) -> None:
    assert failure_of(hpack.Encoder().encode(headers)) == expected


def test_trailers_that_are_no_headers() -> None:
    assert (failure_of(b"\xff\xff\xff\xff\xff\xff") or "").startswith("INTERNAL: trailers cannot be decoded")
