"""Two states of a repository on sandbox servers of their own, as found and as it would be, and a mixed load on each.

Both stay up side by side where they fit, else they are started in turn. Who is better is :mod:`optimizer.together`'s to
say.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from optimizer.errors import EnvironmentFailure
from optimizer.load.bodies import Part
from optimizer.load.estimators import throughputs, timed
from optimizer.load.generator import LoadGenerator
from optimizer.load.request_log import RequestLog
from optimizer.progress import Progress
from optimizer.records.deployment import Deployment, LoadFailure
from optimizer.records.measurement import Arrival, Measurement, Workload
from optimizer.records.model import Model
from optimizer.records.samples import SampleSet
from optimizer.sandbox._base import Launcher, Sandbox, SandboxOptions
from optimizer.stand import model_files
from optimizer.triton.client import TritonClient, TritonError, build_request

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
class Verdict:
    """``code`` is stable, ``reason`` for people; ``blamed`` is the model at fault, where one is known.

    Codes: ``passed``, ``load``, ``failures``, ``slower``, ``slows`` (a neighbour), and ``undecided``: too few usable
    pairs, or too noisy for a verdict, which is no pass.
    """

    code: str
    reason: str
    blamed: str | None = None


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


class Arm:
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


class SideBySide:
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
        self._open: dict[str, tuple[Arm, contextlib.ExitStack]] = {}
        self._parts: list[Part] = []
        self._base = Workload()
        self._prepared: set[str] = set()
        self._asked = True
        self.left_out: dict[str, str] = {}
        self.side_by_side = True
        self.memory: dict[str, int | None] = {}

    def __enter__(self) -> SideBySide:
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

    def _must_load(self, arm: Arm) -> dict[str, str]:
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
            part = Part(one.name, one.samples.samples[:MOST_SAMPLES], datatypes, one.model.batched)
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

    def arm(self, which: str) -> Arm:
        if which not in self._open:
            if not self.side_by_side:
                self._close_all()
            self._start(which)
        arm = self._open[which][0]
        if self._parts and which not in self._prepared:
            arm.owners = arm.generator.prepare_mixed(self._parts)
            # The first requests of a fresh server are slow ones.
            mixed_window(arm, replace(self._base, duration_s=WARMUP_S))
            self._prepared.add(which)
        return arm

    def _start(self, which: str) -> None:
        directory = self._directory / which
        directory.mkdir(parents=True, exist_ok=True)
        before = self._gpu_memory()
        with contextlib.ExitStack() as stack:
            sandbox = stack.enter_context(self._launcher.start(replace(self._options, workdir=directory)))
            arm = Arm(sandbox, self._options, directory / "load")
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
class MixedWindow:
    requests_per_s: float
    latency_us: Mapping[str, float]
    failures: Mapping[str, int]
    usable: bool
    warnings: tuple[str, ...]


def mixed_window(arm: Arm, workload: Workload) -> MixedWindow:
    window = arm.generator.run(arm.owners[0], workload, candidate_id="mixed", warmup_s=RAMP_S)
    log = window.records()
    window.records_path.unlink(missing_ok=True)
    return by_model(log, arm.owners, window.measurement)


def by_model(log: RequestLog, owner_of_sample: Sequence[str], measurement: Measurement) -> MixedWindow:
    """Pure. A window of slow models has few answers: requests/s are estimated as a throughput is, not counted."""
    owners = np.array(owner_of_sample)[log.sample]
    open_loop = measurement.workload.arrival is not Arrival.CLOSED_LOOP
    counted = timed(log, open_loop=open_loop)
    latency_us = (log.done_ns - log.intended_ns) / 1e3
    one_each = np.ones(len(owner_of_sample))
    return MixedWindow(
        requests_per_s=float(throughputs(log, one_each, open_loop=open_loop)[0]),
        latency_us={
            str(name): float(latency_us[counted & (owners == name)].mean()) for name in np.unique(owners[counted])
        },
        failures={str(name): int((owners[~log.ok] == name).sum()) for name in np.unique(owners[~log.ok])},
        usable=measurement.usable,
        warnings=measurement.warnings,
    )
