"""The highest request rate that a model sustains within a latency bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from optimizer.errors import InputError
from optimizer.load.estimators import samples_needed
from optimizer.load.honesty import FATAL, code_of
from optimizer.records.measurement import Arrival, Measurement, Workload

SUSTAINED = 0.95
"""A rate counts as served when so much of it is answered inside the window: an overloaded server falls behind, and its
queue needs longer than a window to show in the p99."""
MARGIN = 1.3
"""Windows are so much longer than the percentile needs, since Poisson arrivals vary."""

Measure = Callable[[Workload], Measurement]


@dataclass(frozen=True)
class Probe:
    """One rate that was tried. ``passed`` says whether it was sustained; ``reason`` why not."""

    rate_per_s: float
    passed: bool
    reason: str
    measurement: Measurement


@dataclass(frozen=True)
class Peak:
    """``rate_per_s`` is the highest rate that passed twice, with different arrivals; ``None``: none did. ``probes`` is
    the evidence, in the order tried. ``limited_by`` is ``latency`` or ``load`` (the server's limit), ``client`` (the
    load generator's: the true peak is higher), ``range`` (``highest_rate`` passed) or ``server`` (it is gone)."""

    rate_per_s: float | None
    bound_us: float
    percentile: str
    limited_by: str
    probes: tuple[Probe, ...]


def find_peak(
    measure: Measure,
    workload: Workload,
    *,
    bound_us: float,
    percentile: float = 99.0,
    start_rate: float = 10.0,
    highest_rate: float = 1e6,
    precision: float = 0.05,
    shortest_s: float = 2.0,
    longest_s: float = 120.0,
) -> Peak:
    """Doubles the Poisson rate from ``start_rate`` until one fails, then bisects to ``precision``, then asks the best
    rate to pass once more with another seed, stepping down where it does not.

    ``measure`` runs one window. Windows are as long as the percentile needs at their rate, within the two limits; a
    rate too low for that within ``longest_s`` fails as unsupported. Sound for services whose latency grows with load.
    """
    if not bound_us > 0:
        raise InputError(f"a bound of {bound_us} us cannot be met", field="bound_us", remedy="give a bound above 0")
    name = f"p{percentile:g}"
    probes: list[Probe] = []

    def probe(rate: float, seed: int) -> Probe:
        duration_s = min(longest_s, max(shortest_s, MARGIN * samples_needed(percentile) / rate))
        load = replace(workload, arrival=Arrival.POISSON, rate_per_s=rate, duration_s=duration_s, seed=seed)
        measurement = measure(load)
        reason = why_not(measurement, rate, name, bound_us)
        probes.append(Probe(rate, not reason, reason, measurement))
        return probes[-1]

    def finished(rate: float | None, limited_by: str) -> Peak:
        return Peak(rate, bound_us, name, limited_by, tuple(probes))

    low: float | None = None
    high: float | None = None
    rate = start_rate
    while high is None and rate <= highest_rate:
        tried = probe(rate, workload.seed)
        if _ends_the_search(tried):
            return finished(low, _limit(tried))
        if tried.passed:
            low, rate = rate, rate * 2
        else:
            high = rate
    if high is None:
        return finished(low, "range")
    if low is None:
        # The first guess was too high: halve until one passes.
        rate = start_rate / 2
        while low is None and rate >= start_rate / 64:
            tried = probe(rate, workload.seed)
            if tried.passed:
                low = rate
            elif _ends_the_search(tried):
                return finished(None, _limit(tried))
            elif code_of(tried.reason) == "unsupported":
                break
            else:
                high, rate = rate, rate / 2
        if low is None or high is None:
            return finished(None, _limit(probes[0]))
    while high / low > 1 + precision:
        rate = (low * high) ** 0.5
        tried = probe(rate, workload.seed)
        if _ends_the_search(tried):
            return finished(low, _limit(tried))
        low, high = (rate, high) if tried.passed else (low, rate)
    limited_by = next(_limit(each) for each in reversed(probes) if not each.passed)
    for attempt in range(1, 6):
        if probe(low, workload.seed + attempt).passed:
            return finished(low, limited_by)
        low /= 1 + precision
    return finished(None, limited_by)


def why_not(measurement: Measurement, rate: float, percentile: str, bound_us: float) -> str:
    """``""`` when the rate was sustained within the bound, else ``code: text``."""
    if not measurement.usable:
        fatal = (warning for warning in measurement.warnings if code_of(warning) in FATAL)
        return next(fatal, "unusable: no reason given")
    if measurement.failed:
        return f"failures: {measurement.failed} requests failed"
    served = measurement.requests / measurement.duration_s
    if served < SUSTAINED * rate and measurement.requests >= 100:
        return f"load: {served:.1f} of {rate:.1f} requests/s were answered"
    value = measurement.percentiles_us.get(percentile)
    if value is None:
        return f"unsupported: too few answers for a {percentile}"
    return "" if value <= bound_us else f"latency: {percentile} {value:.0f} us exceeds {bound_us:.0f} us"


def _ends_the_search(probe: Probe) -> bool:
    return not probe.measurement.usable


def _limit(probe: Probe) -> str:
    code = code_of(probe.reason)
    if code in ("server_gone", "nothing_succeeds"):
        return "server"
    return "client" if code in FATAL else code
