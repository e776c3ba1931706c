"""Main program of one load process: ``python -m optimizer.load.worker``.

Takes pickled commands on stdin and gives pickled answers on stdout, both prefixed with their length (8 bytes): the
other end is always the :class:`~optimizer.load.generator.LoadGenerator` that started it. Ends with its stdin.
"""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import dataclass
from typing import BinaryIO

from optimizer.load.http2 import ConnectionLost, Http2Connection
from optimizer.load.loop import Plan, WindowRun
from optimizer.load.pool import Pool

INFER_PATH = "/inference.GRPCInferenceService/ModelInfer"
STREAMS_PER_CONNECTION = 6
"""As tritonclient's C++ library shares its channels (TRITON_CLIENT_GRPC_CHANNEL_MAX_SHARE_COUNT)."""
MOST_CONNECTIONS = 64


@dataclass(frozen=True)
class Prepare:
    url: str
    bodies: tuple[bytes, ...]
    """Serialized ModelInferRequest per sample, without a model name."""


@dataclass(frozen=True)
class Run:
    model: str
    plan: Plan


def model_name_field(model: str) -> bytes:
    """``model_name`` (field 1) of a ModelInferRequest: put before a serialized message it becomes part of it."""
    name = model.encode()
    length = bytearray()
    size = len(name)
    while size >= 128:
        length.append(size % 128 + 128)
        size //= 128
    length.append(size)
    return b"\x0a" + bytes(length) + name


class Worker:
    def __init__(self) -> None:
        self._pool: Pool | None = None
        self._bodies: tuple[bytes, ...] = ()

    def prepare(self, command: Prepare) -> None:
        self.close()
        self._bodies = command.bodies
        self._pool = Pool(
            lambda: Http2Connection(command.url, INFER_PATH), streams=STREAMS_PER_CONNECTION, most=MOST_CONNECTIONS
        )

    def run(self, command: Run) -> object:
        assert self._pool is not None, "prepare comes before run"
        head, bodies = model_name_field(command.model), self._bodies

        def message(sample: int, _slot: int) -> tuple[bytes, bytes]:
            return head, bodies[sample]

        return WindowRun(self._pool, message, command.plan, None).run()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def read_frame(stream: BinaryIO) -> object | None:
    """One pickled object, or ``None`` at the end of the stream."""
    size = stream.read(8)
    if len(size) < 8:
        return None
    data = stream.read(int.from_bytes(size, "little"))
    answer: object = pickle.loads(data)
    return answer


def write_frame(stream: BinaryIO, value: object) -> None:
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(len(data).to_bytes(8, "little"))
    stream.write(data)
    stream.flush()


def main() -> int:
    # Nothing but answers may reach the pipe: a stray print would break the framing.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    worker = Worker()
    try:
        while (command := read_frame(sys.stdin.buffer)) is not None:
            try:
                if isinstance(command, Prepare):
                    worker.prepare(command)
                    write_frame(answers, "prepared")
                elif isinstance(command, Run):
                    write_frame(answers, worker.run(command))
            except ConnectionLost as lost:
                write_frame(answers, lost)
    except BrokenPipeError:
        return 0
    finally:
        worker.close()
    return 0


if __name__ == "__main__":
    # Pickled classes must have their importable names, not __main__'s.
    from optimizer.load import worker as itself

    sys.exit(itself.main())
