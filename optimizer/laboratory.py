"""The laboratory: tries one candidate at a time, and remembers in the ledger what came of it.

Every method answers from the ledger first and records before it returns. So a strategy that is run again after an
interruption walks through what was done, and goes on with what was not.
"""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optimizer.accuracy.validator import Answer, FailedAnswer, validate
from optimizer.engines._base import BuildRequest, EngineFamily
from optimizer.errors import EnvironmentFailure
from optimizer.judge.tails import Latencies
from optimizer.ledger import Ledger
from optimizer.load.estimators import answered_latencies_us
from optimizer.load.request_log import load_request_log
from optimizer.progress import Progress
from optimizer.records.candidate import Pair, Rejection, Stage
from optimizer.records.deployment import Deployment
from optimizer.records.engine import BuildFailure, BuildFailureReason, Engine
from optimizer.records.measurement import Arrival, Measurement, Workload
from optimizer.records.model import Model
from optimizer.records.objective import Constraint, Objective, log_ratio
from optimizer.records.parity import Parity, Tolerance
from optimizer.records.route import AS_FOUND, Candidate, Layer, Route
from optimizer.records.samples import SampleSet
from optimizer.routes.serving import apply_serving, serving_caveats
from optimizer.routes.space import Space
from optimizer.search.budget import Budget
from optimizer.stand import Stand, model_files
from optimizer.triton.protobuf import parse_config, print_config

if TYPE_CHECKING:
    from optimizer.triton.protobuf import ModelConfig

AS_FOUND_NAME = "as_found"
TWIN_NAME = "as_found_twin"
"""A second copy of the reference: what A/A pairs compare it with."""


@dataclass(frozen=True)
class Plan:
    """Everything that is fixed for a study of one model."""

    model: Model
    family: EngineFamily
    space: Space
    source: Path | None
    workload: Workload
    warmup_s: float
    tune: SampleSet
    held_out: SampleSet
    calibration: SampleSet | None
    tolerances: tuple[Tolerance, ...]
    objective: Objective
    constraints: tuple[Constraint, ...]
    datatypes: Mapping[str, str]
    directory: Path
    gpu: str | None = None
    build_time_limit_s: float = 1800.0
    build_memory_limit_bytes: int | None = None
    builder_options: Mapping[str, str] | None = None
    save_all_engines: bool = False

    def build_route(self, route: Route) -> Route:
        """The part of ``route`` that needs an engine of its own."""
        return route.without(knob.name for knob in self.space.knobs if knob.layer is Layer.SERVING)


class StudyLaboratory:
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
        self.plan = plan
        self.ledger = ledger
        self.stand = stand
        self._fresh_stand = fresh_stand
        self.budget = budget
        self.progress = progress
        self._config: ModelConfig = parse_config(plan.model.effective_config_text)
        self._engines: dict[str, Engine] = {}
        self.as_found = Candidate(plan.model.name, plan.model.content_hash, AS_FOUND, Route())
        self.as_found_served = True
        self.default_is_as_found = False
        """The default route comes down to the very files and config that are there: the two references are one."""
        self._default: Candidate | None = None
        self._noise: float | None = None

    # Candidates

    @property
    def default(self) -> Candidate:
        return self._default or self.as_found

    @default.setter
    def default(self, candidate: Candidate) -> None:
        self._default = candidate

    @property
    def noise(self) -> float:
        return self._noise if self._noise is not None else math.nan

    @noise.setter
    def noise(self, value: float) -> None:
        self._noise = value

    def candidate(self, route: Route) -> Candidate:
        if route.is_default and self.default_is_as_found:
            return self.as_found
        return Candidate(
            model=self.plan.model.name,
            model_hash=self.plan.model.content_hash,
            family=self.plan.family.name,
            route=route,
            build_route=self.plan.build_route(route),
        )

    def name_of(self, candidate: Candidate) -> str:
        """The private name under which a sandbox serves it."""
        return AS_FOUND_NAME if candidate.family == AS_FOUND else f"c_{candidate.id}"

    def remember(self, candidate: Candidate) -> None:
        """Writes down what a candidate's id stands for, once."""
        if self.ledger.get("candidate", candidate.id) is None:
            facts = {"route": candidate.route.text, "label": candidate.label, "engine": candidate.engine_id}
            self.ledger.append("candidate", candidate.id, facts)

    @property
    def output_datatypes(self) -> dict[str, str]:
        return {spec.name: spec.datatype for spec in self.plan.model.outputs}

    @property
    def screened_any(self) -> bool:
        return any(True for _ in self.ledger.records("screened"))

    # Build and deploy

    def build(self, candidate: Candidate) -> Engine | BuildFailure:
        """Candidates with one engine id share one build."""
        engine_id = candidate.engine_id
        if engine_id in self._engines:
            return self._engines[engine_id]
        known = self.ledger.load("build", engine_id, Engine) or self.ledger.load(
            "build_failure", engine_id, BuildFailure
        )
        if isinstance(known, BuildFailure) and not known.reason.transient:
            return known
        if isinstance(known, Engine) and all(path.exists() for path in known.files.values()):
            self._engines[engine_id] = known
            return known
        if not candidate.build_route.is_default:
            self.budget.spend_build()
        return self._build(candidate)

    def _build(self, candidate: Candidate) -> Engine | BuildFailure:
        plan, engine_id = self.plan, candidate.engine_id
        directory = plan.directory / "engines" / engine_id
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        cache = plan.directory / "cache"
        cache.mkdir(exist_ok=True)
        request = BuildRequest(
            engine_id=engine_id,
            model=plan.model,
            route=candidate.build_route,
            directory=directory,
            source=plan.source,
            time_limit_s=plan.build_time_limit_s,
            memory_limit_bytes=plan.build_memory_limit_bytes,
            gpu=plan.gpu,
            cache_directory=cache,
            shapes=request_shapes(plan.tune),
            options=plan.builder_options or {},
        )
        self._tell("build", engine=engine_id, route=candidate.build_route.text)
        try:
            built = plan.family.build(request, plan.calibration)
        except OSError as error:
            built = BuildFailure(
                engine_id, BuildFailureReason.NO_SPACE if error.errno == 28 else BuildFailureReason.OTHER, str(error)
            )
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        if isinstance(built, BuildFailure):
            shutil.rmtree(directory, ignore_errors=True)
            self.ledger.save("build_failure", engine_id, built)
        else:
            self.ledger.save("build", engine_id, built)
            self._engines[engine_id] = built
            self._tell(
                "built", engine=engine_id, route=candidate.build_route.text, build_s=built.build_s,
                size_bytes=built.size_bytes,
            )  # fmt: skip
        return built

    def config(self, candidate: Candidate, engine: Engine | None) -> ModelConfig:
        """The complete config that serves the candidate, still under the model's own name."""
        if candidate.family == AS_FOUND or engine is None:
            return self._config
        return apply_serving(self.plan.family.configure(self._config, engine, candidate.route), candidate.route)

    def deployment(self, candidate: Candidate, engine: Engine | None, *, name: str | None = None) -> Deployment:
        model = self.plan.model
        version = model.live_version
        if version is None:
            raise EnvironmentFailure("no version is served", where=model.directory, remedy="see `inspect`")
        files = model_files(model.directory, version.path, version.number)
        if candidate.family != AS_FOUND and engine is not None:
            files = {path: file for path, file in files.items() if not path.startswith(f"{version.number}/")}
            files |= {f"{version.number}/{inside}": file for inside, file in engine.files.items()}
        return Deployment(
            name=name or self.name_of(candidate),
            config_text=model.effective_config_text
            if candidate.family == AS_FOUND
            else print_config(self.config(candidate, engine)),
            files=files,
            candidate_id=candidate.id,
            version=version.number,
        )

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
        self._tell("screen", candidate=candidate.id, route=candidate.label)
        rejection = self._screen(candidate)
        if rejection is not None:
            self.reject(rejection)
        else:
            self.ledger.append("screened", candidate.id, {"route": candidate.label})
        return rejection

    def _screen(self, candidate: Candidate) -> Rejection | None:
        rejection = self.serve(self.stand, candidate)
        if rejection is not None:
            return rejection
        parity = self.validate(candidate, self.plan.tune)
        if not parity.passed:
            code = "defect" if parity.defects else "accuracy"
            return Rejection(candidate.id, Stage.VALIDATE, code, parity.reason)
        return self._check_constraints(candidate)

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

    def validate(self, candidate: Candidate, samples: SampleSet, *, stand: Stand | None = None) -> Parity:
        """Every sample through the server, several in flight. Recorded once per candidate and set."""
        key = f"{samples.name}:{candidate.id}"
        known = self.ledger.load("parity", key, Parity)
        if known is not None:
            return known
        stand = stand or self.stand
        answers = stand.answers(self.name_of(candidate), samples, self.plan.datatypes)
        parity = validate(candidate.id, samples, answers, self.plan.tolerances, self.output_datatypes)
        self.ledger.save("parity", key, parity)
        return parity

    def _check_constraints(self, candidate: Candidate) -> Rejection | None:
        engine = self._engines.get(candidate.engine_id)
        if not self.plan.constraints:
            return None
        measurement = self.measure(candidate, f"screen:{candidate.id}")
        for constraint in self.plan.constraints:
            problem = constraint.violation(measurement, engine)
            if problem is not None:
                return Rejection(candidate.id, Stage.CONSTRAINT, constraint.name, problem)
        return None

    # Measuring

    def measure(
        self,
        candidate: Candidate,
        key: str,
        *,
        stand: Stand | None = None,
        name: str | None = None,
        workload: Workload | None = None,
    ) -> Measurement:
        """One window, recorded under ``key``."""
        known = self.ledger.load("measurement", key, Measurement)
        if known is not None:
            return known
        stand = stand or self.stand
        window = stand.load(
            name or self.name_of(candidate), workload or self.plan.workload, candidate.id, warmup_s=self.plan.warmup_s
        )
        self.ledger.save("measurement", key, window.measurement)
        return window.measurement

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
        twin = TWIN_NAME if candidate.id == reference.id else None
        for arm in (reference, candidate):
            rejection = self.serve(stand, arm)
            if rejection is not None:
                self.reject(rejection)
                return rejection
        # ABBA: the order alternates, so that a linear drift cancels over two pairs.
        arms = [(reference, None, "reference"), (candidate, twin, "candidate")]
        if index % 2:
            arms.reverse()
        measured: dict[str, Measurement] = {}
        for arm, name, role in arms:
            measured[role] = self.measure(arm, f"{key}:{role}", stand=stand, name=name)
            if measured[role].failed and not stand.alive:
                stand.revive()
        pair = make_pair(measured["candidate"], measured["reference"], self.plan.objective, purpose, index)
        self.ledger.save("pair", key, pair)
        self._tell(
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
            stand.prepare(self.plan.held_out, self.plan.datatypes)
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
        facts = self.ledger.get("candidate", rejection.candidate_id) or {}
        self._tell(
            "rejected", candidate=rejection.candidate_id, route=facts.get("label", rejection.candidate_id),
            stage=rejection.stage.value, code=rejection.code, message=rejection.message,
        )  # fmt: skip

    def _tell(self, kind: str, **facts: Any) -> None:
        """Progress, with the time that is left."""
        self.progress(kind, **facts, spent_s=round(self.budget.spent.wall_s, 1), limit_s=self.budget.wall_s)

    def caveats_of(self, candidate: Candidate) -> tuple[str, ...]:
        """What its engine and its config say about themselves."""
        engine = self._engines.get(candidate.engine_id)
        if engine is None:
            return ()
        return (*engine.details.get("caveats", ()), *serving_caveats(self.config(candidate, engine)))

    def python_backends(self) -> set[str]:
        """Backends of this study's arms that this project's python-based ones stand in for."""
        used = {self._config.backend, self.plan.family.name}
        return used.intersection(self.stand.info.python_backends if self.stand.alive else ())

    # References

    def reference_answers(self, samples: SampleSet) -> Iterator[Answer | FailedAnswer]:
        """As-found, asked one request at a time: the answers that everything else is held against."""
        return self.stand.answers(AS_FOUND_NAME, samples, self.plan.datatypes, in_flight=1)

    def serves_the_same(self, one: Candidate, other: Candidate) -> bool:
        """Whether both come down to the same files under the same config."""
        mine, theirs = self.build(one), self.build(other) if other.family != AS_FOUND else None
        if isinstance(mine, BuildFailure) or isinstance(theirs, BuildFailure):
            return False
        first, second = self.deployment(one, mine, name="x"), self.deployment(other, theirs, name="x")
        same_files = {path: file.resolve() for path, file in first.files.items()} == {
            path: file.resolve() for path, file in second.files.items()
        }
        return same_files and bool(parse_config(first.config_text) == parse_config(second.config_text))

    def pin_with_twin(self, reference: Candidate) -> None:
        """Keeps the reference loaded, and loads a second copy of it for A/A pairs."""
        engine = self._engines.get(reference.engine_id)
        for name in (self.name_of(reference), TWIN_NAME):
            failure = self.stand.serve(self.deployment(reference, engine, name=name), pin=True)
            if failure is not None:
                raise EnvironmentFailure(
                    f"two copies of the reference cannot be loaded side by side: {failure.message}",
                    field=failure.code,
                    remedy="give the sandbox more memory",
                )

    def remove_engines_except(self, kept: Sequence[str]) -> None:
        """Losing engines go, unless all are to be kept. What was learnt of them stays in the ledger."""
        if self.plan.save_all_engines:
            return
        for directory in (self.plan.directory / "engines").glob("*"):
            if directory.name not in kept:
                shutil.rmtree(directory, ignore_errors=True)


def make_pair(candidate: Measurement, reference: Measurement, objective: Objective, purpose: str, index: int) -> Pair:
    """A pair is unusable when either window is, or when either arm completed nothing."""
    ratio = log_ratio(objective, reference, candidate)
    p99 = candidate.percentiles_us.get("p99"), reference.percentiles_us.get("p99")
    usable = candidate.usable and reference.usable and ratio is not None
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
    return ", ".join(f"{count}x {reason}" for reason, count in measurement.failures.items())


def request_shapes(samples: SampleSet) -> list[dict[str, tuple[int, ...]]]:
    distinct = {
        tuple(sorted((name, array.shape) for name, array in sample.inputs.items())) for sample in samples.samples
    }
    return [dict(shape) for shape in sorted(distinct)]
