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

import numpy as np

from optimizer.errors import EnvironmentFailure
from optimizer.judge.statistics import bonferroni, bounds, required_pairs, summarize
from optimizer.load.bodies import Part
from optimizer.load.generator import LoadGenerator
from optimizer.progress import Progress
from optimizer.records.codec import from_json, to_json
from optimizer.records.deployment import Deployment, LoadFailure
from optimizer.records.measurement import Arrival, Workload
from optimizer.records.model import Model, ModelFormat
from optimizer.records.samples import SampleSet
from optimizer.sandbox._base import Launcher, Sandbox, SandboxOptions
from optimizer.stand import model_files
from optimizer.triton.client import TritonClient, TritonError, build_request

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
MOST_SAMPLES = 32
WARMUP_S = 1.5
RAMP_S = 0.3


@dataclass(frozen=True)
class Neighbour:
    """One model of the repository. ``tuned`` is ``None`` where nothing would change; ``samples`` is ``None`` where
    nothing is known to ask: it then takes its memory only."""

    model: Model
    as_found: Deployment
    tuned: Deployment | None
    samples: SampleSet | None

    @property
    def name(self) -> str:
        return self.model.name


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


@dataclass(frozen=True)
class Verdict:
    """``code`` is stable, ``reason`` for people; ``blamed`` is the model at fault, where one is known.

    Codes: ``passed``, ``load``, ``failures``, ``slower``, ``slows`` (a neighbour), and ``undecided``: too few usable
    pairs, or too noisy for a verdict, which is no pass.
    """

    code: str
    reason: str
    blamed: str | None = None


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
    bench = _Bench(neighbours, launcher, options, directory, gpu_memory)
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


def as_on_disk(model: Model, *, name: str | None = None) -> Deployment:
    """The model with every version that is served, as it is."""
    files: dict[str, Path] = {}
    for version in model.versions:
        if version.served:
            files |= model_files(model.directory, version.path, version.number)
    live = model.live_version
    return Deployment(
        name or model.name, model.effective_config_text, files, candidate_id=model.name,
        version=live.number if live else 1,
    )  # fmt: skip


class _Arm:
    """One state of the repository on a server of its own."""

    def __init__(self, sandbox: Sandbox, options: SandboxOptions, directory: Path) -> None:
        self.sandbox = sandbox
        self.failures: dict[str, LoadFailure] = {}
        self.generator = LoadGenerator(
            sandbox.info.grpc_url, directory=directory, metrics_url=sandbox.info.metrics_url,
            memory=sandbox.memory_bytes, gpu=options.gpu,
        )  # fmt: skip
        self.owners: tuple[str, ...] = ()

    def load(self, deployments: Sequence[Deployment], members: Mapping[str, Sequence[str]]) -> None:
        """Ensembles after their members; a failure is kept by name."""
        waiting = list(deployments)
        done: set[str] = set()
        while waiting:
            ready = [one for one in waiting if set(members.get(one.name, ())) <= done | set(self.failures)] or waiting
            for one in ready:
                failure = self.sandbox.load(one)
                if failure is None:
                    done.add(one.name)
                else:
                    self.failures[one.name] = failure
                    if not self.sandbox.alive():
                        raise EnvironmentFailure(
                            f"the server died when {one.name} was loaded beside the others: {failure.message}",
                            where=one.name,
                            remedy="give the sandbox more memory",
                        )
            waiting = [one for one in waiting if one not in ready]

    def problem_with(self, part: Part) -> str | None:
        """What is wrong with its answer to the first sample."""
        with TritonClient(self.sandbox.info.grpc_url) as client:
            try:
                client.infer_raw(build_request(part.model, part.samples[0].inputs, part.datatypes), timeout_s=60.0)
            except TritonError as error:
                return error.problem
        return None


class _Bench:
    """Both states, side by side where they fit, else one after the other."""

    def __init__(
        self, neighbours: Sequence[Neighbour], launcher: Launcher, options: SandboxOptions, directory: Path,
        gpu_memory: Callable[[], int | None],
    ) -> None:  # fmt: skip
        self._neighbours = neighbours
        self._launcher = launcher
        self._options = options
        self._directory = directory
        self._gpu_memory = gpu_memory
        self._open: dict[str, tuple[_Arm, contextlib.ExitStack]] = {}
        self._parts: list[Part] = []
        self._base = Workload()
        self._prepared: set[str] = set()
        self._asked = True
        self.left_out: dict[str, str] = {}
        self.side_by_side = True
        self.memory: dict[str, int | None] = {}

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_all()

    def load_both(self, progress: Progress) -> Verdict | None:
        """``None`` when every model that must load does."""
        progress("stage", stage="together", text=f"loading {len(self._neighbours)} models side by side, as found")
        found = self.arm("as_found")
        for name, failure in found.failures.items():
            self.left_out[name] = f"does not load here as found: {failure.message}"
        progress("stage", stage="together", text="loading them again, with the winners")
        try:
            tuned = self.arm("tuned")
            failed = self._must_load(tuned)
        except EnvironmentFailure as error:
            tuned, failed = None, {error.where or "": error.problem}
        if failed:
            # Two states may be too much where one is not.
            self._close_all()
            self.side_by_side = False
            try:
                tuned = self.arm("tuned")
            except EnvironmentFailure as error:
                return Verdict("load", error.problem, error.where)
            failed = self._must_load(tuned)
        for name, message in failed.items():
            return Verdict("load", f"{name} does not load beside the others: {message}", name)
        return None

    def _must_load(self, arm: _Arm) -> dict[str, str]:
        winners = {one.name for one in self._neighbours if one.tuned is not None}
        return {
            name: failure.message
            for name, failure in arm.failures.items()
            if name in winners or name not in self.left_out
        }

    def parts(self, base: Workload) -> list[Part]:
        """Models that answer as found: what the load, with ``base``'s requests in flight at least, will ask. One that
        answered and no longer does shows as failures under load."""
        found = self.arm("as_found")
        parts = []
        for one in self._neighbours:
            if one.name in self.left_out or one.samples is None:
                continue
            datatypes = {spec.name: spec.datatype for spec in one.model.inputs}
            part = Part(one.name, one.samples.samples[:MOST_SAMPLES], datatypes)
            problem = found.problem_with(part)
            if problem is None:
                parts.append(part)
            else:
                self.left_out[one.name] = f"does not answer here as found: {problem}"
        self._parts = parts
        self._base = replace(
            base, arrival=Arrival.CLOSED_LOOP, concurrency=max(base.concurrency, 2 * len(parts)), rate_per_s=None,
            trace=None,
        )  # fmt: skip
        return parts

    @property
    def closed_loop(self) -> Workload:
        return self._base

    def arm(self, which: str) -> _Arm:
        if which not in self._open:
            if not self.side_by_side:
                self._close_all()
            self._start(which)
        arm = self._open[which][0]
        if self._parts and which not in self._prepared:
            arm.owners = arm.generator.prepare_mixed(self._parts)
            # The first requests of a fresh server are slow ones.
            _window(arm, replace(self._base, duration_s=WARMUP_S))
            self._prepared.add(which)
        return arm

    def _start(self, which: str) -> None:
        directory = self._directory / which
        directory.mkdir(parents=True, exist_ok=True)
        before = self._gpu_memory()
        with contextlib.ExitStack() as stack:
            sandbox = stack.enter_context(self._launcher.start(replace(self._options, workdir=directory)))
            arm = _Arm(sandbox, self._options, directory / "load")
            stack.enter_context(arm.generator)
            chosen = [one.tuned if which == "tuned" and one.tuned else one.as_found for one in self._neighbours]
            arm.load(chosen, {one.name: one.model.ensemble_members for one in self._neighbours})
            after = self._gpu_memory()
            self.memory[f"{which}_bytes"] = sandbox.memory_bytes()
            self.memory[f"{which}_gpu_bytes"] = after - before if before is not None and after is not None else None
            self._open[which] = arm, stack.pop_all()

    def remember_memory(self) -> None:
        """After the load: a server is largest when it has worked."""
        for which, (arm, _) in self._open.items():
            self.memory[f"{which}_bytes"] = arm.sandbox.memory_bytes()

    def _close_all(self) -> None:
        opened, self._open = self._open, {}
        self._prepared.clear()
        with contextlib.ExitStack() as stack:
            for _, each in opened.values():
                stack.push(each)


@dataclass(frozen=True)
class _Window:
    requests_per_s: float
    latency_us: Mapping[str, float]
    failures: Mapping[str, int]
    usable: bool
    warnings: tuple[str, ...]


def _measure(
    bench: _Bench, parts: Sequence[Part], untouched: Sequence[str], guard: float | None, max_pairs: int,
    recall: Callable[[int], MixedPair | None], record: Callable[[MixedPair], None], progress: Progress,
) -> list[MixedPair]:  # fmt: skip
    closed = bench.closed_loop
    first = _window(bench.arm("as_found"), closed)
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


def _pair(bench: _Bench, index: int, closed: Workload, open_loop: Workload) -> MixedPair:
    measured: dict[str, tuple[_Window, _Window]] = {}
    for which in ("as_found", "tuned") if index % 2 == 0 else ("tuned", "as_found"):
        arm = bench.arm(which)
        measured[which] = _window(arm, closed), _window(arm, replace(open_loop, seed=open_loop.seed + index))
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


def _window(arm: _Arm, workload: Workload) -> _Window:
    window = arm.generator.run(arm.owners[0], workload, candidate_id="mixed", warmup_s=RAMP_S)
    log = window.records()
    window.records_path.unlink(missing_ok=True)
    owners = np.array(arm.owners)[log.sample]
    moment = log.intended_ns if workload.arrival is not Arrival.CLOSED_LOOP else log.done_ns
    counted = log.ok & (moment >= 0) & (moment < log.duration_ns)
    latency_us = (log.done_ns - log.intended_ns) / 1e3
    return _Window(
        requests_per_s=window.measurement.requests / window.measurement.duration_s,
        latency_us={
            str(name): float(latency_us[counted & (owners == name)].mean()) for name in np.unique(owners[counted])
        },
        failures={str(name): int((owners[~log.ok] == name).sum()) for name in np.unique(owners[~log.ok])},
        usable=window.measurement.usable,
        warnings=window.measurement.warnings,
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
