"""Engine families by name, and the choice between them.

``unchanged`` has no knobs and builds nothing: it lets Triton's serving knobs be tuned for models of any backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from optimizer.engines import onnx_files
from optimizer.engines._base import BuildRequest, EngineFamily
from optimizer.errors import EnvironmentFailure, InputError
from optimizer.records.engine import BuildFailure, BuildFailureReason, Engine
from optimizer.records.model import Model, ModelFormat
from optimizer.records.route import Knob, Route
from optimizer.records.samples import SampleSet

if TYPE_CHECKING:
    from optimizer.triton.protobuf import ModelConfig

AUTO = "auto"
TENSORRT = "tensorrt"
ONNXRUNTIME = "onnxruntime"
UNCHANGED = "unchanged"
NAMES = (TENSORRT, ONNXRUNTIME, UNCHANGED)


class UnchangedFamily:
    """The live version's files as they are, whatever serves them."""

    name = UNCHANGED

    def available(self) -> str | None:
        return None

    def facts(self) -> Mapping[str, str]:
        return {}

    def refuses(self, model: Model, source: Path | None = None) -> str | None:
        if source is not None:
            return f"{source}: this family serves the model as it is; it takes no source"
        if model.format is ModelFormat.ENSEMBLE or model.ensemble_members:
            return "an ensemble has nothing of its own to serve: tune its members"
        version = model.live_version
        if version is None or version.file is None:
            return "no version with a model file is served"
        return None

    def knobs(self, model: Model) -> tuple[Knob, ...]:  # noqa: ARG002
        return ()

    def build(self, request: BuildRequest, calibration: SampleSet | None = None) -> Engine | BuildFailure:  # noqa: ARG002
        reason = self.refuses(request.model)
        version = request.model.live_version
        if reason or version is None:
            return BuildFailure(request.engine_id, BuildFailureReason.REFUSED, reason or "no version is served")
        files = {path.name: path for path in sorted(version.path.iterdir())}
        return Engine(
            engine_id=request.engine_id,
            family=self.name,
            files=files,
            sha256=onnx_files.content_hash(files),
            size_bytes=onnx_files.total_bytes(files),
            build_s=0.0,
            builder="none: the files as found",
            details={"as_found": True},
        )

    def configure(self, config: ModelConfig, engine: Engine, route: Route) -> ModelConfig:  # noqa: ARG002
        changed = type(config)()
        changed.CopyFrom(config)
        return changed


def family(name: str, *, gpu: bool = False, cores: int | None = None) -> EngineFamily:
    """The family that ``--family`` names. ``gpu`` and ``cores`` describe the serving machine.

    Raises :class:`InputError` for an unknown name.
    """
    if name == ONNXRUNTIME:
        from optimizer.engines.onnxruntime import OnnxRuntimeFamily

        return OnnxRuntimeFamily(gpu=gpu, cores=cores)
    if name == TENSORRT:
        return _tensorrt()
    if name == UNCHANGED:
        return UnchangedFamily()
    raise InputError(
        f"unknown engine family {name!r}", field="--family", remedy=f"choose one of {AUTO}, {', '.join(NAMES)}"
    )


def choose(
    name: str, model: Model, *, source: Path | None = None, gpu: bool = False, cores: int | None = None
) -> tuple[EngineFamily, str]:
    """The family for ``model`` and why. ``auto`` takes TensorRT where there is a GPU and an ONNX source, else ONNX
    Runtime for ONNX models, else ``unchanged``.

    Raises :class:`InputError` where the model cannot be served by the family named, or by none, and
    :class:`EnvironmentFailure` where the family named cannot build here.
    """
    if name != AUTO:
        chosen = family(name, gpu=gpu, cores=cores)
        missing = chosen.available()
        if missing:
            raise EnvironmentFailure(missing, field="--family", remedy="install it, or choose another family")
        refusal = chosen.refuses(model, source)
        if refusal:
            raise InputError(refusal, where=model.directory, field="--family", remedy="choose another family")
        return chosen, f"{name} was asked for"

    against: list[str] = []
    for candidate in NAMES:
        reason = _against(candidate, model, source, gpu=gpu, cores=cores)
        if reason is None:
            chosen = family(candidate, gpu=gpu, cores=cores)
            return chosen, "; ".join([*against, candidate + _FOR[candidate]])
        against.append(f"not {candidate}: {reason}")
    raise InputError(
        "no engine family can serve this model: " + "; ".join(against),
        where=model.directory,
        remedy="give an ONNX source with --onnx, or leave the model out",
    )


_FOR = {
    TENSORRT: ": a GPU and a source that TensorRT can build from",
    ONNXRUNTIME: ": an ONNX model",
    UNCHANGED: ": serving knobs only",
}


def _against(name: str, model: Model, source: Path | None, *, gpu: bool, cores: int | None) -> str | None:
    if name == TENSORRT and not gpu:
        return "no GPU"
    try:
        candidate = family(name, gpu=gpu, cores=cores)
    except EnvironmentFailure as error:
        return error.problem
    return candidate.available() or candidate.refuses(model, source)


def _tensorrt() -> EngineFamily:
    try:
        from optimizer.engines.tensorrt import TensorRTFamily
    except ImportError as error:
        raise EnvironmentFailure(
            f"the tensorrt family cannot be imported: {error}",
            remedy="install the extra: pip install 'triton-optimizer[tensorrt]'",
        ) from None
    made: EngineFamily = TensorRTFamily()
    return made
