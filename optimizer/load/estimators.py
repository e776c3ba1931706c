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
    answered = _answers_at(log, log.done_ns)
    requests = int(answered.sum())
    inferences = int(rows[log.sample[answered]].sum()) if requests else 0
    due = (log.intended_ns >= 0) & (log.intended_ns < log.duration_ns)
    latency_us = answered_latencies_us(log, open_loop=open_loop)
    late = (log.sent_ns[due] - log.intended_ns[due]) > 1_000_000
    return Summary(
        requests=requests,
        inferences=inferences,
        throughput=float(throughputs(log, rows, open_loop=open_loop)[0]),
        latency_mean_us=float(latency_us.mean()) if len(latency_us) else None,
        percentiles_us=supported_percentiles(latency_us),
        failures=count_failures(log, unsent),
        spread=spread(log, rows, answered, open_loop=open_loop),
        late_fraction=(float(late.sum()) + unsent) / (len(late) + unsent) if open_loop and len(late) + unsent else 0.0,
        latencies=len(latency_us),
        in_flight=mean_in_flight(log),
    )


def throughputs(log: RequestLog, rows: Column, parts: int = 1, *, open_loop: bool) -> Column:
    """Throughput (batch rows per second) in each of ``parts`` equal parts of the window, as the module says."""
    seconds = log.duration_ns / parts / 1e9
    if open_loop:
        answered = _answers_at(log, log.done_ns)
        part = _part(log, answered, parts)
        return np.bincount(part, weights=rows[log.sample[answered]], minlength=parts) / seconds
    sent, done = log.sent_ns[log.ok], log.done_ns[log.ok]
    per_ns = rows[log.sample[log.ok]] / np.maximum(done - sent, 1)
    edges = itertools.pairwise(_edges(log, parts))
    return np.array([(per_ns * _between(sent, done, start, end)).sum() for start, end in edges]) / seconds


def mean_in_flight(log: RequestLog) -> float:
    """Every request's time between send and end inside the window, over the window's length."""
    return float(_between(log.sent_ns, log.done_ns, 0, log.duration_ns).sum()) / log.duration_ns


def timed(log: RequestLog, *, open_loop: bool) -> Column:
    """Which requests' latencies count in a window: in a closed loop of the answers that came inside the window, in an
    open loop of those that were due in it."""
    return _answers_at(log, log.intended_ns if open_loop else log.done_ns)


def answered_latencies_us(log: RequestLog, *, open_loop: bool) -> Column:
    """Latencies (µs, from the intended send) of the answers that count in a window's percentiles: see :func:`timed`."""
    counted = timed(log, open_loop=open_loop)
    return np.asarray((log.done_ns[counted] - log.intended_ns[counted]) / 1e3)


def _answers_at(log: RequestLog, moment_ns: Column) -> Column:
    """Which requests were answered and have their ``moment_ns`` inside the window."""
    return np.asarray(log.ok & (moment_ns >= 0) & (moment_ns < log.duration_ns))


def _between(sent_ns: Column, done_ns: Column, start_ns: float, end_ns: float) -> Column:
    """How much of each request's time between send and end lies between ``start_ns`` and ``end_ns``."""
    return np.asarray(np.maximum(np.minimum(done_ns, end_ns) - np.maximum(sent_ns, start_ns), 0))


def _edges(log: RequestLog, parts: int) -> Column:
    return np.linspace(0, log.duration_ns, parts + 1)


def _part(log: RequestLog, answered: Column, parts: int) -> Column:
    """In which of ``parts`` equal parts of the window each answer came."""
    return np.asarray(np.searchsorted(_edges(log, parts), log.done_ns[answered], side="right") - 1)


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
    part = _part(log, answered, SUB_WINDOWS)
    latency = (log.done_ns[answered] - log.intended_ns[answered]).astype(float)
    throughput = throughputs(log, rows, SUB_WINDOWS, open_loop=open_loop)
    counts = np.bincount(part, minlength=SUB_WINDOWS)
    means = np.bincount(part, weights=latency, minlength=SUB_WINDOWS) / np.maximum(counts, 1)
    if not counts.all():
        return math.inf
    return max(float(np.abs(values / values.mean() - 1).max()) for values in (throughput, means))
