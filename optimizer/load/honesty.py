"""Whether a window may be believed. Pure.

Every warning is ``code: text``; codes are stable. A window with one of ``FATAL`` is not used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from optimizer.load.estimators import STABLE_WITHIN, Summary, samples_needed
from optimizer.records.measurement import Measurement, Resources, ServerDelta

FATAL = frozenset(
    {"server_gone", "nothing_succeeds", "no_answers", "late_sends", "client_busy", "idle_slots", "client_limited"}
)
LATE_FRACTION = 0.01
BUSY_FRACTION = 0.80
OCCUPANCY = 0.95
"""Part of the closed loop's slots that must be in flight on average: less means that slots stood idle in the client."""
OUTSIDE_FRACTION = 0.5
NEAR_ZERO_PENDING = 0.5
CLIENT_SCALING = 0.02


@dataclass(frozen=True)
class Observation:
    """One window as its checks see it. ``None`` is unknown, and then the check is not made."""

    summary: Summary
    resources: Resources
    server: ServerDelta | None
    duration_s: float
    concurrency: int | None
    """``None`` for an open loop."""
    aborted: str = ""
    cut: int = 0
    """Requests of a trace that are due after the window."""


def check(seen: Observation) -> tuple[tuple[str, ...], bool]:
    """The warnings, and whether the window may be used."""
    summary, resources = seen.summary, seen.resources
    warnings: list[str] = []
    if seen.aborted:
        warnings.append(seen.aborted)
    elif not summary.requests:
        warnings.append(
            f"no_answers: no request was answered inside the window of {seen.duration_s:g} s; use a longer window"
        )
    if seen.cut:
        warnings.append(
            f"trace_cut: {seen.cut} requests of the trace are due after the window of {seen.duration_s:g} s and were "
            "not sent; use a longer window"
        )
    if summary.late_fraction > LATE_FRACTION:
        warnings.append(
            f"late_sends: {summary.late_fraction:.1%} of the requests left more than 1 ms late; "
            "use more load processes or a lower rate"
        )
    if resources.client_cpu is not None and resources.client_cpu > BUSY_FRACTION:
        warnings.append(
            f"client_busy: a load process used {resources.client_cpu:.0%} of a core; use more load processes"
        )
    if seen.concurrency and summary.requests and not seen.aborted:
        occupied = summary.in_flight
        if occupied < OCCUPANCY * seen.concurrency:
            warnings.append(
                f"idle_slots: {occupied:.2f} of {seen.concurrency} requests were in flight on average; "
                "the client, or pauses after failures, left slots idle"
            )
    outside = latency_outside_server(seen)
    if outside is not None:
        warnings.append(
            f"latency_outside_server: {outside:.0%} of the latency is neither queue nor compute; "
            "transport, the server's front end or the client limit this load"
        )
    failed = sum(summary.failures.values())
    if failed and not seen.aborted:
        worst = max(summary.failures, key=lambda reason: summary.failures[reason])
        warnings.append(f"failures: {failed} requests failed, most with {worst}")
    if summary.spread is not None and summary.spread > STABLE_WITHIN:
        warnings.append(
            f"unstable: thirds of the window differ by {summary.spread:.0%} from their mean; "
            "use a longer window or a quieter machine"
        )
    if resources.gpu_throttled:
        warnings.append("gpu_throttled: the GPU lowered its clocks for power or heat during the window")
    if summary.requests and "p99" not in summary.percentiles_us:
        warnings.append(
            f"no_p99: {summary.latencies} answers do not support a p99, which needs {samples_needed(99)}; "
            "use a longer window"
        )
    return tuple(warnings), not any(code_of(warning) in FATAL for warning in warnings)


def code_of(warning: str) -> str:
    return warning.partition(":")[0]


def latency_outside_server(seen: Observation) -> float | None:
    """The fraction of the mean latency that the server's statistics do not explain, where it is most of it although
    more than one request is in flight and none waits in the server's queue; otherwise ``None``."""
    summary, server, pending = seen.summary, seen.server, seen.resources.pending_mean
    if server is None or pending is None or not summary.requests or not summary.latency_mean_us:
        return None
    if not seen.concurrency or seen.concurrency < 2 or pending >= NEAR_ZERO_PENDING:
        return None
    inside_us = server.queue_us + server.compute_input_us + server.compute_infer_us + server.compute_output_us
    outside = 1 - inside_us / summary.requests / summary.latency_mean_us
    return outside if outside > OUTSIDE_FRACTION else None


def check_client_scaling(measurement: Measurement, with_twice_the_processes: Measurement) -> Measurement:
    """``measurement``, marked as limited by the client where twice the load processes change its throughput by more
    than 2%. The two windows must be of the same load; compare where the noise is below that."""
    if not measurement.throughput:
        return measurement
    change = with_twice_the_processes.throughput / measurement.throughput - 1
    if abs(change) <= CLIENT_SCALING:
        return measurement
    warning = f"client_limited: twice the load processes change the throughput by {change:+.1%}"
    return replace(measurement, warnings=(*measurement.warnings, warning), usable=False)
