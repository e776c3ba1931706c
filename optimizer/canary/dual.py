"""Sends every request to both arms at the same moment and hands back both answers: the shadow.

A proxy that mirrors throws the mirrored answer away, so mismatches can only be seen by a client that asks both. One
thread, one epoll, the load generator's own HTTP/2 connections.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from optimizer.load.http2 import Completion, ConnectionLost, Http2Connection, completions_of
from optimizer.load.worker import INFER_PATH, STREAMS_PER_CONNECTION, model_name_field

RECONNECT_ATTEMPTS = 3
RECONNECT_PAUSE_S = 0.1
HOPELESS = 8
"""Failures in a row, at least."""


@dataclass
class Exchange:
    """One request and what both arms said. Index 0 is the baseline. Latencies in µs, NaN for a failure."""

    sample: int
    answers: list[bytes | None] = field(default_factory=lambda: [None, None])
    failures: list[str | None] = field(default_factory=lambda: [None, None])
    latency_us: list[float] = field(default_factory=lambda: [float("nan"), float("nan")])
    sent: float = 0.0
    open: int = 2


class _Arm:
    """The connections to one server, opened as they are needed."""

    def __init__(self, url: str, model: str) -> None:
        self.url = url
        self.head = model_name_field(model)
        self.connections: list[Http2Connection] = []
        self.gone = ""

    def connection(self) -> Http2Connection:
        """One with room. Raises :class:`ConnectionLost`."""
        for each in self.connections:
            if each.in_flight < STREAMS_PER_CONNECTION and each.capacity > 0:
                return each
        for attempt in range(RECONNECT_ATTEMPTS):
            try:
                made = Http2Connection(self.url, INFER_PATH)
                break
            except ConnectionLost:
                if attempt == RECONNECT_ATTEMPTS - 1:
                    raise
                time.sleep(RECONNECT_PAUSE_S)
        self.connections.append(made)
        return made

    def drop(self, connection: Http2Connection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
            connection.close()

    def close(self) -> None:
        for each in list(self.connections):
            self.drop(each)


class DualSender:
    """``urls`` and ``models`` are (baseline, candidate); ``bodies`` are requests without a model name, by sample."""

    def __init__(self, urls: tuple[str, str], models: tuple[str, str], bodies: Sequence[bytes]) -> None:
        self._arms = (_Arm(urls[0], models[0]), _Arm(urls[1], models[1]))
        self._bodies = bodies

    def close(self) -> None:
        for arm in self._arms:
            arm.close()

    def __enter__(self) -> DualSender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, samples: Sequence[int], *, in_flight: int, timeout_s: float = 30.0) -> list[Exchange]:
        """One exchange a sample, ``in_flight`` of them at a time. A request without an answer after ``timeout_s`` has
        failed, and so have those to an arm that takes no connection. Ends early, with those that were sent, where an
        arm has failed ``in_flight`` times in a row: a server that hangs would be waited for again and again."""
        run = _Run(self._arms, self._bodies, [Exchange(sample) for sample in samples], timeout_s)
        try:
            return run.to_the_end(in_flight)
        except BaseException:
            # Interrupted: late answers must not meet the next run's tokens.
            self.close()
            raise
        finally:
            run.poll.close()


class _Run:
    def __init__(
        self, arms: tuple[_Arm, _Arm], bodies: Sequence[bytes], exchanges: list[Exchange], timeout_s: float
    ) -> None:
        self.poll = select.epoll()
        self._arms = arms
        self._bodies = bodies
        self._exchanges = exchanges
        self._timeout_s = timeout_s
        self._watched: dict[int, tuple[int, Http2Connection]] = {}
        self._writing: set[int] = set()
        self._failed_in_a_row = [0, 0]

    def to_the_end(self, in_flight: int) -> list[Exchange]:
        exchanges = self._exchanges
        running: list[Exchange] = []
        position = 0
        while running or position < len(exchanges):
            if max(self._failed_in_a_row) >= max(in_flight, HOPELESS):
                exchanges = exchanges[:position]
            while len(running) < in_flight and position < len(exchanges):
                running.append(exchanges[position])
                self._send(position)
                position += 1
            events = self.poll.poll(0.25) if any(exchange.open for exchange in running) else []
            for descriptor, _ in events:
                if descriptor in self._watched:
                    self._read(*self._watched[descriptor])
            if not events:
                self._give_up(time.monotonic() - self._timeout_s)
            running = [exchange for exchange in running if exchange.open]
        return exchanges

    def _send(self, number: int) -> None:
        exchange = self._exchanges[number]
        exchange.sent = time.monotonic()
        # Who is asked first alternates: neither arm always meets the quieter machine.
        for side in (number % 2, 1 - number % 2):
            arm = self._arms[side]
            connection: Http2Connection | None = None
            if not arm.gone:
                try:
                    connection = arm.connection()
                except ConnectionLost as lost:
                    arm.gone = f"UNAVAILABLE: {lost}"
            if connection is None:
                self._done(side, Completion(number, arm.gone, None))
                continue
            descriptor = connection.fileno()
            if descriptor not in self._watched:
                self._watched[descriptor] = (side, connection)
                self.poll.register(descriptor, select.EPOLLIN)
            connection.queue(number, arm.head, self._bodies[exchange.sample], True)
            self._flush(side, connection)

    def _flush(self, side: int, connection: Http2Connection) -> None:
        try:
            connection.flush()
        except ConnectionLost as lost:
            self._lost(side, connection, lost)
            return
        descriptor = connection.fileno()
        if connection.wants_write != (descriptor in self._writing):
            self._writing ^= {descriptor}
            self.poll.modify(descriptor, select.EPOLLIN | (select.EPOLLOUT if connection.wants_write else 0))

    def _read(self, side: int, connection: Http2Connection) -> None:
        try:
            for completion in connection.receive():
                self._done(side, completion)
        except ConnectionLost as lost:
            for completion in completions_of(lost):
                self._done(side, completion)
            self._lost(side, connection, lost)
            return
        self._flush(side, connection)

    def _lost(self, side: int, connection: Http2Connection, lost: ConnectionLost) -> None:
        for token in connection.tokens():
            self._done(side, Completion(token, f"UNAVAILABLE: {lost}", None))
        self._forget(side, connection)

    def _forget(self, side: int, connection: Http2Connection) -> None:
        descriptor = connection.fileno()
        if self._watched.pop(descriptor, None) is not None:
            self.poll.unregister(descriptor)
        self._writing.discard(descriptor)
        self._arms[side].drop(connection)

    def _give_up(self, before: float) -> None:
        for side, connection in list(self._watched.values()):
            tokens = connection.tokens()
            late = {token for token in tokens if self._exchanges[token].sent < before}
            if late:
                for token in tokens:
                    text = "DEADLINE_EXCEEDED: no answer" if token in late else "ABORTED: its connection was given up"
                    self._done(side, Completion(token, text, None))
                self._forget(side, connection)

    def _done(self, side: int, completion: Completion) -> None:
        exchange = self._exchanges[completion.token]
        exchange.open -= 1
        exchange.failures[side] = completion.failure
        exchange.answers[side] = completion.body
        self._failed_in_a_row[side] = 0 if completion.failure is None else self._failed_in_a_row[side] + 1
        if completion.failure is None:
            exchange.latency_us[side] = (time.monotonic() - exchange.sent) * 1e6
