"""What a study maximises, and what a candidate must keep to: objectives, constraints, the Pareto front.

A measurement ranks nothing by itself; an :class:`Objective` says how two of them compare. What was not measured is
unknown: it gives no ratio, satisfies no constraint, and is never on the front.

Standard library only.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from optimizer.errors import InputError
from optimizer.records.measurement import Measurement

if TYPE_CHECKING:
    from optimizer.records.engine import Engine


class ObjectiveKind(str, Enum):
    THROUGHPUT = "throughput"
    LATENCY = "latency"
    RATE_UNDER_SLO = "rate_under_slo"
    ENERGY = "energy"
    COST = "cost"


@dataclass(frozen=True)
class Constraint:
    """``metric`` at most ``limit``, in the metric's base unit: µs, bytes or watts."""

    metric: str
    """``mean`` or a percentile such as ``p99`` (µs); ``memory``, ``gpu_memory``, ``host_memory``, ``plan`` (bytes);
    ``power`` (W)."""
    limit: float
    text: str
    """As the user wrote it."""

    @property
    def name(self) -> str:
        return self.text

    def value(self, measurement: Measurement, engine: Engine | None = None) -> float | None:
        """In the base unit; ``None`` is unknown."""
        resources = measurement.resources
        if self.metric == "mean":
            return measurement.latency_mean_us
        if self.metric == "plan":
            return float(engine.size_bytes) if engine is not None else None
        if self.metric == "memory":
            # Device memory where there is a GPU: it is what runs out first there.
            known = resources.gpu_memory_bytes
            return _optional_float(known if known is not None else resources.server_rss_bytes)
        if self.metric == "gpu_memory":
            return _optional_float(resources.gpu_memory_bytes)
        if self.metric == "host_memory":
            return _optional_float(resources.server_rss_bytes)
        if self.metric == "power":
            return resources.gpu_power_w
        return measurement.percentiles_us.get(self.metric)

    def violation(self, measurement: Measurement, engine: Engine | None = None) -> str | None:
        """``None`` when it is kept, else one line. Unknown is never kept."""
        value = self.value(measurement, engine)
        if value is None or math.isnan(value):
            return f"{self.text}: {self.metric} is unknown{self._why_unknown(measurement)}"
        if value > self.limit:
            return f"{self.text}: {self.metric} is {_with_unit(self.metric, value)}"
        return None

    def _why_unknown(self, measurement: Measurement) -> str:
        if re.fullmatch(r"p\d+(\.\d+)?", self.metric):
            return f" ({measurement.requests} requests in a window do not support it)"
        return ""


@dataclass(frozen=True)
class Objective:
    """What is compared. ``percentile`` is ``mean`` or ``p99`` …, for LATENCY; ``slo`` belongs to RATE_UNDER_SLO."""

    kind: ObjectiveKind = ObjectiveKind.THROUGHPUT
    percentile: str = ""
    slo: Constraint | None = None

    @property
    def name(self) -> str:
        if self.kind is ObjectiveKind.LATENCY:
            return f"{self.percentile} latency"
        if self.kind is ObjectiveKind.RATE_UNDER_SLO and self.slo is not None:
            return f"rate under {self.slo.text}"
        if self.kind in (ObjectiveKind.ENERGY, ObjectiveKind.COST):
            return f"{self.kind.value} per inference"
        return str(self.kind.value)

    @property
    def higher_is_better(self) -> bool:
        return self.kind in (ObjectiveKind.THROUGHPUT, ObjectiveKind.RATE_UNDER_SLO)

    def value(self, measured: Measurement | Sequence[Measurement]) -> float | None:
        """Inferences/s, µs, J per inference, or GPU seconds per inference. ``None`` is unknown or not comparable.

        Several measurements are one candidate under a ladder of loads; only RATE_UNDER_SLO looks at more than the
        first: its value is the highest throughput among those that keep the SLO.
        """
        ladder = [measured] if isinstance(measured, Measurement) else list(measured)
        if self.kind is ObjectiveKind.RATE_UNDER_SLO:
            if self.slo is None:
                raise ValueError("a rate under an SLO needs the SLO")
            kept = [window.throughput for window in ladder if self.slo.violation(window) is None]
            return max(kept, default=None)
        window = ladder[0]
        if self.kind is ObjectiveKind.LATENCY:
            if self.percentile == "mean":
                return window.latency_mean_us
            return window.percentiles_us.get(self.percentile)
        if self.kind is ObjectiveKind.ENERGY:
            resources = window.resources
            energy_j = resources.gpu_energy_j
            if energy_j is None and resources.gpu_power_w is not None:
                energy_j = resources.gpu_power_w * window.duration_s
            # Not over ``inferences``: a closed loop's throughput is free of the error at the window's edges.
            answered = window.throughput * window.duration_s
            return energy_j / answered if energy_j is not None and answered > 0 else None
        if self.kind is ObjectiveKind.COST:
            # At any price of a GPU second the cost of an inference is the time it takes of one.
            return 1.0 / window.throughput if window.throughput > 0 else None
        return window.throughput


def log_ratio(
    objective: Objective,
    reference: Measurement | Sequence[Measurement],
    candidate: Measurement | Sequence[Measurement],
) -> float | None:
    """ln(candidate / reference), turned so that positive is better; ``None`` where one is unknown or not positive."""
    before, after = objective.value(reference), objective.value(candidate)
    if before is None or after is None or not (0 < before < math.inf and 0 < after < math.inf):
        return None
    ratio = math.log(after / before)
    return ratio if objective.higher_is_better else -ratio


def pareto_front(
    measured: Mapping[str, Measurement | Sequence[Measurement]], objectives: Sequence[Objective]
) -> tuple[str, ...]:
    """Ids that no other beats in one objective without losing in another, in the order given.

    A candidate with an unknown objective is left out: it cannot be compared. Equal points are all kept.
    """
    points: dict[str, tuple[float, ...]] = {}
    for name, windows in measured.items():
        values = [objective.value(windows) for objective in objectives]
        if all(value is not None and math.isfinite(value) for value in values):
            points[name] = tuple(
                (value if objective.higher_is_better else -value)
                for value, objective in zip(values, objectives, strict=True)
                if value is not None
            )
    return tuple(
        name for name, point in points.items() if not any(_dominates(other, point) for other in points.values())
    )


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(mine >= theirs for mine, theirs in zip(one, other, strict=True))


_PERCENTILE = r"p(?:\d{1,2}(?:\.\d+)?)"
_OBJECTIVE_EXAMPLES = ("throughput", "p50", "p90", "p95", "p99", "mean", "energy", "cost", "rate:p99_ms<=20")
_UNITS = {
    "us": 1.0, "ms": 1e3, "s": 1e6,
    "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30,
    "w": 1.0,
}  # fmt: skip
_TIME_UNITS = ("us", "ms", "s")
_SIZE_UNITS = ("b", "kb", "mb", "gb", "kib", "mib", "gib")
_SIZE_METRICS = ("memory", "gpu_memory", "host_memory", "plan")
_SYNONYMS = {"plan_size": "plan", "engine": "plan", "engine_size": "plan", "rss": "host_memory", "latency": "mean"}


def parse_objective(text: str, *, where: str = "judge.objective") -> Objective:
    """``throughput``; ``p99`` or ``p99 latency`` (any percentile, or ``mean``); ``energy``; ``cost``; ``rate:`` with a
    latency constraint, such as ``rate:p99_ms<=20``. Raises :class:`InputError`."""
    plain = text.strip().lower()
    head, colon, tail = plain.partition(":")
    if colon and head in ("rate", "rate_under_slo"):
        slo = parse_constraint(tail, where=where)
        if slo.metric != "mean" and not re.fullmatch(_PERCENTILE, slo.metric):
            raise _wrong(text, where, "an SLO is a latency, for instance rate:p99_ms<=20")
        return Objective(ObjectiveKind.RATE_UNDER_SLO, slo=slo)
    if plain in ("throughput", "energy", "cost"):
        return Objective(ObjectiveKind(plain))
    words = set(re.split(r"[\s_-]+", plain)) - {"latency"}
    if len(words) == 1:
        word = words.pop()
        if word == "mean" or re.fullmatch(_PERCENTILE, word):
            return Objective(ObjectiveKind.LATENCY, percentile=word)
    raise _wrong(text, where, _nearest(plain, _OBJECTIVE_EXAMPLES))


def parse_constraint(text: str, *, where: str = "judge.constraints") -> Constraint:
    """``p99_ms<=20``, ``p99<=20ms``, ``mean_us<=800``, ``memory_mb<=4000``, ``gpu_memory<=8GiB``, ``plan_mb<=500``,
    ``power_w<=300``. The unit stands behind the metric or behind the number. Raises :class:`InputError`."""
    match = re.fullmatch(r"\s*([a-z0-9_.]+)\s*<=?\s*([0-9.]+(?:e[+-]?\d+)?)\s*([a-z]*)\s*", text.lower())
    if match is None:
        raise _wrong(text, where, "METRIC_UNIT<=NUMBER, for instance p99_ms<=20 or memory_mb<=4000")
    metric, number, unit = match.groups()
    base, _, suffix = metric.rpartition("_")
    if suffix in _UNITS and base:
        if unit:
            raise _wrong(text, where, f"one unit: {suffix} or {unit}")
        metric, unit = base, suffix
    metric = _SYNONYMS.get(metric, metric)
    if metric == "mean" or re.fullmatch(_PERCENTILE, metric):
        units: tuple[str, ...] = _TIME_UNITS
    elif metric in _SIZE_METRICS:
        units = _SIZE_UNITS
    elif metric == "power":
        units = ("w",)
    else:
        raise _wrong(text, where, _nearest(metric, ("p50", "p90", "p95", "p99", "mean", *_SIZE_METRICS, "power")))
    if unit not in units:
        found = f"the unit {unit}" if unit else "no unit"
        raise _wrong(text, where, f"{metric} in one of {', '.join(units)}, found {found}")
    try:
        limit = float(number) * _UNITS[unit]
    except ValueError:
        raise _wrong(text, where, f"a number, found {number}") from None
    return Constraint(metric, limit, re.sub(r"\s+", "", text))


def _wrong(text: str, where: str, expected: str) -> InputError:
    return InputError(f"{text!r} is not understood: expected {expected}", field=where, remedy=f"Correct {where}.")


def _nearest(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return (f"{near[0]}? " if near else "") + "one of " + ", ".join(known)


def _optional_float(value: int | None) -> float | None:
    return None if value is None else float(value)


def _with_unit(metric: str, value: float) -> str:
    if metric in _SIZE_METRICS:
        return f"{value / 1e6:.1f} MB"
    return f"{value:.1f} W" if metric == "power" else f"{value / 1e3:.3f} ms"
