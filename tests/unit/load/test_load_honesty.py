from __future__ import annotations

from dataclasses import replace

import pytest

from optimizer.load.estimators import Summary
from optimizer.load.honesty import FATAL, Observation, check, check_client_scaling, code_of
from optimizer.records.measurement import Measurement, Resources, ServerDelta, Workload

SUMMARY = Summary(
    requests=2000,
    inferences=2000,
    throughput=1000.0,
    latency_mean_us=8000.0,
    percentiles_us={"p50": 8000.0, "p99": 9000.0},
    failures={},
    spread=0.02,
    late_fraction=0.0,
    latencies=2000,
    in_flight=8.0,
)
SERVER = ServerDelta(2000, 2000, 0, 2000 * 5000.0, 2000 * 100.0, 2000 * 2000.0, 2000 * 100.0)
GOOD = Observation(SUMMARY, Resources(client_cpu=0.3, pending_mean=4.0), SERVER, 2.0, 8)


def test_a_good_window_has_no_warnings() -> None:
    assert check(GOOD) == ((), True)


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        (replace(GOOD, aborted="server_gone: connection refused"), "server_gone"),
        (replace(GOOD, aborted="nothing_succeeds: 200 requests"), "nothing_succeeds"),
        (replace(GOOD, summary=replace(SUMMARY, requests=0, latency_mean_us=None)), "no_answers"),
        (replace(GOOD, concurrency=None, summary=replace(SUMMARY, late_fraction=0.011)), "late_sends"),
        (replace(GOOD, resources=Resources(client_cpu=0.81)), "client_busy"),
        (replace(GOOD, summary=replace(SUMMARY, in_flight=7.5)), "idle_slots"),
    ],
)
def test_a_window_that_must_not_be_used(seen: Observation, code: str) -> None:
    warnings, usable = check(seen)
    assert code in [code_of(warning) for warning in warnings]
    assert code in FATAL
    assert not usable


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        (replace(GOOD, summary=replace(SUMMARY, failures={"INTERNAL: x": 3})), "failures"),
        (replace(GOOD, summary=replace(SUMMARY, spread=0.11)), "unstable"),
        (replace(GOOD, resources=Resources(gpu_throttled=True)), "gpu_throttled"),
        (replace(GOOD, concurrency=None, cut=3), "trace_cut"),
        (replace(GOOD, summary=replace(SUMMARY, percentiles_us={"p50": 1.0}, latencies=999)), "no_p99"),
        (
            replace(
                GOOD,
                resources=Resources(pending_mean=0.1),
                server=ServerDelta(2000, 2000, 0, 0.0, 0.0, 2000 * 1000.0, 0.0),
            ),
            "latency_outside_server",
        ),
    ],
)
def test_a_window_that_needs_care(seen: Observation, code: str) -> None:
    warnings, usable = check(seen)
    assert [code_of(warning) for warning in warnings] == [code]
    assert usable


def test_the_thresholds_themselves_pass() -> None:
    edge = replace(
        GOOD,
        summary=replace(SUMMARY, late_fraction=0.01, spread=0.10, in_flight=7.6),
        resources=Resources(client_cpu=0.80),
    )
    assert check(edge) == ((), True)


def test_what_is_unknown_is_not_judged() -> None:
    assert check(replace(GOOD, resources=Resources(), server=None)) == ((), True)


def test_twice_the_processes() -> None:
    one = Measurement("c", Workload(), 0.0, 2.0, 2000, 2000, {}, 1000.0, 8000.0, {})
    assert check_client_scaling(one, replace(one, throughput=1019.0)) is one
    limited = check_client_scaling(one, replace(one, throughput=1030.0))
    assert not limited.usable
    assert limited.warnings == ("client_limited: twice the load processes change the throughput by +3.0%",)
