"""The connections of one load process, watched by one epoll."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Protocol

from optimizer.load.http2 import Completion, ConnectionLost

RECONNECT_ATTEMPTS = 4
RECONNECT_PAUSE_S = 0.05


class Connection(Protocol):
    """What the loop needs of a transport. Methods that touch the socket raise :class:`ConnectionLost`."""

    @property
    def in_flight(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def wants_write(self) -> bool: ...
    def fileno(self) -> int: ...
    def tokens(self) -> list[int]: ...
    def queue(self, token: int, head: bytes, body: bytes, keep: bool) -> None: ...
    def flush(self) -> None: ...
    def receive(self) -> list[Completion]: ...
    def close(self) -> None: ...


class Pool:
    """``streams`` requests share one connection; more than ``most`` connections are never opened, then requests double
    up where the transport can carry several."""

    def __init__(self, connect: Callable[[], Connection], *, streams: int, most: int) -> None:
        self._connect = connect
        self.streams = streams
        self.most = most
        self.connections: list[Connection] = []
        self._by_descriptor: dict[int, Connection] = {}
        self._writing: set[int] = set()
        self._poll = select.epoll()

    def ready(self, requests: int) -> None:
        """Opens connections for so many requests in flight. Raises :class:`ConnectionLost`."""
        while len(self.connections) < min(-(-requests // self.streams), self.most):
            self._add()

    def roomiest(self) -> Connection | None:
        """The connection with the fewest requests in flight, a new one where all are busy; ``None``: no room at all."""
        best = min(self.connections, key=lambda connection: connection.in_flight, default=None)
        if best is None or best.in_flight >= self.streams or best.capacity <= 0:
            if len(self.connections) < self.most:
                return self._add()
            if best is not None and best.capacity <= 0:
                return next((each for each in self.connections if each.capacity > 0), None)
        return best

    def _add(self) -> Connection:
        connection = self._connect()
        descriptor = connection.fileno()
        self.connections.append(connection)
        self._by_descriptor[descriptor] = connection
        self._poll.register(descriptor, select.EPOLLIN)
        return connection

    def replace(self, connection: Connection) -> None:
        """Drops a lost connection and opens another. Raises :class:`ConnectionLost` when the server takes none."""
        self.drop(connection)
        for attempt in range(RECONNECT_ATTEMPTS):
            try:
                self._add()
                return
            except ConnectionLost:
                if attempt == RECONNECT_ATTEMPTS - 1:
                    raise
                time.sleep(RECONNECT_PAUSE_S)

    def drop(self, connection: Connection) -> None:
        descriptor = connection.fileno()
        self._poll.unregister(descriptor)
        self._writing.discard(descriptor)
        del self._by_descriptor[descriptor]
        self.connections.remove(connection)
        connection.close()

    def flush(self, connection: Connection) -> None:
        connection.flush()
        descriptor = connection.fileno()
        if connection.wants_write != (descriptor in self._writing):
            if connection.wants_write:
                self._writing.add(descriptor)
                self._poll.modify(descriptor, select.EPOLLIN | select.EPOLLOUT)
            else:
                self._writing.discard(descriptor)
                self._poll.modify(descriptor, select.EPOLLIN)

    def wait(self, timeout_s: float, *, precise: bool) -> list[Connection]:
        """Connections with something to read or room to write. ``precise``: wakes up within microseconds of the
        timeout; epoll alone counts in milliseconds."""
        if precise and timeout_s < 0.5:
            if not select.select([self._poll], [], [], timeout_s)[0]:
                return []
            timeout_s = 0
        return [self._by_descriptor[descriptor] for descriptor, _ in self._poll.poll(timeout_s)]

    def close(self) -> None:
        for connection in list(self.connections):
            self.drop(connection)
        self._poll.close()
