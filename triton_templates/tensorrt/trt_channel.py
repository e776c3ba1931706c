"""Messages between the instances of a model and the one process that holds their engine.

A Unix socket that keeps message boundaries, in Linux's abstract namespace (nothing to clean up), with both ends checked
to be the same user's. A message is one letter and a body: ``J`` JSON, with file descriptors beside it where there are
any; ``R`` run the execution of that number; ``O`` it ran. Imports the standard library only.
"""

from __future__ import annotations

import array
import hashlib
import json
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LARGEST = 1 << 18
MOST_DESCRIPTORS = 200

JSON = ord("J")
_number = struct.Struct("<cI")


class Closed(ConnectionError):
    """The other end is gone."""


def address(server_pid: int, plan: Path, device: int) -> str:
    """One per server process, plan file and GPU; the server is told from another that gets its pid later."""
    started = (
        Path(f"/proc/{server_pid}/stat").read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()[19]
    )
    facts = plan.stat()
    identity = [
        str(Path("/proc/self/ns/pid").readlink()), server_pid, started, str(plan.resolve()), facts.st_ino,
        facts.st_mtime_ns, device, os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    ]  # fmt: skip
    return "\0triton-tensorrt-" + hashlib.sha256(repr(identity).encode()).hexdigest()[:32]


def make_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def same_user(connection: socket.socket) -> bool:
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid == os.getuid()


class Channel:
    """One end of a connection. Raises :class:`Closed` when the other end is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = bytearray(LARGEST)
        self._view = memoryview(self._buffer)
        self._beside = socket.CMSG_SPACE(4 * MOST_DESCRIPTORS)

    def close(self) -> None:
        self._socket.close()

    def send(self, document: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        body = b"J" + json.dumps(document).encode()
        if len(body) > LARGEST:
            raise ValueError(f"a message of {len(body)} bytes is too large")
        beside = []
        if descriptors:
            beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())]
        try:
            self._socket.sendmsg([body], beside)
        except OSError as error:
            raise Closed(str(error)) from None

    def send_number(self, letter: bytes, number: int) -> None:
        try:
            self._socket.send(_number.pack(letter, number))
        except OSError as error:
            raise Closed(str(error)) from None

    def receive(self) -> tuple[bytes, Any, list[int]]:
        """(letter, number or document, descriptors)."""
        try:
            size, beside, _, _ = self._socket.recvmsg_into([self._buffer], self._beside)
        except OSError as error:
            raise Closed(str(error)) from None
        if not size:
            raise Closed("the connection was closed")
        if self._buffer[0] != JSON:
            letter, number = _number.unpack_from(self._buffer)
            return letter, number, []
        descriptors: list[int] = []
        for level, kind, content in beside:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.extend(array.array("i", content[: len(content) // 4 * 4]))
        return b"J", json.loads(bytes(self._view[1:size])), descriptors
