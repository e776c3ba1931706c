"""The laboratory: tries one candidate at a time, and remembers in the ledger what came of it.

Every method answers from the ledger first and records before it returns. So a strategy that is run again after an
interruption walks through what was done, and goes on with what was not.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from optimizer.accuracy.validator import Answer, FailedAnswer, validate
from optimizer.errors import EnvironmentFailure
from optimizer.gates import Gate
from optimizer.judge.tails import Latencies
from optimizer.ledger import Ledger
from optimizer.load.estimators import answered_latencies_us
from optimizer.load.request_log import load_request_log
from optimizer.progress import Progress
from optimizer.records.candidate import Pair, Rejection, Stage
from optimizer.records.engine import BuildFailure, Engine
from optimizer.records.measurement import Arrival, Measurement
from optimizer.records.objective import Objective, log_ratio
from optimizer.records.parity import Parity
from optimizer.records.route import AS_FOUND, Candidate
from optimizer.records.samples import SampleSet
from optimizer.search.budget import Budget
from optimizer.stand import Stand
from optimizer.workbench import AS_FOUND_NAME, SAME_ENGINE, Plan, Workbench

TWIN_NAME = "as_found_twin"
"""A second copy of the reference: what A/A pairs compare it with."""

NOISE = "noise"
CONFIRM = "confirm"
FRESH = "confirm-fresh"


class StudyLaboratory(Workbench):
    """Implements :class:`optimizer.search._base.Laboratory` on a real server."""

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger,
        stand: Stand,
        fresh_stand: Callable[[], AbstractContextManager[Stand]],
        budget: Budget,
        progress: Progress,
    ) -> None:
        super().__init__(plan, ledger, budget, progress)
        self.stand = stand
        self._fresh_stand = fresh_stand
        self._gates: dict[str, Gate] = {}
        self.as_found_served = True
        self.throttling_is_normal = False
        """The GPU holds its clocks down under this load whoever is measured: no pair is left out for it."""
        self._default: Candidate | None = None
        self._noise: float | None = None

    @property
    def default(self) -> Candidate:
        return self._default or self.as_found

    @default.setter
    def default(self, candidate: Candidate) -> None:
        self._default = candidate

    @property
    def as_found_judges(self) -> bool:
        """Whether as-found is served as it is meant to be, so that a winner must beat it."""
        return self.as_found_served and not self.as_found_on_cpu

    @property
    def noise(self) -> float:
        return self._noise if self._noise is not None else math.nan

    @noise.setter
    def noise(self, value: float) -> None:
        self._noise = value

    @property
    def screened_any(self) -> bool:
        return any(True for _ in self.ledger.records("screened"))

    def gate(self, samples: SampleSet) -> Gate:
        """The accuracy gate of one of the study's sets."""
        gate = self._gates.get(samples.name)
        if gate is None or gate.samples is not samples:
            gate = self._gates[samples.name] = Gate(samples, self.plan.tolerances, self.plan.output_datatypes)
        return gate

    # Screening

    def screen(self, candidate: Candidate) -> Rejection | None:
        """Builds, loads, validates on the ``tune`` set, checks constraints on a first window."""
        known = self.ledger.load("rejection", candidate.id, Rejection)
        if known is not None and not known.transient:
            return known
        if known is None and self.ledger.get("screened", candidate.id) is not None:
            return None
        self.budget.check()
        self.remember(candidate)
        self.progress("screen", candidate=candidate.id, route=candidate.label)
        rejection = self._screen(candidate)
        if rejection is not None:
            self.reject(rejection)
        else:
            self.ledger.append("screened", candidate.id, {"route": candidate.label})
        return rejection

    def _screen(self, candidate: Candidate) -> Rejection | None:
        built = self.build(candidate)
        if isinstance(built, Engine):
            twin = "what is there" if self._is_as_found(candidate) else self.twin_of(candidate, built)
            if twin is not None:
                return Rejection(candidate.id, Stage.CHECK, SAME_ENGINE, f"comes out as the same engine as {twin}")
        rejection = self.serve(self.stand, candidate)
        if rejection is not None:
            return rejection
        for parity in (self.validate(candidate, self.plan.tune), self.validate_batches(candidate)):
            if not parity.passed:
                code = "defect" if parity.defects else "accuracy"
                where = "in batches: " if parity.sample_set == "batches" else ""
                return Rejection(candidate.id, Stage.VALIDATE, code, where + parity.reason)
        return self._check_constraints(candidate)

    def _is_as_found(self, candidate: Candidate) -> bool:
        return self.as_found_judges and self.serves_the_same(candidate, self.as_found)

    def serve(self, stand: Stand, candidate: Candidate) -> Rejection | None:
        """Makes sure that ``stand`` serves it."""
        engine: Engine | None = None
        if candidate.family != AS_FOUND:
            built = self.build(candidate)
            if isinstance(built, BuildFailure):
                return Rejection(
                    candidate.id,
                    Stage.BUILD,
                    built.reason.value,
                    built.message,
                    built.log_excerpt,
                    built.reason.transient,
                )
            engine = built
        failure = stand.serve(self.deployment(candidate, engine))
        if failure is None:
            return None
        return Rejection(candidate.id, Stage.LOAD, failure.code, failure.message, failure.log_excerpt)

    def validate(self, candidate: Candidate, samples: SampleSet) -> Parity:
        """Every sample through the server, several in flight. Recorded once per candidate and set."""
        key = f"{samples.name}:{candidate.id}"
        known = self.ledger.load("parity", key, Parity)
        if known is not None:
            return known
        answers = self.stand.answers(self.name_of(candidate), samples, self.plan.datatypes)
        parity = validate(candidate.id, samples, answers, self.plan.tolerances, self.plan.output_datatypes)
        self.ledger.save("parity", key, parity)
        self.stand.revive()
        return parity

    def validate_batches(self, candidate: Candidate) -> Parity:
        """Requests of several rows, so that every size and position of a batch is seen. Recorded as ``batches``."""
        key = f"batches:{candidate.id}"
        known = self.ledger.load("parity", key, Parity)
        if known is not None:
            return known
        gate, config = self.gate(self.plan.tune), self.config(candidate, self.engine_of(candidate))
        preferred = tuple(config.dynamic_batching.preferred_batch_size)
        plan = gate.batch_plan(self.plan.model, config.max_batch_size, preferred)
        with self.stand.infer(self.name_of(candidate), self.plan.datatypes) as infer:
            parity = gate.check_batches(candidate.id, plan, infer)
        self.ledger.save("parity", key, parity)
        self.stand.revive()
        return parity

    def _check_constraints(self, candidate: Candidate) -> Rejection | None:
        if not self.plan.constraints:
            return None
        measurement = self.measure(candidate, f"screen:{candidate.id}", gate=self.gate(self.plan.tune))
        if isinstance(measurement, Rejection):
            return measurement
        for constraint in self.plan.constraints:
            problem = constraint.violation(measurement, self.engine_of(candidate))
            if problem is not None:
                return Rejection(candidate.id, Stage.CONSTRAINT, constraint.name, problem)
        return None

    # Measuring

    def measure(
        self, candidate: Candidate, key: str, *, stand: Stand | None = None, name: str | None = None,
        gate: Gate | None = None,
    ) -> Measurement | Rejection:  # fmt: skip
        """One window, recorded under ``key``. With a ``gate`` some answers are kept and must pass it.

        The log of every request is kept for confirmations, whose tails are compared; of other windows it is removed.
        """
        known = self.ledger.load("measurement", key, Measurement)
        if known is not None:
            return known
        stand = stand or self.stand
        self.progress("window", key=key, candidate=candidate.id)
        started = time.monotonic()
        window = stand.load(
            name or self.name_of(candidate), self.plan.workload, candidate.id, warmup_s=self.plan.warmup_s,
            keep_responses=gate.kept_responses if gate is not None else 0,
        )  # fmt: skip
        if self.plan.gpu is not None:
            self.budget.spend_gpu(time.monotonic() - started)
        measurement = window.measurement
        if gate is not None and measurement.requests:
            parity = gate.check_load(candidate.id, window.responses)
            self.ledger.save("parity", f"under_load:{key}", parity)
            if not parity.passed:
                window.records_path.unlink(missing_ok=True)
                return Rejection(candidate.id, Stage.VALIDATE, "under_load", f"under load: {parity.reason}")
        measurement = replace(measurement, raw_file=keep_log(window.records_path, key))
        self.ledger.save("measurement", key, measurement)
        return measurement

    def pair(self, candidate: Candidate, index: int, purpose: str = "race") -> Pair | Rejection:
        """One paired comparison with the default on the common stand."""
        self.budget.check()
        return self.compare(candidate, self.default, index, purpose, self.stand)

    def compare(
        self, candidate: Candidate, reference: Candidate, index: int, purpose: str, stand: Stand
    ) -> Pair | Rejection:
        key = f"{purpose}:{index}:{candidate.id}:{reference.id}"
        known = self.ledger.load("pair", key, Pair)
        if known is not None:
            return known
        rejected = self.ledger.load("rejection", candidate.id, Rejection)
        if rejected is not None and not rejected.transient:
            return rejected
        twin = TWIN_NAME if candidate.id == reference.id else None
        for arm in (reference, candidate):
            rejection = self.serve(stand, arm)
            if rejection is not None:
                self.reject(rejection)
                return rejection
        gate = self.gate(self.plan.held_out if purpose.startswith(CONFIRM) else self.plan.tune)
        # ABBA: the order alternates, so that a linear drift cancels over two pairs.
        arms = [(reference, None, "reference"), (candidate, twin, "candidate")]
        if index % 2:
            arms.reverse()
        measured: dict[str, Measurement] = {}
        for arm, name, role in arms:
            checked = gate if role == "candidate" else None
            outcome = self.measure(arm, f"{key}:{role}", stand=stand, name=name, gate=checked)
            stand.revive()
            if isinstance(outcome, Rejection):
                if twin is None:
                    self.reject(outcome)
                return outcome
            measured[role] = outcome
        pair = make_pair(
            measured["candidate"], measured["reference"], self.plan.objective, purpose, index,
            throttled_counts=self.throttling_is_normal or purpose == NOISE,
        )  # fmt: skip
        self.ledger.save("pair", key, pair)
        self.progress(
            "pair", candidate=candidate.id, route=candidate.label, purpose=purpose, index=index,
            log_ratio=pair.log_ratio, usable=pair.usable, throughput=pair.candidate_throughput,
            reference_throughput=pair.reference_throughput,
        )  # fmt: skip
        if pair.failures and candidate.id != reference.id:
            rejection = Rejection(
                candidate.id, Stage.MEASURE, "errors",
                f"{pair.failures} requests failed under load: {_reasons(measured['candidate'])}",
            )  # fmt: skip
            self.reject(rejection)
            return rejection
        return pair

    def latencies(self, pair: Pair) -> tuple[Latencies, Latencies] | None:
        """Latencies (µs) of every answered request of a pair, reference and candidate; ``None`` where a log is gone."""
        key = f"{pair.purpose}:{pair.index}:{pair.candidate_id}:{pair.reference_id}"
        open_loop = self.plan.workload.arrival is not Arrival.CLOSED_LOOP
        arms = []
        for role in ("reference", "candidate"):
            measurement = self.ledger.load("measurement", f"{key}:{role}", Measurement)
            file = self.stand.logs / measurement.raw_file if measurement and measurement.raw_file else None
            if file is None or not file.exists():
                return None
            arms.append(answered_latencies_us(load_request_log(file), open_loop=open_loop))
        return arms[0], arms[1]

    @contextlib.contextmanager
    def fresh_stand(self, references: Sequence[Candidate]) -> Iterator[Stand]:
        """A freshly started server for one confirmation pair, with the references loaded."""
        with self._fresh_stand() as stand:
            stand.prepare(self.plan.held_out, self.plan.datatypes, batched=self.plan.model.batched)
            for reference in references:
                rejection = self.serve(stand, reference)
                if rejection is not None:
                    raise EnvironmentFailure(
                        f"a fresh server does not load the reference: {rejection.message}",
                        field=reference.label,
                        remedy="run `resume`; if it comes again, the machine is short of memory",
                    )
            yield stand

    def reject(self, rejection: Rejection) -> None:
        self.ledger.save("rejection", rejection.candidate_id, rejection)
        self.progress(
            "rejected", candidate=rejection.candidate_id, stage=rejection.stage.value, code=rejection.code,
            message=rejection.message,
        )  # fmt: skip

    def python_backends(self) -> set[str]:
        """Backends of this study's arms that this project's python-based ones stand in for."""
        used = {self._config.backend, self.plan.family.name}
        return used.intersection(self.stand.info.python_backends if self.stand.alive else ())

    # References

    def reference_answers(self, samples: SampleSet) -> Iterator[Answer | FailedAnswer]:
        """As-found, asked one request at a time: the answers that everything else is held against."""
        return self.stand.answers(AS_FOUND_NAME, samples, self.plan.datatypes, in_flight=1)

    def pin_with_twin(self, reference: Candidate) -> None:
        """Keeps the reference loaded, and loads a second copy of it for A/A pairs."""
        engine = self.built(reference)
        for name in (self.name_of(reference), TWIN_NAME):
            failure = self.stand.serve(self.deployment(reference, engine, name=name), pin=True)
            if failure is not None:
                raise EnvironmentFailure(
                    f"two copies of the reference cannot be loaded side by side: {failure.message}",
                    field=failure.code,
                    remedy="give the sandbox more memory",
                )


def keep_log(path: Path, key: str) -> str | None:
    """Keeps a confirmation window's log under a name of its own, and removes any other. Returns the file's name."""
    if not key.startswith(CONFIRM):
        path.unlink(missing_ok=True)
        return None
    # The generator numbers its files from 1 in every run and on every server.
    kept = path.with_name(key.replace(":", "-") + path.suffix)
    path.replace(kept)
    return kept.name


def make_pair(
    candidate: Measurement, reference: Measurement, objective: Objective, purpose: str, index: int,
    *, throttled_counts: bool = False,
) -> Pair:  # fmt: skip
    """A pair is unusable when either window is, when either arm completed nothing, or when the GPU throttled either
    (``throttled_counts``: then it is kept)."""
    ratio = log_ratio(objective, reference, candidate)
    p99 = candidate.percentiles_us.get("p99"), reference.percentiles_us.get("p99")
    throttled = bool(candidate.resources.gpu_throttled or reference.resources.gpu_throttled)
    usable = candidate.usable and reference.usable and ratio is not None and (throttled_counts or not throttled)
    return Pair(
        candidate_id=candidate.candidate_id,
        reference_id=reference.candidate_id,
        purpose=purpose,
        index=index,
        log_ratio=ratio if ratio is not None else 0.0,
        p99_log_ratio=math.log(p99[0] / p99[1]) if p99[0] and p99[1] else None,
        reference_throughput=reference.throughput,
        candidate_throughput=candidate.throughput,
        reference_p99_us=p99[1],
        candidate_p99_us=p99[0],
        failures=candidate.failed,
        usable=usable,
        note="; ".join(dict.fromkeys((*candidate.warnings, *reference.warnings))),
    )


def _reasons(measurement: Measurement) -> str:
    failures: Mapping[str, int] = measurement.failures
    return ", ".join(f"{count}x {reason}" for reason, count in failures.items())
