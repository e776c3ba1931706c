"""Sweep, peak and warm-up, on services whose behaviour is a formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from optimizer.errors import InputError
from optimizer.load.peak import find_peak
from optimizer.load.request_log import RequestLog
from optimizer.load.sweep import sweep, sweep_doubling
from optimizer.load.warmup import mean_latency_ns, steady_from_s
from optimizer.records.measurement import Measurement, Resources, Workload

SERVICE_S = 0.01


def answer(workload: Workload, throughput: float, latency_us: float, **more: object) -> Measurement:
    requests = round(throughput * workload.duration_s)
    percentiles = {"p99": latency_us} if requests >= 1000 else {}
    found = Measurement(
        "c", workload, 0.0, workload.duration_s, requests, requests, {}, throughput, latency_us, percentiles
    )
    return replace(found, **more)  # type: ignore[arg-type]


def saturating(workload: Workload) -> Measurement:
    """Four servers of 10 ms: throughput grows up to concurrency 4."""
    throughput = min(workload.concurrency, 4) / SERVICE_S
    return answer(workload, throughput, workload.concurrency / throughput * 1e6)


def test_doubling_stops_when_the_gain_is_gone() -> None:
    result = sweep_doubling(saturating, Workload())
    assert [point.workload.concurrency for point in result.points] == [1, 2, 4, 8, 16]
    assert result.stopped == "two doublings gained less than 5% each"
    assert result.saturation is not None
    assert result.saturation.workload.concurrency == 4


def test_doubling_goes_on_past_one_flat_step() -> None:
    steps = {1: 100.0, 2: 101.0, 4: 180.0, 8: 181.0, 16: 181.0}
    result = sweep_doubling(lambda load: answer(load, steps[load.concurrency], 1.0), Workload())
    assert [point.workload.concurrency for point in result.points] == [1, 2, 4, 8, 16]


def test_doubling_stops_at_its_limit_and_at_an_unusable_window() -> None:
    assert sweep_doubling(saturating, Workload(), most=2).stopped == "reached the limit of 2"

    def busy_client(workload: Workload) -> Measurement:
        usable = workload.concurrency < 2
        warnings = () if usable else ("client_busy: too much",)
        return replace(saturating(workload), usable=usable, warnings=warnings)

    result = sweep_doubling(busy_client, Workload())
    assert len(result.points) == 2
    assert "client_busy" in result.stopped
    assert result.saturation is result.points[0]


def test_a_list_is_measured_as_given() -> None:
    result = sweep(saturating, Workload(), [4, 1, 64])
    assert [point.workload.concurrency for point in result.points] == [4, 1, 64]
    gone = sweep(lambda load: answer(load, 0.0, 1.0, warnings=("server_gone: x",)), Workload(), [1, 2])
    assert (len(gone.points), gone.stopped) == (1, "the server is gone at concurrency 1")


def test_latency_that_rises_without_a_queue_is_said() -> None:
    def front_end_bound(workload: Workload) -> Measurement:
        return answer(workload, 1000.0, workload.concurrency * 1e3, resources=Resources(pending_mean=0.0))

    result = sweep(front_end_bound, Workload(), [4, 8])
    assert len(result.warnings) == 1
    assert result.warnings[0].startswith("rises_without_queue: from concurrency 4 to 8")
    assert sweep(saturating, Workload(), [4, 8]).warnings == (), "the queue is unknown here"


def queue(capacity: float) -> Callable[[Workload], Measurement]:
    """An M/M/1 queue: its response time is exponential with rate (capacity - arrivals), so p99 = ln(100) / that."""

    def measure(workload: Workload) -> Measurement:
        rate = workload.rate_per_s
        assert rate is not None
        if rate >= capacity:
            return answer(workload, capacity, 60e6)
        return answer(workload, rate, math.log(100) / (capacity - rate) * 1e6)

    return measure


@pytest.mark.parametrize("start", [1.0, 90.0, 700.0, 3000.0])
def test_peak_of_a_queue(start: float) -> None:
    """p99 <= 100 ms on 1,000/s: the rate must stay below 1000 - ln(100) / 0.1 = 953.9/s."""
    peak = find_peak(queue(1000.0), Workload(), bound_us=100_000, start_rate=start, longest_s=3000)
    assert peak.rate_per_s is not None
    assert 953.9 / 1.05 <= peak.rate_per_s <= 953.95
    assert peak.limited_by in ("latency", "load")
    passed = [probe.rate_per_s for probe in peak.probes if probe.passed]
    failed = [probe.rate_per_s for probe in peak.probes if not probe.passed]
    assert max(passed) <= min(failed)
    assert passed.count(peak.rate_per_s) == 2, "confirmed with other arrivals"
    assert len({probe.measurement.workload.seed for probe in peak.probes}) == 2


def test_windows_are_as_long_as_the_percentile_needs() -> None:
    peak = find_peak(queue(1000.0), Workload(), bound_us=100_000, start_rate=10)
    for probe in peak.probes:
        assert probe.measurement.workload.duration_s == max(2.0, min(120.0, 1300 / probe.rate_per_s))


def test_peak_that_cannot_be_found() -> None:
    never = find_peak(queue(1000.0), Workload(), bound_us=100, start_rate=64.0)
    assert never.rate_per_s is None
    assert never.limited_by == "latency"
    slow = find_peak(queue(5.0), Workload(), bound_us=1e7, start_rate=4.0, longest_s=10)
    assert slow.rate_per_s is None
    assert slow.limited_by == "unsupported"
    with pytest.raises(InputError, match="cannot be met"):
        find_peak(queue(1.0), Workload(), bound_us=0)


def test_peak_beyond_the_range_or_the_client() -> None:
    ranged = find_peak(queue(1e9), Workload(), bound_us=1e6, start_rate=100, highest_rate=1000)
    assert (ranged.rate_per_s, ranged.limited_by) == (800, "range")

    def weak_client(workload: Workload) -> Measurement:
        found = queue(1e9)(workload)
        if (workload.rate_per_s or 0) > 300:
            return replace(found, usable=False, warnings=("late_sends: 5% late",))
        return found

    limited = find_peak(weak_client, Workload(), bound_us=1e6, start_rate=100)
    assert (limited.rate_per_s, limited.limited_by) == (200, "client")
    gone = find_peak(
        lambda load: answer(load, 0, 1, usable=False, warnings=("server_gone: x",)), Workload(), bound_us=1
    )
    assert (gone.rate_per_s, gone.limited_by) == (None, "server")


def test_failures_are_not_sustained() -> None:
    peak = find_peak(
        lambda load: answer(load, load.rate_per_s or 0, 1.0, failures={"INTERNAL: x": 1}),
        Workload(),
        bound_us=1e6,
        longest_s=1e5,
    )
    assert peak.rate_per_s is None
    assert peak.limited_by == "failures"


def log_of_latencies(latency_ms_at: Callable[[float], float], *, length_s: float) -> RequestLog:
    """One slot, closed loop."""
    sent, done, now = [], [], 0.0
    while now < length_s * 1e3:
        sent.append(now)
        now += latency_ms_at(now)
        done.append(now)
    count = len(sent)
    times = [np.round(np.array(column) * 1e6).astype(np.int64) for column in (sent, sent, done)]
    zeros = np.zeros(count, np.int16)
    return RequestLog(*times, zeros, zeros, zeros, ("OK",), round(length_s * 1e9))


def test_warmup_ends_where_the_latency_settles() -> None:
    log = log_of_latencies(lambda now: 4.0 if now < 600 else 1.0, length_s=3)
    assert steady_from_s(log, 0.25) == 0.75
    assert mean_latency_ns(log) == pytest.approx(3e9 / len(log), rel=0.01)
    assert steady_from_s(log_of_latencies(lambda _: 1.0, length_s=3), 0.25) == 0.0
    assert steady_from_s(log_of_latencies(lambda now: 2 ** (now / 400), length_s=3), 0.25) is None
    assert steady_from_s(log_of_latencies(lambda _: 1.0, length_s=0.5), 0.25) is None, "too short to tell"
