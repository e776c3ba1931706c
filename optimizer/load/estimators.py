"""From a request log to numbers: throughput, latency, percentiles, stability. Pure.

Estimators. The load runs before the window begins and until it ends, so the window sees a service in full flow.

- *Throughput*: batch rows of the requests whose answer arrived inside the window, over its length. Requests that are
  still out at its end count for nothing here; as many were out at its beginning, so nothing is lost on average.
- *Latency, closed loop*: answers that arrived inside the window, from sending to answer. A slot's next request is sent
  when the last one is answered, so the intended time is the time of sending.
- *Latency, open loop*: requests that were **due** inside the window, however late they were answered, from the time
  they were due. Taking those that were answered inside the window instead would leave out just the slow ones
  (coordinated omission, Tene 2013). Those that never got an answer are failures, and as such on record.
- *Failures*: every request that failed since the load began. A failure is never dropped for having been early or late.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from optimizer.load.request_log import Column, RequestLog

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
SAMPLES_BEYOND = 10
"""A percentile is given only where so many samples are expected beyond it: p50 from 20 on, p90 100, p99 1,000,
p99.9 10,000. The number of samples beyond the true quantile is binomial (David and Nagaraja, Order Statistics, 3rd
ed., 7.1), so with 10 expected the probability that the estimate cuts off is known within about 1/sqrt(10) = 32% of
itself."""
SUB_WINDOWS = 3
STABLE_WITHIN = 0.10
"""As perf_analyzer: the last three windows within 10% of their mean, in throughput and in latency."""


@dataclass(frozen=True)
class Summary:
    requests: int
    inferences: int
    throughput: float
    latency_mean_us: float | None
    percentiles_us: Mapping[str, float]
    failures: Mapping[str, int]
    spread: float | None
    """Largest relative deviation over the last three sub-windows; ``None``: too few answers to tell."""
    late_fraction: float
    """Of the requests due in the window, those that left more than 1 ms late."""
    latencies: int
    """Number of samples behind the latency figures."""
    in_flight: float
    """Requests between send and answer, averaged over the window. Counted from every request's own times: throughput
    x mean latency estimates the same (Little's law), but in a window of a few dozen answers only roughly."""


def summarize(log: RequestLog, rows: Column, *, open_loop: bool, unsent: int = 0) -> Summary:
    """``rows`` is the batch size by sample index."""
    answered = log.ok & (log.done_ns >= 0) & (log.done_ns < log.duration_ns)
    requests = int(answered.sum())
    inferences = int(rows[log.sample[answered]].sum()) if requests else 0
    due = (log.intended_ns >= 0) & (log.intended_ns < log.duration_ns)
    latency_us = answered_latencies_us(log, open_loop=open_loop)
    late = (log.sent_ns[due] - log.intended_ns[due]) > 1_000_000
    return Summary(
        requests=requests,
        inferences=inferences,
        throughput=inferences / (log.duration_ns / 1e9),
        latency_mean_us=float(latency_us.mean()) if len(latency_us) else None,
        percentiles_us=supported_percentiles(latency_us),
        failures=count_failures(log, unsent),
        spread=spread(log, rows, answered),
        late_fraction=(float(late.sum()) + unsent) / (len(late) + unsent) if open_loop and len(late) + unsent else 0.0,
        latencies=len(latency_us),
        in_flight=mean_in_flight(log),
    )


def mean_in_flight(log: RequestLog) -> float:
    """Every request's time between send and end inside the window, over the window's length."""
    inside = np.minimum(log.done_ns, log.duration_ns) - np.maximum(log.sent_ns, 0)
    return float(np.maximum(inside, 0).sum()) / log.duration_ns


def answered_latencies_us(log: RequestLog, *, open_loop: bool) -> Column:
    """Latencies (µs, from the intended send) of the answers that count in a window's percentiles: in a closed loop
    those that came inside the window, in an open loop those that were due in it."""
    moment = log.intended_ns if open_loop else log.done_ns
    timed = log.ok & (moment >= 0) & (moment < log.duration_ns)
    return np.asarray((log.done_ns[timed] - log.intended_ns[timed]) / 1e3)


def supported_percentiles(values: Column) -> dict[str, float]:
    """Nearest-rank percentiles (the smallest value with at least q of the samples at or below it), where supported."""
    ordered = np.sort(values)
    return {
        f"p{percentile:g}": float(ordered[math.ceil(len(ordered) * percentile / 100) - 1])
        for percentile in PERCENTILES
        if len(ordered) >= samples_needed(percentile)
    }


def samples_needed(percentile: float) -> int:
    return math.ceil(round(SAMPLES_BEYOND / (1 - percentile / 100), 6))


def count_failures(log: RequestLog, unsent: int = 0) -> dict[str, int]:
    counts = np.bincount(log.outcome, minlength=len(log.outcomes)) if len(log) else np.zeros(1, np.int64)
    failures = {log.outcomes[code]: int(count) for code, count in enumerate(counts) if code and count}
    if unsent:
        failures["UNSENT: was due and never left"] = unsent
    return failures


def spread(log: RequestLog, rows: Column, answered: Column) -> float | None:
    """Over the last three of ``SUB_WINDOWS`` parts of the window: max |x / mean − 1| of throughput and mean latency."""
    if answered.sum() < 10 * SUB_WINDOWS:
        return None
    edges = np.linspace(0, log.duration_ns, SUB_WINDOWS + 1)
    part = np.searchsorted(edges, log.done_ns[answered], side="right") - 1
    weights = rows[log.sample[answered]]
    latency = (log.done_ns[answered] - log.intended_ns[answered]).astype(float)
    throughput = np.bincount(part, weights=weights, minlength=SUB_WINDOWS)
    counts = np.bincount(part, minlength=SUB_WINDOWS)
    means = np.bincount(part, weights=latency, minlength=SUB_WINDOWS) / np.maximum(counts, 1)
    if not counts.all():
        return math.inf
    return max(float(np.abs(values / values.mean() - 1).max()) for values in (throughput, means))
