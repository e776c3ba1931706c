"""Closed loop over concurrencies: a list, or doubling until more brings nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from optimizer.load.honesty import NEAR_ZERO_PENDING
from optimizer.records.measurement import Measurement, Workload

MINIMUM_GAIN = 0.05
MOST_CONCURRENCY = 1024

Measure = Callable[[Workload], Measurement]


@dataclass(frozen=True)
class Sweep:
    """``points`` in the order measured; ``stopped`` says why there are no more; ``warnings`` are ``code: text``."""

    points: tuple[Measurement, ...]
    stopped: str
    warnings: tuple[str, ...] = ()

    @property
    def saturation(self) -> Measurement | None:
        """The usable point with the lowest concurrency within 5% of the best throughput."""
        usable = [point for point in self.points if point.usable]
        best = max((point.throughput for point in usable), default=0.0)
        enough = [point for point in usable if point.throughput >= best * (1 - MINIMUM_GAIN)]
        return min(enough, key=lambda point: point.workload.concurrency, default=None)


def sweep(measure: Measure, workload: Workload, concurrencies: Sequence[int]) -> Sweep:
    """Every concurrency of the list, whatever it brings. ``measure`` runs one window, for instance
    ``lambda load: generator.run(model, load, candidate_id=…).measurement``."""
    points: list[Measurement] = []
    for concurrency in concurrencies:
        points.append(measure(replace(workload, concurrency=concurrency)))
        if _server_gone(points[-1]):
            return _finished(points, f"the server is gone at concurrency {concurrency}")
    return _finished(points, "end of the list")


def sweep_doubling(
    measure: Measure, workload: Workload, *, start: int = 1, most: int = MOST_CONCURRENCY, gain: float = MINIMUM_GAIN
) -> Sweep:
    """1, 2, 4 … until a doubling raises the throughput by less than ``gain`` twice in a row: batching can stall one
    step and gain in the next. Ends at once where a window is not usable."""
    points: list[Measurement] = []
    concurrency, flat = start, 0
    while concurrency <= most:
        point = measure(replace(workload, concurrency=concurrency))
        points.append(point)
        if not point.usable:
            reason = point.warnings[0] if point.warnings else "unknown"
            return _finished(points, f"the window at concurrency {concurrency} cannot be used ({reason})")
        best_before = max((each.throughput for each in points[:-1]), default=0.0)
        flat = flat + 1 if point.throughput < best_before * (1 + gain) else 0
        if flat == 2:
            return _finished(points, f"two doublings gained less than {gain:.0%} each")
        concurrency *= 2
    return _finished(points, f"reached the limit of {most}")


def rises_without_queue(earlier: Measurement, later: Measurement) -> bool:
    """Latency grows with concurrency, throughput does not, and yet nothing waits in the server: then the requests
    wait in the client, in the transport or in the server's front end."""
    pending = later.resources.pending_mean
    if pending is None or pending >= NEAR_ZERO_PENDING or not earlier.latency_mean_us or not later.latency_mean_us:
        return False
    return later.latency_mean_us > 1.5 * earlier.latency_mean_us and later.throughput < 1.1 * earlier.throughput


def _finished(points: Sequence[Measurement], stopped: str) -> Sweep:
    warnings = [
        f"rises_without_queue: from concurrency {earlier.workload.concurrency} to {later.workload.concurrency} the "
        "latency rises although nothing waits in the server's queue"
        for earlier, later in itertools.pairwise(points)
        if rises_without_queue(earlier, later)
    ]
    return Sweep(tuple(points), stopped, tuple(warnings))


def _server_gone(point: Measurement) -> bool:
    return any(warning.startswith("server_gone") for warning in point.warnings)
