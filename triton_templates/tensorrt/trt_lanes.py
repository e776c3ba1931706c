"""Batches in flight of one instance: while one runs on the GPU and is answered, the next is gathered.

A lane is a session with a thread. Triton calls ``execute`` from one thread, which takes a free lane, fills the lane's
pinned memory and hands it over; the lane's thread runs the batch and answers each request through its response sender.
A session is therefore used by one thread at a time. Imports the standard library only.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

DRAIN_TIMEOUT_S = 60.0
"""For batches in flight at unload; Triton unloads only when every request is answered."""


class Lane:
    def __init__(self, session: Any, free: queue.SimpleQueue[Lane], begin: Callable[[], None]) -> None:
        self.session = session
        self._free = free
        self._begin = begin
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def hand_over(self, work: Callable[[], None]) -> None:
        """``work`` raises nothing; the lane is free again when it has returned."""
        self._work.put(work)

    def stop(self) -> None:
        self._work.put(None)
        self.thread.join(DRAIN_TIMEOUT_S)

    def _serve(self) -> None:
        self._begin()
        while (work := self._work.get()) is not None:
            try:
                work()
            finally:
                self._free.put(self)


class Lanes:
    """``begin`` runs first in each lane's thread: CUDA's current device is a thread's own."""

    def __init__(self, sessions: Sequence[Any], begin: Callable[[], None]) -> None:
        self._free: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        self._all = [Lane(session, self._free, begin) for session in sessions]
        for lane in self._all:
            self._free.put(lane)

    def take(self) -> Lane:
        """Waits for the first lane that is free: Triton then keeps requests in its queue and batches them."""
        return self._free.get()

    def give_back(self, lane: Lane) -> None:
        """A lane that was taken and got no work."""
        self._free.put(lane)

    def stop(self) -> bool:
        """Waits for what is in flight. Whether everything has ended."""
        ended = []
        for lane in self._all:
            lane.stop()
            ended.append(not lane.thread.is_alive())
        return all(ended)
