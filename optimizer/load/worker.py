"""Main program of one load process: ``python -m optimizer.load.worker``.

Takes pickled commands on stdin and gives pickled answers on stdout, both prefixed with their length (8 bytes): the
other end is always the :class:`~optimizer.load.generator.LoadGenerator` that started it. Ends with its stdin, or at
SIGTERM, which its guardian sends when the owner is gone; either way it takes back what it registered with the server.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from optimizer.load.bodies import Bodies
from optimizer.load.http1 import Http1Connection, as_grpc_answer, request_head
from optimizer.load.http2 import Http2Connection
from optimizer.load.loop import Plan, Report, WindowRun
from optimizer.load.pool import Pool

if TYPE_CHECKING:
    from optimizer.load.shared_memory import OutputRegion, OutputSlots
    from optimizer.triton.client import TritonClient

INFER_PATH = "/inference.GRPCInferenceService/ModelInfer"
STREAMS_PER_CONNECTION = 6
"""As tritonclient's C++ library shares its channels (TRITON_CLIENT_GRPC_CHANNEL_MAX_SHARE_COUNT)."""
MOST_GRPC_CONNECTIONS = 64
MOST_HTTP_CONNECTIONS = 512
OPEN_LOOP_SLOTS = 256
"""Output slots of an open loop, whose number in flight has no bound; answers beyond come over the wire."""


@dataclass(frozen=True)
class Prepare:
    """``transport`` is ``grpc`` or ``http`` and ``url`` its address; ``grpc_url`` is for registering shared memory."""

    transport: str
    url: str
    grpc_url: str
    bodies: Bodies
    outputs: OutputSlots | None = None
    unregister: tuple[str, ...] = ()
    """Regions of the owner's that this process takes back at its end."""
    cuda: bool = False


@dataclass(frozen=True)
class Run:
    model: str
    plan: Plan


class Worker:
    def __init__(self) -> None:
        self._prepared: Prepare | None = None
        self._pool: Pool | None = None
        self._region: OutputRegion | None = None
        self._region_number = 0
        self._client: TritonClient | None = None

    def prepare(self, command: Prepare) -> None:
        self.close()
        self._prepared = command
        if command.transport == "http":
            self._pool = Pool(lambda: Http1Connection(command.url), streams=1, most=MOST_HTTP_CONNECTIONS)
        else:
            self._pool = Pool(
                lambda: Http2Connection(command.url, INFER_PATH),
                streams=STREAMS_PER_CONNECTION,
                most=MOST_GRPC_CONNECTIONS,
            )

    def run(self, command: Run) -> Report:
        assert self._prepared is not None, "prepare comes before run"
        assert self._pool is not None
        prepared, model = self._prepared, command.model
        payloads = prepared.bodies.payloads
        if prepared.transport == "http":
            heads = [
                request_head(prepared.url, model, len(payload), size)
                for payload, size in zip(payloads, prepared.bodies.json_bytes, strict=True)
            ]
            return WindowRun(
                self._pool,
                lambda sample, _slot: (heads[sample], payloads[sample]),
                command.plan,
                lambda body, _slot: as_grpc_answer(body),
            ).run()
        name = model_name_field(model)
        region = self._output_region(command.plan)
        if region is None:
            return WindowRun(self._pool, lambda sample, _slot: (name, payloads[sample]), command.plan, None).run()
        heads = [name + region.request_part(slot) for slot in range(region.count)]
        return WindowRun(
            self._pool,
            lambda sample, slot: (heads[slot] if slot < len(heads) else name, payloads[sample]),
            command.plan,
            lambda body, slot: region.with_contents(body, slot) if slot < region.count else body,
        ).run()

    def _output_region(self, plan: Plan) -> OutputRegion | None:
        """A region with a slot for every request in flight: the last window's, or a larger one."""
        assert self._prepared is not None
        outputs = self._prepared.outputs
        if outputs is None:
            return None
        wanted = plan.slots or OPEN_LOOP_SLOTS
        if self._region is not None and self._region.count >= wanted:
            return self._region
        from optimizer.load.shared_memory import OutputRegion

        self._close_region()
        self._region_number += 1
        self._region = OutputRegion(
            self._triton(), outputs, wanted, f"{outputs.prefix}_out_{os.getpid()}_{self._region_number}"
        )
        return self._region

    def _triton(self) -> TritonClient:
        from optimizer.triton.client import TritonClient

        if self._client is None:
            assert self._prepared is not None
            self._client = TritonClient(self._prepared.grpc_url, timeout_s=2.0)
        return self._client

    def _close_region(self) -> None:
        if self._region is not None:
            self._region.close()
            self._region = None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        self._close_region()
        if self._prepared is not None and self._prepared.unregister:
            from optimizer.load.shared_memory import unregister

            for name in self._prepared.unregister:
                unregister(self._triton(), name, cuda=self._prepared.cuda)
        if self._client is not None:
            self._client.close()
            self._client = None
        self._prepared = None


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
    from optimizer.errors import OptimizerError

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nothing but answers may reach the pipe: a stray print would break the framing.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _wake_exactly()
    worker = Worker()
    try:
        while (command := read_frame(sys.stdin.buffer)) is not None:
            try:
                if isinstance(command, Prepare):
                    worker.prepare(command)
                    write_frame(answers, "prepared")
                elif isinstance(command, Run):
                    write_frame(answers, worker.run(command))
            except OptimizerError as error:
                write_frame(answers, error.problem)
    except BrokenPipeError:
        return 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        worker.close()
    return 0


def _wake_exactly() -> None:
    """Linux may wake a sleeper 50 us late by default, to save power."""
    import ctypes

    pr_set_timerslack = 29
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_timerslack, 1000, 0, 0, 0)


if __name__ == "__main__":
    # Pickled classes must have their importable names, not __main__'s.
    from optimizer.load import worker as itself

    sys.exit(itself.main())
