"""gRPC unary calls over one HTTP/2 connection, written for a load generator: prebuilt bytes in, raw bytes out.

A general gRPC library spends most of a small request's CPU on threads, callbacks and metadata objects that a load
generator has no use for. Here a request is one join of constant bytes and at most one ``send``; an answer is a walk
over frame headers. Implements RFC 9113 as far as a client needs it that never gets pushed to: flow control, SETTINGS,
PING, GOAWAY, RST_STREAM, CONTINUATION. The header table is switched off (SETTINGS_HEADER_TABLE_SIZE 0), so equal
header blocks mean equal headers and a block has to be decoded only the first time that it is seen.

Imports the standard library; ``hpack`` on the first header block that is new.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from typing import NamedTuple
from urllib.parse import unquote

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 2, 3, 4, 5
LARGEST_WINDOW = 2**31 - 1
RECEIVE_BYTES = 1 << 18
LAST_STREAM_ID = 2**31 - 1

STATUS_NAMES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip


class ConnectionLost(Exception):
    """The connection is of no use any more; what was in flight on it has failed."""


class Completion(NamedTuple):
    """``failure`` is ``None`` or ``STATUS: message``. ``body`` is the answer's message where it was to be kept."""

    token: int
    failure: str | None
    body: bytes | None


class _Stream:
    __slots__ = ("chunks", "received", "token")

    def __init__(self, token: int, keep: bool) -> None:
        self.token = token
        self.received = 0
        self.chunks: list[bytes] | None = [] if keep else None


class _Unsent:
    """What is left of a request that did not fit into the flow-control windows."""

    __slots__ = ("data", "offset", "stream_id", "window")

    def __init__(self, stream_id: int, data: memoryview, window: int) -> None:
        self.stream_id = stream_id
        self.data = data
        self.offset = 0
        self.window = window


class Http2Connection:
    """One connection. ``queue`` requests, then ``flush``; call ``receive`` when the socket is readable.

    ``in_flight`` is the number of requests without an answer; ``capacity`` how many more the server accepts now.
    Raises :class:`ConnectionLost` from every method that touches the socket.
    """

    def __init__(self, url: str, path: str, *, timeout_s: float = 2.0) -> None:
        host, _, port = url.rpartition(":")
        try:
            self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            settings = struct.pack(
                ">HIHIHIHI", HEADER_TABLE_SIZE, 0, ENABLE_PUSH, 0, INITIAL_WINDOW_SIZE, LARGEST_WINDOW,
                MAX_FRAME_SIZE, RECEIVE_BYTES,
            )  # fmt: skip
            self.socket.sendall(
                PREFACE + frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, _u32(LARGEST_WINDOW - 65535))
            )
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {url}: {error.strerror or error}") from None
        self.socket.setblocking(False)
        self._block = request_headers(url, path)
        self._headers_start = len(self._block).to_bytes(3, "big") + bytes((HEADERS, END_HEADERS))
        self._next_id = 1
        self._streams: dict[int, _Stream] = {}
        self._unsent: deque[_Unsent] = deque()
        self._out: list[bytes | memoryview] = []
        self._partial = b""
        self._headers: tuple[int, int, bytes] | None = None
        self._window = 65535
        self._initial_window = 65535
        self._max_frame = 16384
        self._max_streams = LAST_STREAM_ID
        self._consumed = 0
        self._going_away = False
        self._trailers: dict[bytes, str | None] = {}

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def in_flight(self) -> int:
        return len(self._streams)

    @property
    def capacity(self) -> int:
        return 0 if self._going_away or self._next_id >= LAST_STREAM_ID else self._max_streams - len(self._streams)

    @property
    def wants_write(self) -> bool:
        """``flush`` could not write everything: wait until the socket is writable."""
        return bool(self._out)

    def tokens(self) -> list[int]:
        return [stream.token for stream in self._streams.values()]

    def queue(self, token: int, head: bytes, body: bytes, keep: bool) -> None:
        """``head`` + ``body`` is the gRPC message without its 5-byte prefix; the two are kept apart to spare a copy."""
        stream_id = self._next_id
        self._next_id += 2
        self._streams[stream_id] = _Stream(token, keep)
        message = len(head) + len(body)
        size = message + 5
        identifier = stream_id.to_bytes(4, "big")
        if size <= self._max_frame and size <= self._window and size <= self._initial_window and not self._unsent:
            self._window -= size
            self._out += (
                self._headers_start, identifier, self._block,
                size.to_bytes(3, "big"), b"\x00\x01", identifier, b"\x00" + message.to_bytes(4, "big"), head, body,
            )  # fmt: skip
            return
        self._out += (self._headers_start, identifier, self._block)
        whole = memoryview(b"".join((b"\x00", message.to_bytes(4, "big"), head, body)))
        self._unsent.append(_Unsent(stream_id, whole, self._initial_window))
        self._fill_windows()

    def flush(self) -> None:
        if not self._out:
            return
        data: bytes | memoryview = b"".join(self._out) if len(self._out) > 1 else self._out[0]
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise ConnectionLost(f"connection lost: {error.strerror or error}") from None
        self._out = [memoryview(data)[sent:]] if sent < len(data) else []

    def cancel_all(self) -> None:
        """Gives up every request in flight; the connection is not to be used afterwards."""
        self._streams.clear()
        self._going_away = True

    def close(self) -> None:
        self.socket.close()

    def receive(self) -> list[Completion]:
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise ConnectionLost(f"connection lost: {error.strerror or error}") from None
        if not data:
            raise ConnectionLost("connection lost: closed by the server")
        if self._partial:
            data = self._partial + data
        completions: list[Completion] = []
        position, end = 0, len(data)
        while end - position >= 9:
            length = int.from_bytes(data[position : position + 3], "big")
            after = position + 9 + length
            if after > end:
                break
            kind, flags = data[position + 3], data[position + 4]
            stream_id = int.from_bytes(data[position + 5 : position + 9], "big") & LAST_STREAM_ID
            if kind == DATA:
                self._on_data(stream_id, flags, data[position + 9 : after], completions)
            elif kind in (HEADERS, CONTINUATION):
                self._on_headers(kind, stream_id, flags, data[position + 9 : after], completions)
            else:
                self._on_control(kind, stream_id, flags, data[position + 9 : after], completions)
            position = after
        self._partial = data[position:]
        if self._going_away and not self._streams:
            raise _LostAfter("connection lost: the server is going away", completions)
        return completions

    def _on_data(self, stream_id: int, flags: int, payload: bytes, completions: list[Completion]) -> None:
        self._consumed += len(payload)
        if self._consumed > LARGEST_WINDOW // 4:
            self._out.append(frame(WINDOW_UPDATE, 0, 0, _u32(self._consumed)))
            self._consumed = 0
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if flags & PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        stream.received += len(payload)
        if stream.chunks is not None:
            stream.chunks.append(payload)
        if flags & END_STREAM:
            del self._streams[stream_id]
            completions.append(Completion(stream.token, "UNKNOWN: answer without grpc-status (not gRPC?)", None))

    def _on_headers(self, kind: int, stream_id: int, flags: int, payload: bytes, completions: list[Completion]) -> None:
        if kind == HEADERS:
            if flags & PADDED:
                payload = payload[1 : len(payload) - payload[0]]
            if flags & PRIORITY:
                payload = payload[5:]
            started = flags
        else:
            if self._headers is None or self._headers[0] != stream_id:
                raise ConnectionLost("protocol error: CONTINUATION without HEADERS")
            started = self._headers[1]
            payload = self._headers[2] + payload
        if not flags & END_HEADERS:
            self._headers = (stream_id, started, payload)
            return
        self._headers = None
        if not started & END_STREAM:
            return
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return
        try:
            failure = self._trailers[payload]
        except KeyError:
            failure = failure_of(payload)
            # Messages may name the request; a bounded cache serves the common answers all the same.
            if len(self._trailers) < 1000:
                self._trailers[payload] = failure
        body = None
        if failure is None:
            if stream.received < 5:
                failure = "INTERNAL: status OK without a message"
            elif stream.chunks is not None:
                body = b"".join(stream.chunks)[5:]
        completions.append(Completion(stream.token, failure, body))

    def _on_control(self, kind: int, stream_id: int, flags: int, payload: bytes, completions: list[Completion]) -> None:
        if kind == WINDOW_UPDATE:
            increment = int.from_bytes(payload, "big") & LARGEST_WINDOW
            if stream_id == 0:
                self._window += increment
            else:
                for unsent in self._unsent:
                    if unsent.stream_id == stream_id:
                        unsent.window += increment
            self._fill_windows()
        elif kind == PING and not flags & ACK:
            self._out.append(frame(PING, ACK, 0, payload))
        elif kind == SETTINGS and not flags & ACK:
            self._on_settings(payload)
        elif kind == RST_STREAM:
            code = int.from_bytes(payload, "big")
            stream = self._streams.pop(stream_id, None)
            self._unsent = deque(unsent for unsent in self._unsent if unsent.stream_id != stream_id)
            if stream is not None:
                name = {7: "UNAVAILABLE", 8: "CANCELLED", 11: "RESOURCE_EXHAUSTED"}.get(code, "INTERNAL")
                completions.append(Completion(stream.token, f"{name}: stream reset by the server, code {code}", None))
        elif kind == GOAWAY:
            self._going_away = True
            last = int.from_bytes(payload[:4], "big") & LAST_STREAM_ID
            for late in [number for number in self._streams if number > last]:
                stream = self._streams.pop(late)
                completions.append(Completion(stream.token, "UNAVAILABLE: the server is going away", None))

    def _on_settings(self, payload: bytes) -> None:
        for offset in range(0, len(payload) - 5, 6):
            name, value = struct.unpack_from(">HI", payload, offset)
            if name == INITIAL_WINDOW_SIZE:
                for unsent in self._unsent:
                    unsent.window += value - self._initial_window
                self._initial_window = value
            elif name == MAX_FRAME_SIZE:
                self._max_frame = value
            elif name == MAX_CONCURRENT_STREAMS:
                self._max_streams = value
        self._out.append(frame(SETTINGS, ACK, 0, b""))
        self._fill_windows()

    def _fill_windows(self) -> None:
        """Frames as much of the unsent requests as the windows allow, oldest first."""
        for unsent in list(self._unsent):
            while True:
                left = len(unsent.data) - unsent.offset
                size = min(left, self._max_frame, self._window, unsent.window)
                if size <= 0:
                    break
                chunk = unsent.data[unsent.offset : unsent.offset + size]
                unsent.offset += size
                unsent.window -= size
                self._window -= size
                flags = END_STREAM if size == left else 0
                self._out += (frame_header(size, DATA, flags, unsent.stream_id), chunk)
            if unsent.offset == len(unsent.data):
                self._unsent.remove(unsent)


class _LostAfter(ConnectionLost):
    """Lost, with answers that came before."""

    def __init__(self, text: str, completions: list[Completion]) -> None:
        super().__init__(text)
        self.completions = completions


def completions_of(lost: ConnectionLost) -> list[Completion]:
    """Answers that arrived together with the news that the connection ends."""
    return lost.completions if isinstance(lost, _LostAfter) else []


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return frame_header(len(payload), kind, flags, stream_id) + payload


def frame_header(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    return length.to_bytes(3, "big") + bytes((kind, flags)) + _u32(stream_id)


def request_headers(authority: str, path: str) -> bytes:
    """Header block of a gRPC request, literals without indexing (RFC 7541, 6.2.2), so that it is the same each time."""
    # 0x83 = :method POST, 0x86 = :scheme http in the static table.
    block = b"\x83\x86"
    for index, name, value in (
        (4, b"", path.encode()),
        (1, b"", authority.encode()),
        (31, b"", b"application/grpc"),
        (0, b"te", b"trailers"),
    ):
        if index:
            block += _integer(index, 4)
        else:
            block += b"\x00" + _integer(len(name), 7) + name
        block += _integer(len(value), 7) + value
    return block


def failure_of(block: bytes) -> str | None:
    """``None`` for grpc-status 0, else ``STATUS: message``."""
    import hpack

    try:
        headers = {str(name): str(value) for name, value in hpack.Decoder().decode(block)}
    except hpack.HPACKError as error:
        return f"INTERNAL: trailers cannot be decoded ({error})"
    code = headers.get("grpc-status")
    if code == "0":
        return None
    if code is None or not code.isdigit():
        return f"UNKNOWN: answer without grpc-status, HTTP status {headers.get(':status', 'unknown')}"
    name = STATUS_NAMES[int(code)] if int(code) < len(STATUS_NAMES) else f"STATUS_{code}"
    return f"{name}: {unquote(headers.get('grpc-message', ''))}"


def _integer(value: int, prefix_bits: int) -> bytes:
    """RFC 7541, 5.1, with the bits before the prefix zero."""
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes((value,))
    out = bytearray((limit,))
    value -= limit
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    out.append(value)
    return bytes(out)


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "big")
