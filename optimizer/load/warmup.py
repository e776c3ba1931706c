"""How long a model needs before it is measured: found once per model, then frozen for all its windows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from optimizer.load.estimators import STABLE_WITHIN
from optimizer.load.generator import LoadGenerator
from optimizer.load.request_log import Column, RequestLog
from optimizer.records.measurement import Workload

PART_S = 0.25
LONGEST_RAMP_S = 5.0
SHORTEST_RAMP_S = 0.1
RAMP_LATENCIES = 3
"""After so many mean latencies every slot has been through the queue several times, and the flow is steady."""
STEADY_PARTS = 3


@dataclass(frozen=True)
class Warmup:
    """``first_s`` is what the model took to become steady after loading, and has been spent when this is returned.
    ``ramp_s`` is what every window needs before it: give it to :meth:`LoadGenerator.run` as ``warmup_s``."""

    first_s: float
    ramp_s: float
    steady: bool
    """``False``: not steady within the limit; ``first_s`` is the limit then."""


def find_warmup(
    generator: LoadGenerator, model: str, workload: Workload, *, candidate_id: str, limit_s: float = 10.0
) -> Warmup:
    """Loads the freshly loaded model until ``STEADY_PARTS`` parts of the time in a row are within 10% of their mean
    (in answers and in latency), for at most ``limit_s``. A failing server gives ``steady=False`` at once."""
    length_s = min(8 * PART_S, limit_s)
    spent_s = 0.0
    while True:
        length_s = min(length_s, limit_s - spent_s)
        window = generator.run(
            model, replace(workload, duration_s=length_s), candidate_id=f"{candidate_id}-warmup", warmup_s=0.0
        )
        log = window.records()
        latency_s = float(mean_latency_ns(log)) / 1e9
        ramp_s = min(LONGEST_RAMP_S, max(SHORTEST_RAMP_S, RAMP_LATENCIES * latency_s))
        found_s = None if window.aborted else steady_from_s(log, max(PART_S, RAMP_LATENCIES * latency_s))
        if found_s is not None:
            return Warmup(spent_s + found_s, ramp_s, True)
        spent_s += length_s
        if window.aborted or spent_s >= limit_s:
            return Warmup(spent_s, ramp_s, False)
        length_s *= 2


def steady_from_s(log: RequestLog, part_s: float) -> float | None:
    """The beginning of the first ``STEADY_PARTS`` consecutive parts that agree; ``None``: there are none."""
    parts = int(log.duration_ns / 1e9 / part_s)
    if parts < STEADY_PARTS:
        return None
    done = log.ok & (log.done_ns >= 0) & (log.done_ns < parts * part_s * 1e9)
    number = (log.done_ns[done] / (part_s * 1e9)).astype(np.int64)
    counts = np.bincount(number, minlength=parts).astype(float)
    latencies = np.bincount(number, weights=log.done_ns[done] - log.intended_ns[done], minlength=parts)
    means = latencies / np.maximum(counts, 1)
    for start in range(parts - STEADY_PARTS + 1):
        chosen = slice(start, start + STEADY_PARTS)
        if counts[chosen].all() and _agree(counts[chosen]) and _agree(means[chosen]):
            return start * part_s
    return None


def _agree(values: Column) -> bool:
    # Few answers a part differ by their granularity alone: two standard deviations of a Poisson count are allowed.
    allowed = max(STABLE_WITHIN, 2 / math.sqrt(values.mean()) if values.mean() < 400 else 0.0)
    return bool(np.abs(values / values.mean() - 1).max() <= allowed)


def mean_latency_ns(log: RequestLog) -> float:
    return float((log.done_ns - log.intended_ns)[log.ok].mean()) if log.ok.any() else 0.0
