"""From a repository, a model's name and settings to everything a study needs, checked before anything starts."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optimizer.accuracy.inputs import load_samples
from optimizer.accuracy.splitting import check_disjoint, split
from optimizer.accuracy.synthetic import parse_int_range, parse_shape, synthetic_samples
from optimizer.accuracy.tolerances import check_tolerances, parse_tolerances
from optimizer.config import Settings
from optimizer.engines import families
from optimizer.engines._base import EngineFamily, HasBuildRoutes
from optimizer.errors import InputError
from optimizer.given_files import given_facts, refuse_changed_files
from optimizer.gpu import Gpu, list_gpus, select
from optimizer.load.stand_ins import with_stand_ins
from optimizer.placement import place_of_builds, refuse_mismatch
from optimizer.records.environment import Fingerprint
from optimizer.records.measurement import Arrival, Workload
from optimizer.records.model import Model
from optimizer.records.objective import parse_constraint, parse_objective
from optimizer.records.route import Route
from optimizer.records.samples import SampleSet
from optimizer.repository.reader import read_model
from optimizer.routes.expansion import expand, mixed_second_phase
from optimizer.routes.knobs import KnobTable, load_knobs, parse_json, searchable
from optimizer.routes.space import Space, default_space, expression_for, permitted, space_of
from optimizer.sandbox import launchers
from optimizer.sandbox._base import Launcher, SandboxOptions
from optimizer.search.choose import Expansions
from optimizer.workbench import Plan, request_shapes

NEEDED_FOR_A_FINAL_CHECK = 2
"""Fewer samples than this cannot be split into two sets."""


@dataclass(frozen=True)
class Preparation:
    plan: Plan
    settings: Settings
    repository: Path
    launcher: Launcher
    options: SandboxOptions
    fingerprint: Fingerprint
    expansions: Expansions | None
    """The route expression in trtexec's orders; ``None`` where the default space is searched."""
    hints: tuple[Route, ...]
    why: Mapping[str, str]
    """Choices that were made for the user, by subject."""
    gpu: Gpu | None = None


def references_file(directory: Path, name: str = "held_out") -> Path:
    """Where a study keeps the expected outputs of a set; a write-back is tested against the held-out samples'."""
    return directory / "references" / f"{name}.npz"


def prepare(repository: Path, name: str, settings: Settings, directory: Path) -> Preparation:
    """Reads and checks everything; starts and writes nothing.

    Raises :class:`InputError` for what the user must correct, :class:`EnvironmentFailure` for what is missing here.
    """
    # Builders and servers run elsewhere than here, and a study is applied from anywhere: they get absolute paths.
    directory, repository = directory.resolve(), repository.resolve()
    model = read_model(repository, name, config_name=settings.config_name)
    refuse_blocked(model)
    gpu = chosen_gpu(settings)
    tolerances = parse_tolerances(settings.tolerance)
    check_tolerances(tolerances, model.outputs)
    tune, held_out, calibration = sample_sets(model, settings)
    launcher, why_launcher = choose_launcher(settings)
    place = place_of_builds(settings, launcher)
    if settings.load.trace is not None and settings.load.arrival == "trace":
        tune, held_out = with_stand_ins(settings.load.trace, tune, held_out)
    family, why_family = families.choose(
        settings.builder.family, model, source=settings.builder.onnx, gpu=gpu is not None,
        builder_python=place.python, module=settings.builder.module, gpu_id=gpu_id(gpu),
        shapes=request_shapes(tune), builder_image=place.image,
        version_compatible=settings.builder.version_compatible,
    )  # fmt: skip
    if family.name == families.TENSORRT:
        refuse_mismatch(family.facts(), launcher.facts(), version_compatible=settings.builder.version_compatible)
        why_family = f"{why_family}; built {place.why}"
    space, why_space, expansions = make_space(model, family, settings, gpu is not None)
    limit_gb = settings.builder.memory_limit_gb
    plan = Plan(
        model=model,
        family=family,
        space=space,
        source=settings.builder.onnx,
        workload=workload_of(settings),
        warmup_s=settings.load.warmup_s,
        tune=tune,
        held_out=held_out,
        calibration=calibration,
        tolerances=tolerances,
        objective=parse_objective(settings.judge.objective),
        constraints=tuple(parse_constraint(text) for text in settings.judge.constraints),
        datatypes={spec.name: spec.datatype for spec in model.inputs},
        directory=directory,
        gpu=gpu_id(gpu),
        build_time_limit_s=settings.builder.time_limit_s,
        build_memory_limit_bytes=int(limit_gb * 1e9) if limit_gb else None,
        save_all_engines=settings.builder.save_all_engines,
    )
    return Preparation(
        plan=plan,
        settings=settings,
        repository=repository.resolve(),
        launcher=launcher,
        options=sandbox_options(settings, directory, gpu),
        fingerprint=fingerprint_of(plan, launcher, family, gpu, given_facts(settings)),
        expansions=expansions,
        hints=hints_of(settings),
        why={"sandbox": why_launcher, "family": why_family, "space": why_space},
        gpu=gpu,
    )


def refuse_blocked(model: Model) -> None:
    fatal = [blocker for blocker in model.blockers if blocker.fatal]
    if fatal:
        raise InputError(
            "cannot be tuned: " + "; ".join(blocker.reason for blocker in fatal),
            where=model.config_path or model.directory,
            field=model.name,
            remedy=fatal[0].remedy,
        )


def refuse_changed(preparation: Preparation) -> None:
    """Candidates are served from the repository's own files and built from the ONNX file given, and every window reads
    the trace. Had those changed meanwhile, some arms would have been measured on the old ones and some on the new:
    raises :class:`InputError`."""
    model = preparation.plan.model
    now = read_model(preparation.repository, model.name, config_name=preparation.settings.config_name)
    if now.content_hash != model.content_hash:
        raise InputError(
            "the model was changed while it was measured: what was measured before and after cannot be compared",
            where=model.directory,
            remedy="start a new study, and leave the model alone until it ends",
        )
    refuse_changed_files(preparation.settings, preparation.fingerprint.facts)


def chosen_gpu(settings: Settings) -> Gpu | None:
    """The GPU that --gpu names, or the first; ``None`` on a machine without one."""
    if settings.gpu is None and not list_gpus():
        return None
    return select(settings.gpu)


def gpu_id(gpu: Gpu | None) -> str | None:
    """How child processes are told which one: by UUID, since an index depends on what is visible."""
    if gpu is None:
        return None
    return gpu.uuid or str(gpu.index)


def random_samples(model: Model, settings: Settings) -> SampleSet:
    """Synthetic samples of the shapes and integer ranges that the settings give."""
    inputs = settings.inputs
    return synthetic_samples(
        model, inputs.synthetic_count, inputs.seed,
        shapes=dict(parse_shape(text) for text in inputs.shapes),
        int_ranges=dict(parse_int_range(text) for text in inputs.int_ranges),
    )  # fmt: skip


def sample_sets(model: Model, settings: Settings) -> tuple[SampleSet, SampleSet, SampleSet | None]:
    """``tune``, ``held_out`` and, where given, calibration: disjoint by content."""
    inputs = settings.inputs
    if inputs.file is None:
        if inputs.held_out_file is not None:
            raise InputError("--held-out without --inputs", field="inputs.held_out_file", remedy="give both")
        everything = random_samples(model, settings)
    else:
        everything = load_samples(inputs.file, model, name="tune")
    if inputs.held_out_file is not None:
        tune, held_out = everything, load_samples(inputs.held_out_file, model, name="held_out")
    else:
        if len(everything) < NEEDED_FOR_A_FINAL_CHECK:
            raise InputError(
                f"{len(everything)} sample cannot be split into a set for tuning and one for the final check",
                where=inputs.file,
                remedy="give more samples, or a second file with --held-out",
            )
        tune, held_out = split(everything, inputs.held_out_fraction, inputs.seed)
    sets = [tune, held_out]
    calibration = None
    if inputs.calibration_file is not None:
        calibration = load_samples(inputs.calibration_file, model, name="calibration")
        sets.append(calibration)
    check_disjoint(*sets)
    return tune, held_out, calibration


def choose_launcher(settings: Settings) -> tuple[Launcher, str]:
    sandbox = settings.sandbox
    extra = {
        key: str(value)
        for key, value in (
            ("python", sandbox.python), ("image", sandbox.image), ("url", sandbox.url),
            ("repository", sandbox.repository),
        )
        if value is not None
    }  # fmt: skip
    for text in sandbox.options:
        key, separator, value = text.partition("=")
        if not separator:
            raise InputError(f"{text!r} is no KEY=VALUE", field="sandbox.options", remedy="write shm_size=2g")
        extra[key.strip()] = value.strip()
    if sandbox.launcher == "docker" or (sandbox.launcher == "auto" and sandbox.image is not None):
        # Regions of the load generator are files of this host.
        if settings.load.shared_memory:
            extra.setdefault("ipc", "host")
        if settings.builder.version_compatible:
            extra.setdefault("version_compatible", "on")
    elif sandbox.launcher == "process" and settings.builder.version_compatible:
        extra.setdefault("version_compatible", "on")
    return launchers.choose(sandbox.launcher, **extra)


def sandbox_options(settings: Settings, directory: Path, gpu: Gpu | None) -> SandboxOptions:
    limit_gb = settings.sandbox.memory_limit_gb
    return SandboxOptions(
        workdir=directory / "sandbox",
        ready_timeout_s=settings.sandbox.ready_timeout_s,
        load_timeout_s=settings.sandbox.load_timeout_s,
        gpu=gpu_id(gpu),
        memory_limit_bytes=int(limit_gb * 1e9) if limit_gb else None,
        study_id=hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:12],
    )


def workload_of(settings: Settings) -> Workload:
    load = settings.load
    return Workload(
        arrival=Arrival(load.arrival),
        concurrency=load.concurrency[0],
        rate_per_s=load.rate_per_s,
        duration_s=load.duration_s,
        seed=settings.inputs.seed,
        trace=_text(load.trace),
    )


def make_space(
    model: Model, family: EngineFamily, settings: Settings, gpu: bool
) -> tuple[Space, str, Expansions | None]:
    """The joint space, why it is what it is, and the route expression in trtexec's orders where there is one."""
    cores = len(os.sched_getaffinity(0))
    search = settings.search
    compiler = compiler_knobs(family, settings)
    if search.routes is None:
        space, why = default_space(
            model, family, gpu=gpu, cores=cores, compiler=searchable(compiler) if compiler else (),
            layers=search.layers, limit=search.max_candidates,
        )  # fmt: skip
        return space, why, None
    space, why = space_of(
        search.routes, model, family, gpu=gpu, cores=cores, compiler=compiler or (), limit=search.max_candidates
    )
    expression = expression_for(search.routes, model, family, gpu=gpu, cores=cores, compiler=compiler or ())
    expansions = Expansions(
        fast=lambda: permitted(expand(expression, "fast"), space),
        full=lambda: permitted(expand(expression, "full"), space),
        combine=lambda names: permitted(mixed_second_phase(expression, names), space),
    )
    return space, why, expansions


def compiler_knobs(family: EngineFamily, settings: Settings) -> KnobTable | None:
    """Build routes: of the TensorRT that builds, or of the file that the user names; ``None`` where there are none."""
    if settings.search.knobs_from is not None:
        return load_knobs(settings.search.knobs_from)
    text = family.all_build_routes() if isinstance(family, HasBuildRoutes) else ""
    return parse_json(text) if text else None


def hints_of(settings: Settings) -> tuple[Route, ...]:
    """Routes of an earlier study, best first: they order the candidates and score nothing."""
    if settings.search.hints is None:
        return ()
    from optimizer.summary import study_document

    rows = study_document(settings.search.hints)["candidates"]
    rated = [row for row in rows if row["state"] not in ("rejected", "reference") and row["race_ratio"] is not None]
    rated.sort(key=lambda row: (row["state"] != "winner", row["state"] != "finalist", -row["race_ratio"]))
    return tuple(Route.parse(row["route"]) for row in rated)


def fingerprint_of(
    plan: Plan, launcher: Launcher, family: EngineFamily, gpu: Gpu | None, given: Mapping[str, str]
) -> Fingerprint:
    """``given``: facts of the files that the user gives beside the model."""
    shapes = sorted(
        {
            json.dumps(sorted((name, list(array.shape)) for name, array in sample.inputs.items()))
            for sample in (*plan.tune.samples, *plan.held_out.samples)
        }
    )
    facts = {
        "cpu": cpu_name(),
        "machine": platform.machine(),
        "workload": plan.workload.label,
        **given,
        **(gpu.facts() if gpu is not None else {}),
        "family": family.name,
        "sandbox": launcher.name,
        **{f"sandbox_{name}": value for name, value in launcher.facts().items()},
        **{f"build_{name}": value for name, value in family.facts().items()},
    }
    for name in ("TRT_BYPASS_BUILD_ROUTE_WHITELIST", "__LUNOWUD"):
        if name in os.environ:
            facts[f"env_{name}"] = os.environ[name]
    return Fingerprint(plan.model.content_hash, hashlib.sha256("\n".join(shapes).encode()).hexdigest(), facts)


def cpu_name() -> str:
    """As the fingerprint has it."""
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _text(value: object) -> str | None:
    return None if value is None else str(value)
