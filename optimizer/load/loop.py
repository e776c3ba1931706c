"""One load process's event loop: sends prebuilt requests when they are due and notes what happened to each.

One thread, one epoll. Runs in the worker processes of :mod:`optimizer.load.generator`; knows nothing of Triton but the
wire. All times are ``time.monotonic_ns()``, which every process of a host shares.
"""

from __future__ import annotations

import gc
import random
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from optimizer.load.http2 import Completion, ConnectionLost, completions_of
from optimizer.load.pool import Connection, Pool

PENDING = -1
"""Outcome of a request that has no answer yet."""
RETRY_PAUSE_NS = 5_000_000
"""A slot whose request failed waits so long: a server that refuses at once must not turn the loop into a flood."""
HOPELESS_FAILURES = 200
"""So many failures without one success end a window early."""
MOST_FAILURE_TEXTS = 100
MESSAGE_CHARACTERS = 200

Message = Callable[[int, int], tuple[bytes, bytes]]
"""From sample and slot to (head, body) of the request."""


@dataclass(frozen=True)
class Plan:
    """What one process does in one window. ``window_start_ns`` to ``window_end_ns`` is the window; the load begins at
    ``begin_ns`` before it, and answers still out at its end are awaited until ``drain_end_ns``.

    A closed loop keeps its level until the requests that were out at the window's end are answered: with fewer and
    fewer beside them they would be served faster than those before, the more so the more of them run at a time. It has
    ``slots``; an open one has ``intended_ns`` and ``samples`` of equal length.
    """

    begin_ns: int
    window_start_ns: int
    window_end_ns: int
    drain_end_ns: int
    slots: int = 0
    order: Sequence[int] = ()
    """Closed loop: sample indices, cycled."""
    intended_ns: Sequence[int] = ()
    samples: Sequence[int] = ()
    keep_responses: int = 0
    seed: int = 0

    @property
    def open_loop(self) -> bool:
        return self.slots == 0


@dataclass
class Report:
    """One row a request, in order of sending; columns of equal length."""

    intended: array[int] = field(default_factory=lambda: array("q"))
    sent: array[int] = field(default_factory=lambda: array("q"))
    done: array[int] = field(default_factory=lambda: array("q"))
    sample: array[int] = field(default_factory=lambda: array("i"))
    outcome: array[int] = field(default_factory=lambda: array("h"))
    """0: answered. n: ``failures[n - 1]``."""
    failures: list[str] = field(default_factory=list)
    responses: list[tuple[int, bytes]] = field(default_factory=list)
    """(sample, message) of randomly chosen requests."""
    unsent: int = 0
    """Open loop: requests that were due and never left."""
    cpu_ns: int = 0
    """CPU time of this process between the window's start and end."""
    aborted: str = ""
    """``code: text`` when the window ended early."""


class WindowRun:
    """Runs one plan over ``pool``; make one per window."""

    def __init__(self, pool: Pool, message: Message, plan: Plan, answer: Callable[[bytes, int], bytes] | None) -> None:
        self._pool = pool
        self._message = message
        self._answer = answer
        self._plan = plan
        self._report = Report()
        self._random = random.Random(plan.seed)
        self._codes: dict[str, int] = {}
        self._kept_at: dict[int, int] = {}
        self._responses: dict[int, tuple[int, int, bytes]] = {}
        self._slots = array("i")
        self._free_slots: deque[int] = deque()
        self._successes = 0
        self._failed = 0
        self._next_due = 0
        self._next_order = 0
        self._retries: deque[tuple[int, int]] = deque()
        self._cpu: list[int] = []
        self._crossing: set[int] | None = None
        """Requests out at the window's end that have no answer yet; ``None`` before it."""
        # A quarter of the wait: what is sent after the window shall be answered within the wait as well.
        self._level_until = plan.window_end_ns + (plan.drain_end_ns - plan.window_end_ns) // 4

    def run(self) -> Report:
        plan, report = self._plan, self._report
        gc.collect()
        gc.disable()
        try:
            if not plan.open_loop or len(plan.intended_ns):
                self._pool.ready(plan.slots or 4 * self._pool.streams)
                delay_s = (plan.begin_ns - time.monotonic_ns()) / 1e9
                if delay_s > 0:
                    time.sleep(delay_s)
                self._retries.extend((0, slot) for slot in range(plan.slots))
                self._loop()
        except ConnectionLost as lost:
            report.aborted = f"server_gone: {lost}"
        finally:
            gc.enable()
        self._give_up_pending()
        report.responses = [(sample, body) for _, sample, body in self._responses.values()]
        if len(self._cpu) == 2:
            report.cpu_ns = self._cpu[1] - self._cpu[0]
        report.unsent = len(plan.intended_ns) - self._next_due if plan.open_loop else 0
        return report

    def _loop(self) -> None:
        plan = self._plan
        edges = deque((plan.window_start_ns, plan.window_end_ns))
        while True:
            now = time.monotonic_ns()
            while edges and now >= edges[0]:
                edges.popleft()
                self._cpu.append(time.process_time_ns())
                if not edges:
                    self._crossing = {token for connection in self._pool.connections for token in connection.tokens()}
            wake = self._send_due(now)
            if now >= plan.drain_end_ns or (not edges and self._nothing_left()):
                return
            if edges:
                wake = min(wake, edges[0])
            timeout_s = max(0.0, (min(wake, plan.drain_end_ns) - time.monotonic_ns()) / 1e9)
            for connection in self._pool.wait(timeout_s, precise=plan.open_loop):
                self._read(connection)
                if self._failed >= HOPELESS_FAILURES and not self._successes:
                    self._report.aborted = f"nothing_succeeds: {self._failed} requests, all failed"
                    return

    def _nothing_left(self) -> bool:
        sending = self._plan.open_loop and self._next_due < len(self._plan.intended_ns)
        return not sending and not any(connection.in_flight for connection in self._pool.connections)

    def _send_due(self, now: int) -> int:
        """Sends what is due by the clock; returns when the next request is."""
        plan = self._plan
        touched: set[Connection] = set()
        wake = plan.drain_end_ns
        if plan.open_loop:
            while self._next_due < len(plan.intended_ns):
                intended = plan.intended_ns[self._next_due]
                if intended > now:
                    wake = intended
                    break
                connection = self._pool.roomiest()
                if connection is None:
                    # It stays due; how late it leaves is on record when it does.
                    break
                slot = self._free_slots.popleft() if self._free_slots else len(self._slots)
                self._send(connection, slot, plan.samples[self._next_due], intended)
                touched.add(connection)
                self._next_due += 1
                now = time.monotonic_ns()
        elif self._keeps_level(now):
            while self._retries and self._retries[0][0] <= now:
                _, slot = self._retries.popleft()
                connection = self._pool.roomiest()
                if connection is None:
                    self._retries.append((now + RETRY_PAUSE_NS, slot))
                else:
                    self._send(connection, slot, self._next_sample())
                    touched.add(connection)
            if self._retries:
                wake = self._retries[0][0]
        for connection in touched:
            self._flush(connection)
        return wake

    def _keeps_level(self, now: int) -> bool:
        return (self._crossing is None or bool(self._crossing)) and now < self._level_until

    def _next_sample(self) -> int:
        sample = self._plan.order[self._next_order]
        self._next_order = (self._next_order + 1) % len(self._plan.order)
        return sample

    def _send(self, connection: Connection, slot: int, sample: int, intended: int = 0) -> None:
        report = self._report
        token = len(report.sent)
        keep = False
        if self._plan.keep_responses:
            # Algorithm R (Vitter 1985): every request has the same chance, and memory stays bounded.
            place = token if token < self._plan.keep_responses else self._random.randrange(token + 1)
            if place < self._plan.keep_responses:
                keep = True
                self._kept_at[token] = place
        head, body = self._message(sample, slot)
        now = time.monotonic_ns()
        report.intended.append(intended or now)
        report.sent.append(now)
        report.done.append(0)
        report.sample.append(sample)
        report.outcome.append(PENDING)
        self._slots.append(slot)
        connection.queue(token, head, body, keep)

    def _flush(self, connection: Connection) -> None:
        try:
            self._pool.flush(connection)
        except ConnectionLost as lost:
            self._on_lost(connection, lost)

    def _read(self, connection: Connection) -> None:
        if connection not in self._pool.connections:
            return
        try:
            completions = connection.receive()
        except ConnectionLost as lost:
            self._on_completions(None, completions_of(lost))
            self._on_lost(connection, lost)
            return
        self._on_completions(connection, completions)
        self._flush(connection)

    def _on_completions(self, connection: Connection | None, completions: Sequence[Completion]) -> None:
        now = time.monotonic_ns()
        report, plan = self._report, self._plan
        for token, failure, body in completions:
            report.done[token] = now
            if self._crossing:
                self._crossing.discard(token)
            slot = self._slots[token]
            if failure is None:
                report.outcome[token] = 0
                self._successes += 1
                if body is not None:
                    self._keep(token, slot, body)
            else:
                self._fail(token, failure)
            if plan.open_loop:
                self._free_slots.append(slot)
            elif failure is not None or connection is None or connection.capacity <= 0:
                self._retries.append((now + RETRY_PAUSE_NS, slot))
            elif self._keeps_level(now):
                self._send(connection, slot, self._next_sample())

    def _keep(self, token: int, slot: int, body: bytes) -> None:
        place = self._kept_at.pop(token)
        # A slow early answer must not displace the answer of a later request that won the same place.
        if place not in self._responses or self._responses[place][0] < token:
            if self._answer is not None:
                body = self._answer(body, slot)
            self._responses[place] = (token, self._report.sample[token], body)

    def _fail(self, token: int, failure: str) -> None:
        self._failed += 1
        text = failure[:MESSAGE_CHARACTERS]
        if text not in self._codes:
            if len(self._codes) >= MOST_FAILURE_TEXTS:
                text = text.partition(":")[0] + ": (other messages)"
            if text not in self._codes:
                self._report.failures.append(text)
                self._codes[text] = len(self._report.failures)
        self._report.outcome[token] = self._codes[text]

    def _on_lost(self, connection: Connection, lost: ConnectionLost) -> None:
        self._on_completions(None, [Completion(token, f"UNAVAILABLE: {lost}", None) for token in connection.tokens()])
        self._pool.replace(connection)

    def _give_up_pending(self) -> None:
        """Fails what has no answer. Their connections go too: a late answer must not meet the next window's tokens."""
        waited_s = (self._plan.drain_end_ns - self._plan.window_end_ns) / 1e9
        text = f"DEADLINE_EXCEEDED: no answer within {waited_s:g} s after the window"
        if self._report.aborted:
            text = f"ABORTED: the window ended early ({self._report.aborted})"
        now = time.monotonic_ns()
        for connection in list(self._pool.connections):
            if connection.in_flight or connection.wants_write or connection.capacity <= 0:
                self._pool.drop(connection)
        for token, outcome in enumerate(self._report.outcome):
            if outcome == PENDING:
                self._report.done[token] = now
                self._fail(token, text)
