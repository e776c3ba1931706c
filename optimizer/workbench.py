"""What is fixed for a study, and everything of a candidate that needs no running server: engine, config, deployment.

A build is asked for at most once an engine, and its outcome is in the ledger before it is used.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from optimizer.baseline import on_cpu
from optimizer.engines._base import BuildRequest, EngineFamily
from optimizer.engines.tensorrt.checks import same_engine
from optimizer.errors import EnvironmentFailure
from optimizer.ledger import Ledger
from optimizer.progress import Progress
from optimizer.records.deployment import Deployment
from optimizer.records.engine import BuildFailure, BuildFailureReason, Engine
from optimizer.records.measurement import Workload
from optimizer.records.model import Model
from optimizer.records.objective import Constraint, Objective
from optimizer.records.parity import Tolerance
from optimizer.records.route import AS_FOUND, Candidate, Layer, Route
from optimizer.records.samples import SampleSet
from optimizer.routes.serving import apply_serving, serving_caveats
from optimizer.routes.space import Space
from optimizer.search.budget import Budget
from optimizer.stand import model_files
from optimizer.triton.protobuf import parse_config, print_config

if TYPE_CHECKING:
    from optimizer.triton.protobuf import ModelConfig

AS_FOUND_NAME = "as_found"


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

    @property
    def output_datatypes(self) -> dict[str, str]:
        return {spec.name: spec.datatype for spec in self.model.outputs}


class Workbench:
    """Candidates of one study, from route to deployment."""

    def __init__(self, plan: Plan, ledger: Ledger, budget: Budget, progress: Progress) -> None:
        self.plan = plan
        self.ledger = ledger
        self.budget = budget
        self.progress = progress
        self._config: ModelConfig = parse_config(plan.model.effective_config_text)
        self._engines: dict[str, Engine] = {}
        self.as_found = Candidate(plan.model.name, plan.model.content_hash, AS_FOUND, Route())
        self.as_found_on_cpu = False
        """As-found is served on the CPU although it is meant for a GPU: it is shown, and judges nothing."""
        self.default_is_as_found = False
        """The default route comes down to the very files and config that are there: the two references are one."""

    # Candidates

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

    # Engines

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
        self.progress("build", engine=engine_id, route=candidate.build_route.text)
        try:
            built = plan.family.build(request, plan.calibration)
        except OSError as error:
            built = BuildFailure(
                engine_id, BuildFailureReason.NO_SPACE if error.errno == 28 else BuildFailureReason.OTHER, str(error)
            )
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        if plan.gpu is not None:
            self.budget.spend_gpu(built.build_s)
        if isinstance(built, BuildFailure):
            shutil.rmtree(directory, ignore_errors=True)
            self.ledger.save("build_failure", engine_id, built)
        else:
            self.ledger.save("build", engine_id, built)
            self._engines[engine_id] = built
        return built

    def built(self, candidate: Candidate) -> Engine | None:
        """Its engine, from an earlier run too; ``None`` for as-found and where it does not build."""
        built = self.build(candidate) if candidate.family != AS_FOUND else None
        return built if isinstance(built, Engine) else None

    def engine_of(self, candidate: Candidate) -> Engine | None:
        """Where it has been built."""
        return self._engines.get(candidate.engine_id)

    # Configs and deployments

    def config(self, candidate: Candidate, engine: Engine | None) -> ModelConfig:
        """The complete config that serves the candidate, still under the model's own name."""
        if candidate.family == AS_FOUND or engine is None:
            return on_cpu(self._config) if self.as_found_on_cpu else self._config
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
        unchanged = candidate.family == AS_FOUND and not self.as_found_on_cpu
        return Deployment(
            name=name or self.name_of(candidate),
            config_text=model.effective_config_text if unchanged else print_config(self.config(candidate, engine)),
            files=files,
            candidate_id=candidate.id,
            version=version.number,
        )

    def caveats_of(self, candidate: Candidate) -> Iterator[str]:
        """What its engine and its config say about themselves."""
        engine = self.engine_of(candidate)
        if engine is None:
            return
        yield from engine.details.get("caveats", ())
        ranges = engine.details.get("ranges_from_workload", ())
        if ranges:
            yield (
                f"the engine accepts of {', '.join(map(str, ranges))} only the sizes that the given samples have: "
                "state the ranges of free dimensions that production sends with --shape"
            )
        yield from serving_caveats(self.config(candidate, engine))

    # Sameness

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

    def twin_of(self, candidate: Candidate, engine: Engine) -> str | None:
        """Label of an earlier candidate that is really the same: the same engine, though built twice, served alike."""
        config = self.config(candidate, engine)
        for entry in self.ledger.records("candidate"):
            earlier = self.candidate(Route.parse(str(entry.data["route"])))
            if entry.key in (candidate.id, AS_FOUND) or earlier.id != entry.key:
                continue
            rejection = self.ledger.get("rejection", entry.key)
            built = self._engines.get(earlier.engine_id) or self.ledger.load("build", earlier.engine_id, Engine)
            if built is None or (rejection is not None and rejection["code"] == SAME_ENGINE):
                continue
            if same_engine(built, engine) and bool(self.config(earlier, built) == config):
                return str(entry.data["label"])
        return None


SAME_ENGINE = "same_engine"


def request_shapes(samples: SampleSet) -> list[dict[str, tuple[int, ...]]]:
    distinct = {
        tuple(sorted((name, array.shape) for name, array in sample.inputs.items())) for sample in samples.samples
    }
    return [dict(shape) for shape in sorted(distinct)]
