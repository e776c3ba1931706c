"""Models that share a machine, tried together: all as found against all as they would be after a write-back.

Every winner was measured alone. Side by side they compete for cores, memory and the GPU: a model that got faster with
more instances may slow its neighbours down, or no longer fit. So both states are loaded whole, each on a server of its
own, under the models' own names (ensembles find their members), and are asked by one mixed load, the models in turn.

A pair is both states back to back, in ABBA order. Each state gets two windows: a closed loop, whose requests/s say what
the machine can do, and Poisson arrivals at :data:`RATE` of what as-found does, where latencies compare at equal load.
(In a closed loop a neighbour that got faster sends its share of the queue to the others: their latency then says
nothing about them.)
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from optimizer.judge.statistics import bonferroni, bounds, required_pairs, summarize
from optimizer.load.bodies import Part
from optimizer.progress import Progress
from optimizer.records.codec import from_json, to_json
from optimizer.records.measurement import Arrival, Workload
from optimizer.records.model import Model, ModelFormat
from optimizer.sandbox._base import Launcher, SandboxOptions
from optimizer.side_by_side import MixedWindow, Neighbour, SideBySide, Verdict, mixed_window

RATE = 0.7
"""Of as-found's closed-loop requests/s: busy, and far enough from saturation that queues do not grow."""
MARGIN = 0.05
"""Non-inferiority: tuned together must be shown to do at least 95% of what as-found does."""
LOOKS = 2
ALPHA = 0.05 / LOOKS
"""Of each look: there may be a second one, and both together err with 5% at most (Bonferroni)."""
FIRST_PAIRS = 4
"""Often enough. Where it is not, their spread tells how many are needed in all (Stein 1945)."""
FEWEST_PAIRS = 3
ROUNDS = 30
"""A window is long enough for so many requests to every model …"""
LONGEST_WINDOW_S = 10.0
"""… but no longer than this."""


@dataclass(frozen=True)
class MixedPair:
    """ln(tuned / as-found): of requests/s in the closed loop, and of mean latency by model at the same rate."""

    index: int
    log_ratio: float
    latency: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)
    """Failed requests of the tuned state by model; as-found's are in ``note``."""
    usable: bool = True
    note: str = ""


def judge(pairs: Sequence[MixedPair], untouched: Sequence[str], *, guard: float | None) -> Verdict:
    """No failed request, at least 95% of the requests/s, no untouched model shown to be slowed down by more than
    ``guard`` (a ratio; Bonferroni over the models), all at the level of one look. Pure."""
    for pair in pairs:
        for model, count in pair.failures.items():
            return Verdict("failures", f"{count} requests to {model} failed under the mixed load", model)
    usable = [pair for pair in pairs if pair.usable and math.isfinite(pair.log_ratio)]
    if len(usable) < FEWEST_PAIRS:
        notes = sorted({pair.note for pair in pairs if pair.note})
        return Verdict("undecided", "; ".join([f"only {len(usable)} of {len(pairs)} pairs could be used", *notes]))
    summary = summarize([pair.log_ratio for pair in usable])
    lower, upper = bounds(summary, ALPHA)
    told = f"{_percent(summary.mean)} requests/s under the mixed load, {_percent(lower)} at least, {len(usable)} pairs"
    level = bonferroni(ALPHA, len(untouched))
    for model in untouched if guard is not None else ():
        ratios = [pair.latency[model] for pair in usable if model in pair.latency]
        slower = bounds(summarize(ratios), level)[0]
        if guard is not None and slower > math.log(guard):
            return Verdict("slows", f"slows {model} down: latency at the same load {_percent(slower)} at least", model)
    if upper < 0 and lower <= math.log(1 - MARGIN):
        return Verdict("slower", f"slower together: {told}")
    if lower <= math.log(1 - MARGIN):
        return Verdict("undecided", f"not shown to be as fast together as what is there: {told}")
    return Verdict("passed", told)


def check(
    neighbours: Sequence[Neighbour],
    launcher: Launcher,
    options: SandboxOptions,
    *,
    directory: Path,
    base: Workload,
    guard: float | None,
    max_pairs: int,
    recall: Callable[[int], MixedPair | None],
    record: Callable[[MixedPair], None],
    progress: Progress,
    gpu_memory: Callable[[], int | None] = lambda: None,
) -> dict[str, Any]:
    """A document: ``verdict`` (``passed`` or ``refused``), ``code``, ``reason``, ``blamed``, ``models``, ``left_out``,
    ``ratio``, ``memory``, ``pairs``.

    ``recall`` and ``record`` keep pairs over an interruption. Raises :class:`EnvironmentFailure` where no server
    starts.
    """
    bench = SideBySide(neighbours, launcher, options, directory, gpu_memory)
    with bench:
        problem = bench.load_both(progress)
        parts = bench.parts(base) if problem is None else []
        document: dict[str, Any] = {
            "models": [
                {"model": one.name, "tuned": one.tuned is not None, "asked": one.name in {part.model for part in parts}}
                for one in neighbours
            ],
            "left_out": dict(bench.left_out),
            "side_by_side": bench.side_by_side,
            "memory": bench.memory,
            "pairs": [],
            "ratio": None,
        }
        if problem is not None:
            return {**document, **_told(problem)}
        if not parts:
            return {**document, **_told(Verdict("undecided", "there is nothing to ask any model"))}
        asked = {part.model for part in parts}
        untouched = [one.name for one in neighbours if one.tuned is None and one.name in asked]
        pairs = _measure(bench, parts, untouched, guard, max_pairs, recall, record, progress)
        document["memory"] = bench.memory
    verdict = judge(pairs, untouched, guard=guard)
    usable = [pair.log_ratio for pair in pairs if pair.usable]
    summary = summarize(usable)
    lower, upper = bounds(summary, ALPHA)
    if usable and math.isfinite(lower):
        document["ratio"] = {
            "ratio": math.exp(summary.mean), "lower": math.exp(lower), "upper": math.exp(upper),
            "confidence": 1 - ALPHA, "pairs": summary.n,
        }  # fmt: skip
    for row in document["models"]:
        ratios = [pair.latency[row["model"]] for pair in pairs if row["model"] in pair.latency]
        row["latency_ratio"] = math.exp(sum(ratios) / len(ratios)) if ratios else None
    return {**document, "pairs": [to_json(pair) for pair in pairs], **_told(verdict)}


def _told(verdict: Verdict) -> dict[str, Any]:
    passed = verdict.code == "passed"
    return {
        "verdict": "passed" if passed else "refused",
        "code": verdict.code,
        "reason": verdict.reason,
        "blamed": verdict.blamed,
    }


def _measure(
    bench: SideBySide, parts: Sequence[Part], untouched: Sequence[str], guard: float | None, max_pairs: int,
    recall: Callable[[int], MixedPair | None], record: Callable[[MixedPair], None], progress: Progress,
) -> list[MixedPair]:  # fmt: skip
    closed = bench.closed_loop
    first = mixed_window(bench.arm("as_found"), closed)
    rate = max(first.requests_per_s, 0.1)
    length_s = min(LONGEST_WINDOW_S, max(closed.duration_s, ROUNDS * len(parts) / rate))
    closed = replace(closed, duration_s=length_s)
    open_loop = replace(closed, arrival=Arrival.POISSON, rate_per_s=RATE * rate)
    pairs: list[MixedPair] = []
    wanted = FIRST_PAIRS
    while len(pairs) < wanted:
        index = len(pairs)
        pair = recall(index)
        if pair is None:
            pair = _pair(bench, index, closed, open_loop)
            record(pair)
        pairs.append(pair)
        progress("stage", stage="together", text=f"mixed load: pair {index + 1}: {_percent(pair.log_ratio)} requests/s")
        if pair.failures:
            break
        if len(pairs) == FIRST_PAIRS and judge(pairs, untouched, guard=guard).code == "undecided":
            spread = summarize([one.log_ratio for one in pairs if one.usable]).sd
            needed = required_pairs(spread, -math.log(1 - MARGIN), ALPHA) if math.isfinite(spread) else max_pairs
            wanted = min(max(FIRST_PAIRS, needed), max(FIRST_PAIRS, max_pairs))
    bench.remember_memory()
    return pairs


def _pair(bench: SideBySide, index: int, closed: Workload, open_loop: Workload) -> MixedPair:
    measured: dict[str, tuple[MixedWindow, MixedWindow]] = {}
    for which in ("as_found", "tuned") if index % 2 == 0 else ("tuned", "as_found"):
        arm = bench.arm(which)
        measured[which] = mixed_window(arm, closed), mixed_window(arm, replace(open_loop, seed=open_loop.seed + index))
    (found, found_open), (tuned, tuned_open) = measured["as_found"], measured["tuned"]
    windows = (found, found_open, tuned, tuned_open)
    failures: dict[str, int] = {}
    for window in (tuned, tuned_open):
        for model, count in window.failures.items():
            failures[model] = failures.get(model, 0) + count
    ratio = tuned.requests_per_s / found.requests_per_s if found.requests_per_s else math.nan
    notes = [text for window in windows for text in window.warnings]
    notes += [f"as-found: {count} requests to {model} failed" for model, count in found.failures.items()]
    shared = set(found_open.latency_us) & set(tuned_open.latency_us)
    return MixedPair(
        index=index,
        log_ratio=math.log(ratio) if ratio > 0 else 0.0,
        latency={name: math.log(tuned_open.latency_us[name] / found_open.latency_us[name]) for name in sorted(shared)},
        failures=failures,
        usable=ratio > 0 and all(window.usable for window in (found, tuned)),
        note="; ".join(dict.fromkeys(notes)),
    )


def recalled(data: Mapping[str, Any] | None) -> MixedPair | None:
    return from_json(MixedPair, dict(data)) if data is not None else None


def asks_others(model: Model) -> bool:
    """Whether the model is a pipeline in code (BLS): its ``model.py`` sends inference requests to other models."""
    if model.format is not ModelFormat.PYTHON or model.live_version is None:
        return False
    return any(_sends_requests(path) for path in model.live_version.path.glob("*.py"))


def _sends_requests(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return "InferenceRequest(" in path.read_text(encoding="utf-8", errors="replace")
    return False


def _percent(log_ratio: float) -> str:
    return f"{math.expm1(log_ratio):+.1%}" if math.isfinite(log_ratio) else "unknown"
