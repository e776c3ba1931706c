"""From a request log to numbers: throughput, latency, percentiles, stability. Pure.

Estimators. The load runs before the window begins and beyond its end, so the window sees a service in full flow.

- *Throughput, closed loop*: every answered request counts with the part of its time between send and answer that lies
  inside the window, times its batch rows, over the window's length. In full flow this has the mean that counting the
  answers inside the window has (each request's whole counts once, wherever it falls), without the +-1 answer at the
  window's edges: of 27 answers that is 4%, more than most candidates differ. For that the load goes on until what was
  out at the window's end is answered: else the last would be faster than the others where they share a processor.
- *Throughput, open loop*: batch rows of the requests whose answer arrived inside the window, over its length. A server
  that does not keep up has ever more requests out, and those must not count before they are done.
- *Latency, closed loop*: answers that arrived inside the window, from sending to answer. A slot's next request is sent
  when the last one is answered, so the intended time is the time of sending.
- *Latency, open loop*: requests that were **due** inside the window, however late they were answered, from the time
  they were due. Taking those that were answered inside the window instead would leave out just the slow ones
  (coordinated omission, Tene 2013). Those that never got an answer are failures, and as such on record.
- *Failures*: every request that failed since the load began. A failure is never dropped for having been early or late.
"""

from __future__ import annotations

import itertools
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
    """Batch rows of the ``requests`` that were answered inside the window."""
    throughput: float
    """Batch rows per second."""
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
        throughput=inferences / (log.duration_ns / 1e9) if open_loop else float(credit(log, rows, 1).sum()),
        latency_mean_us=float(latency_us.mean()) if len(latency_us) else None,
        percentiles_us=supported_percentiles(latency_us),
        failures=count_failures(log, unsent),
        spread=spread(log, rows, answered, open_loop=open_loop),
        late_fraction=(float(late.sum()) + unsent) / (len(late) + unsent) if open_loop and len(late) + unsent else 0.0,
        latencies=len(latency_us),
        in_flight=mean_in_flight(log),
    )


def credit(log: RequestLog, rows: Column, parts: int) -> Column:
    """Throughput (batch rows per second) in each of ``parts`` equal parts of the window: an answered request counts in
    each with the share of its time that lies in it."""
    answered = log.ok
    sent, done = log.sent_ns[answered], log.done_ns[answered]
    per_ns = rows[log.sample[answered]] / np.maximum(done - sent, 1)
    edges = np.linspace(0, log.duration_ns, parts + 1)
    inside = [
        np.maximum(np.minimum(done, end) - np.maximum(sent, start), 0) for start, end in itertools.pairwise(edges)
    ]
    return np.array([(per_ns * share).sum() for share in inside]) / (log.duration_ns / parts / 1e9)


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


def spread(log: RequestLog, rows: Column, answered: Column, *, open_loop: bool) -> float | None:
    """Over the last three of ``SUB_WINDOWS`` parts of the window: max |x / mean − 1| of throughput and mean latency."""
    if answered.sum() < 10 * SUB_WINDOWS:
        return None
    edges = np.linspace(0, log.duration_ns, SUB_WINDOWS + 1)
    part = np.searchsorted(edges, log.done_ns[answered], side="right") - 1
    latency = (log.done_ns[answered] - log.intended_ns[answered]).astype(float)
    if open_loop:
        throughput = np.bincount(part, weights=rows[log.sample[answered]], minlength=SUB_WINDOWS)
    else:
        throughput = credit(log, rows, SUB_WINDOWS)
    counts = np.bincount(part, minlength=SUB_WINDOWS)
    means = np.bincount(part, weights=latency, minlength=SUB_WINDOWS) / np.maximum(counts, 1)
    if not counts.all():
        return math.inf
    return max(float(np.abs(values / values.mean() - 1).max()) for values in (throughput, means))
