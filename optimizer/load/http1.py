"""Triton's HTTP protocol with binary tensors over one kept-alive connection: one request in flight on each.

The alternative to gRPC for servers behind HTTP-only front ends. Imports the standard library; Triton's protobuf
messages only to hand a kept answer on in the form that gRPC gives.
"""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import quote

from optimizer.load.http2 import Completion, ConnectionLost

RECEIVE_BYTES = 1 << 18


class Http1Connection:
    """``queue`` one request, ``flush``, then ``receive`` until it completes. Raises :class:`ConnectionLost`."""

    def __init__(self, url: str, *, timeout_s: float = 2.0) -> None:
        host, _, port = url.rpartition(":")
        try:
            self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {url}: {error.strerror or error}") from None
        self.socket.setblocking(False)
        self._token: int | None = None
        self._keep = False
        self._out: bytes | memoryview = b""
        self._received: list[bytes] = []
        self._size = 0
        self._expected: int | None = None
        self._head = b""
        self._closing = False

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def in_flight(self) -> int:
        return int(self._token is not None)

    @property
    def capacity(self) -> int:
        return int(self._token is None and not self._closing)

    @property
    def wants_write(self) -> bool:
        return bool(self._out)

    def tokens(self) -> list[int]:
        return [] if self._token is None else [self._token]

    def queue(self, token: int, head: bytes, body: bytes, keep: bool) -> None:
        self._token = token
        self._keep = keep
        self._out = head + body

    def flush(self) -> None:
        if not self._out:
            return
        try:
            sent = self.socket.send(self._out)
        except BlockingIOError:
            return
        except OSError as error:
            raise ConnectionLost(f"connection lost: {error.strerror or error}") from None
        self._out = memoryview(self._out)[sent:] if sent < len(self._out) else b""

    def close(self) -> None:
        self.socket.close()

    def receive(self) -> list[Completion]:
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise ConnectionLost(f"connection lost: {error.strerror or error}") from None
        if not data or self._token is None:
            raise ConnectionLost("connection lost: closed by the server")
        self._received.append(data)
        self._size += len(data)
        if self._expected is None and not self._parse_head():
            return []
        assert self._expected is not None
        if self._size < self._expected:
            return []
        token, status, body = self._token, int(self._head[9:12]), b"".join(self._received)
        start = len(self._head)
        failure = None if status == 200 else f"HTTP_{status}: {error_text(body[start:])}"
        if failure is None and self._expected == start:
            failure = "HTTP_200: an answer without a body"
        keep = self._keep and failure is None
        answer = Completion(token, failure, _with_header_length(self._head, body[start:]) if keep else None)
        self._closing = header(self._head, b"connection").lower() == b"close"
        self._token, self._received, self._size, self._expected, self._head = None, [], 0, None, b""
        return [answer]

    def _parse_head(self) -> bool:
        whole = b"".join(self._received)
        end = whole.find(b"\r\n\r\n")
        if end < 0:
            self._received = [whole]
            return False
        self._head = whole[: end + 4]
        length = header(self._head, b"content-length")
        if not self._head.startswith(b"HTTP/1.") or not self._head[9:12].isdigit() or not length.isdigit():
            raise ConnectionLost("protocol error: no HTTP answer with a Content-Length")
        self._expected = len(self._head) + int(length)
        self._received = [whole]
        return True


def header(head: bytes, name: bytes) -> bytes:
    """A header's value, ``b""`` where there is none. ``name`` in lower case."""
    start = head.lower().find(b"\r\n" + name + b":")
    if start < 0:
        return b""
    start += len(name) + 3
    return head[start : head.find(b"\r\n", start)].strip()


def error_text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


def request_head(url: str, model: str, body_bytes: int, json_bytes: int) -> bytes:
    return (
        f"POST /v2/models/{quote(model, safe='')}/infer HTTP/1.1\r\nHost: {url}\r\n"
        f"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {json_bytes}\r\n"
        f"Content-Length: {body_bytes}\r\n\r\n"
    ).encode()


def _with_header_length(head: bytes, body: bytes) -> bytes:
    length = header(head, b"inference-header-content-length")
    return int(length or len(body)).to_bytes(8, "little") + body


def as_grpc_answer(kept: bytes) -> bytes:
    """A kept answer (8 bytes length of the JSON part, then the body) as a serialized ModelInferResponse.

    Outputs that are not binary in it are left without contents.
    """
    from tritonclient.grpc import service_pb2

    json_end = 8 + int.from_bytes(kept[:8], "little")
    document: dict[str, Any] = json.loads(kept[8:json_end])
    response = service_pb2.ModelInferResponse(
        model_name=document.get("model_name", ""), model_version=document.get("model_version", "")
    )
    offset = json_end
    for output in document.get("outputs", ()):
        tensor = response.outputs.add(name=output["name"], datatype=output["datatype"])
        tensor.shape.extend(output["shape"])
        size = output.get("parameters", {}).get("binary_data_size", 0)
        response.raw_output_contents.append(kept[offset : offset + size])
        offset += size
    return bytes(response.SerializeToString())
