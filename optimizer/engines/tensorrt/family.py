"""The TensorRT family: knobs, builds, and the config that serves a plan.

Every call of TensorRT happens in a worker process; this process never imports it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optimizer.engines._base import BuildRequest
from optimizer.engines.tensorrt import knobs as knob_tables
from optimizer.engines.tensorrt.capabilities import Capabilities
from optimizer.engines.tensorrt.profiles import (
    ProfileRefusal,
    default_opt_batch,
    parse_ranges,
    parse_values,
    plan_profiles,
)
from optimizer.engines.tensorrt.refusals import format_refusal, refusals
from optimizer.engines.tensorrt.rewriting import make_source, remove_source
from optimizer.engines.tensorrt.source import read_source, separate_dimensions
from optimizer.engines.tensorrt.supervisor import WorkerFailure, WorkerPlace, run_worker
from optimizer.errors import InputError
from optimizer.records.engine import BuildFailure, BuildFailureReason, Engine
from optimizer.records.model import Model
from optimizer.records.route import Knob, Route
from optimizer.records.samples import SampleSet

if TYPE_CHECKING:
    from optimizer.triton.protobuf import ModelConfig

PLAN = "model.plan"
PROBE_LIMIT_S = 120.0


class TensorRTFamily:
    """``python`` is the interpreter that has the TensorRT which will serve the plans, ``module`` its module's name.

    ``options`` understood here and in ``BuildRequest.options``: ``range.<input>.<dim>`` = ``min:opt:max`` of a free
    dimension, ``values.<input>`` = the same of a shape tensor's values (``1,2:1,2:4,8``). ``gpus`` are pinned in the
    config where it names none. ``modelopt_python`` is the interpreter that has NVIDIA ModelOpt, where there is one: it
    adds precisions (AutoCast, INT8 and FP8 quantization). With ``image`` builds happen in containers of it, by its
    ``python``. ``version_compatible`` is then the default of that knob: for servers with a newer TensorRT.
    """

    name = "tensorrt"

    def __init__(
        self,
        *,
        python: Path | str | None = None,
        module: str = "tensorrt",
        python_path: str = "",
        source: Path | None = None,
        gpu: str | None = None,
        gpus: Sequence[int] = (0,),
        shapes: Sequence[Mapping[str, tuple[int, ...]]] = (),
        options: Mapping[str, str] | None = None,
        modelopt_python: Path | str | None = None,
        image: str | None = None,
        version_compatible: bool = False,
    ) -> None:
        self.module = module
        self.source = source
        self.gpus = tuple(gpus)
        self.shapes = tuple(shapes)
        self.options = dict(options or {})
        self.modelopt_python = modelopt_python
        self.version_compatible = version_compatible
        self._place = WorkerPlace(python or ("python3" if image else sys.executable), python_path, gpu, image=image)
        self._probed: Capabilities | WorkerFailure | None = None

    def available(self) -> str | None:
        have = self._probe()
        if isinstance(have, WorkerFailure):
            return (
                f"{have.message}. Install the TensorRT that Triton's image has, or name its interpreter with "
                "--builder-python"
            )
        return None if have.live else f"{have.builder} cannot build here: {have.live_error}"

    def capabilities(self) -> Capabilities | None:
        """What the builder has; ``None`` when it cannot be imported."""
        have = self._probe()
        return None if isinstance(have, WorkerFailure) else have

    def all_build_routes(self) -> str:
        """The tuner's own JSON of compiler knobs; ``""`` where there is no tuner."""
        have = self.capabilities()
        return have.all_build_routes if have else ""

    def facts(self) -> Mapping[str, str]:
        have = self.capabilities()
        if have is None:
            return {}
        facts = {"tensorrt": have.version, "builder": have.builder}
        if self._place.image is not None:
            facts["image"] = self._place.image
        if self.version_compatible:
            facts["version_compatible"] = "on"
        if have.all_build_routes:
            with contextlib.suppress(ValueError, AttributeError):
                facts["tuner"] = str(json.loads(have.all_build_routes).get("tuner_version", "unknown"))
        facts.update({f"env.{key}": value for key, value in have.environment.items()})
        facts.update({f"builder_gpu.{key}": value for key, value in have.gpu.items()})
        return facts

    def refuses(self, model: Model, source: Path | None = None) -> str | None:
        chosen = source or self.source
        refusal = format_refusal(model, chosen is not None)
        if refusal is not None:
            return refusal
        try:
            onnx = read_source(self._onnx_path(model, chosen))
        except InputError as error:
            return error.problem
        return next(refusals(model, onnx, self.capabilities()), None)

    def knobs(self, model: Model) -> tuple[Knob, ...]:
        have = self.capabilities()
        if have is None:
            return ()
        try:
            onnx = read_source(self._onnx_path(model, self.source))
        except InputError:
            onnx = None
        return knob_tables.list_knobs(
            have,
            model,
            onnx,
            preferred=_preferred_sizes(model),
            shapes=[dict(item) for item in self.shapes],
            with_modelopt=self.modelopt_python is not None,
        )

    def build(self, request: BuildRequest, calibration: SampleSet | None = None) -> Engine | BuildFailure:
        """``request.route`` holds the build layers only; what no own knob claims is the tuner's build route."""
        try:
            prepared = self._prepare(request)
        except _Refused as refusal:
            return BuildFailure(request.engine_id, refusal.reason, str(refusal))
        try:
            result = self._build(request, prepared, calibration)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = BuildFailureReason.NO_SPACE if full else BuildFailureReason.OTHER
            result = BuildFailure(request.engine_id, reason, f"{error.filename or request.directory}: {error.strerror}")
        if isinstance(result, BuildFailure):
            (request.directory / PLAN).unlink(missing_ok=True)
            return result
        mismatch = self._first_mismatch(request.model, result)
        if mismatch is not None:
            return BuildFailure(request.engine_id, BuildFailureReason.INVALID_ENGINE, mismatch, build_s=result.build_s)
        return result

    def configure(self, config: ModelConfig, engine: Engine, route: Route) -> ModelConfig:
        from optimizer.engines.tensorrt.configuration import configure

        graphs = route.get("cuda_graphs")
        return configure(
            config, engine.details, gpus=self.gpus, graphs=None if graphs is None else graphs in ("on", "true")
        )

    # -- how -----------------------------------------------------------------------------------------------------

    def _probe(self) -> Capabilities | WorkerFailure:
        if self._probed is None:
            with tempfile.TemporaryDirectory(prefix="tensorrt-probe-") as directory:
                answer = run_worker(
                    self._place,
                    {"action": "probe", "module": self.module},
                    Path(directory),
                    time_limit_s=PROBE_LIMIT_S,
                )
            if isinstance(answer, WorkerFailure):
                self._probed = answer
            else:
                self._probed = Capabilities.from_json(answer.document["capabilities"])
        return self._probed

    def _onnx_path(self, model: Model, source: Path | None) -> Path:
        if source is not None:
            return source
        live = model.live_version
        if live is None or live.file is None:
            raise InputError("no ONNX file", where=model.directory, remedy="name one with --onnx")
        return live.file

    def _prepare(self, request: BuildRequest) -> _Prepared:
        have = self._probe()
        if isinstance(have, WorkerFailure):
            raise _Refused(BuildFailureReason.NOT_AVAILABLE, have.message)
        chosen = request.source or self.source
        refusal = self.refuses(request.model, chosen)
        if refusal is not None:
            raise _Refused(BuildFailureReason.REFUSED, refusal)
        onnx = read_source(self._onnx_path(request.model, chosen))
        try:
            route = knob_tables.split(request.route)
        except ValueError as error:
            raise _Refused(BuildFailureReason.REFUSED, f"opt_batch or max_batch_size: {error}") from None
        if not route.compiler.is_default and (not have.build_route or (have.live and not have.all_build_routes)):
            raise _Refused(
                BuildFailureReason.NOT_AVAILABLE, f"{have.builder} has no build routes: {route.compiler.text}"
            )
        options = {**self.options, **request.options}
        preferred = _preferred_sizes(request.model)
        try:
            plan = plan_profiles(
                request.model,
                onnx,
                opt_batch=default_opt_batch(request.model, preferred) if route.opt_batch is None else route.opt_batch,
                max_batch=route.max_batch,
                mode=route.profiles,
                ranges=parse_ranges(options),
                shapes=tuple(request.shapes) or self.shapes,
            )
            values = parse_values(options)
        except ProfileRefusal as error:
            raise _Refused(BuildFailureReason.REFUSED, str(error)) from None
        document = {
            "action": "build",
            "module": self.module,
            "onnx": str(onnx.path),
            "plan": str(request.directory / PLAN),
            "inspection": str(request.directory / "layers.json"),
            "outputs": [spec.name for spec in request.model.outputs],
            "precision": route.precision,
            "quantized": list(onnx.quantized),
            "keep_fp32": list(knob_tables.OVERFLOW_OPERATORS) if route.keep_fp32 else [],
            "settings": {**({"version_compatible": "on"} if self.version_compatible else {}), **route.settings},
            "build_route": route.compiler.text,
            "profiles": plan.as_json(),
            "values": values,
            "timing_cache_directory": str(request.cache_directory) if request.cache_directory else None,
        }
        observed = [
            *(tuple(request.shapes) or self.shapes),
            *({name: triple[which] for name, triple in item.items()} for item in plan.profiles for which in range(3)),
        ]
        return _Prepared(have, document, plan.from_workload, separate_dimensions(onnx, observed))

    def _build(
        self, request: BuildRequest, prepared: _Prepared, calibration: SampleSet | None
    ) -> Engine | BuildFailure:
        document = dict(prepared.document)
        try:
            spent = make_source(
                document,
                request,
                strong=not prepared.have.weak_typing,
                dimension_names=prepared.dimension_names,
                modelopt_python=self.modelopt_python,
                calibration=calibration,
            )
            if isinstance(spent, WorkerFailure):
                return _failure(request, spent, 0.0)
            place = self._place if request.gpu is None else replace(self._place, gpu=request.gpu)
            answer = run_worker(
                place,
                document,
                request.directory,
                time_limit_s=max(1.0, request.time_limit_s - spent),
                memory_limit_bytes=request.memory_limit_bytes,
            )
        finally:
            remove_source(request)
        if isinstance(answer, WorkerFailure):
            return _failure(request, answer, spent)
        return _engine(request, prepared, answer.document, spent, answer.peak_memory_bytes)

    def _first_mismatch(self, model: Model, engine: Engine) -> str | None:
        from optimizer.engines.tensorrt.checks import check_engine
        from optimizer.triton.protobuf import parse_config

        config = parse_config(model.effective_config_text, where=model.config_path or model.directory)
        found = check_engine(engine.details, self.configure(config, engine, Route()))
        return f"{found[0].code}: {found[0].message}" if found else None


@dataclass(frozen=True)
class _Prepared:
    have: Capabilities
    document: Mapping[str, Any]
    from_workload: tuple[str, ...]
    dimension_names: Mapping[str, Mapping[int, str]]


class _Refused(Exception):
    def __init__(self, reason: BuildFailureReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def _failure(request: BuildRequest, failure: WorkerFailure, spent: float) -> BuildFailure:
    return BuildFailure(
        engine_id=request.engine_id,
        reason=failure.reason,
        message=failure.message,
        log_excerpt=failure.log_excerpt,
        build_s=failure.seconds + spent,
        exit_signal=failure.exit_signal,
    )


def _engine(request: BuildRequest, prepared: _Prepared, document: Mapping[str, Any], spent: float, peak: int) -> Engine:
    described = dict(document["engine"])
    memory = described.pop("device_memory_bytes", None)
    return Engine(
        engine_id=request.engine_id,
        family="tensorrt",
        files={PLAN: request.directory / PLAN},
        sha256=str(document["sha256"]),
        size_bytes=int(document["size_bytes"]),
        build_s=float(document["build_s"]) + spent,
        builder=str(document["builder"]),
        device_memory_bytes=memory,
        details={
            **described,
            "taken": document["taken"],
            "warnings": document["warnings"],
            "timing_cache": document["timing_cache"],
            "removed_outputs": document["removed_outputs"],
            "ranges_from_workload": list(prepared.from_workload),
            "build_peak_memory_bytes": peak or None,
            "loads_in_triton": prepared.have.runtime_for_triton,
            "gpu": dict(prepared.have.gpu),
        },
    )


def _preferred_sizes(model: Model) -> tuple[int, ...]:
    if not model.dynamic_batching:
        return ()
    from optimizer.triton.protobuf import parse_config

    config = parse_config(model.effective_config_text, where=model.config_path or model.directory)
    return tuple(config.dynamic_batching.preferred_batch_size)
