"""Engine families by name, and the choice between them.

``unchanged`` has no knobs and builds nothing: it lets Triton's serving knobs be tuned for models of any backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
PROVENANCE = "optimizer.json"
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
        # An earlier write-back's provenance belongs to that version, not to the model.
        files = {path.name: path for path in sorted(version.path.iterdir()) if path.name != PROVENANCE}
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


def family(
    name: str,
    *,
    source: Path | None = None,
    gpu: bool = False,
    cores: int | None = None,
    builder_python: Path | str | None = None,
    module: str | None = None,
    gpu_id: str | None = None,
    shapes: Sequence[Mapping[str, tuple[int, ...]]] = (),
    builder_image: str | None = None,
    version_compatible: bool = False,
) -> EngineFamily:
    """The family that ``--family`` names.

    ``gpu`` and ``cores`` (``None``: as here) describe the serving machine. The rest is for TensorRT: the interpreter
    that has the TensorRT of the serving image, its module's name, the GPU to build for, the workload's shapes, an image
    to build in (``builder_python`` is then that image's), and whether plans are to fit newer releases as well.
    Raises :class:`InputError` for an unknown name.
    """
    if name == ONNXRUNTIME:
        from optimizer.engines.onnxruntime import OnnxRuntimeFamily

        return OnnxRuntimeFamily(gpu=gpu, cores=cores)
    if name == TENSORRT:
        from optimizer.engines.tensorrt import TensorRTFamily

        return TensorRTFamily(
            python=builder_python, module=module or "tensorrt", source=source, gpu=gpu_id, shapes=shapes,
            image=builder_image, version_compatible=version_compatible,
        )  # fmt: skip
    if name == UNCHANGED:
        return UnchangedFamily()
    raise InputError(
        f"unknown engine family {name!r}", field="--family", remedy=f"choose one of {AUTO}, {', '.join(NAMES)}"
    )


def choose(
    name: str,
    model: Model,
    *,
    source: Path | None = None,
    gpu: bool = False,
    cores: int | None = None,
    builder_python: Path | str | None = None,
    module: str | None = None,
    gpu_id: str | None = None,
    shapes: Sequence[Mapping[str, tuple[int, ...]]] = (),
    builder_image: str | None = None,
    version_compatible: bool = False,
) -> tuple[EngineFamily, str]:
    """The family for ``model`` and why; arguments as for :func:`family`. ``auto`` takes TensorRT where there is a GPU
    and a source that it can build from, else ONNX Runtime for ONNX models, else ``unchanged``.

    Raises :class:`InputError` where the model cannot be served by the family named, or by none, and
    :class:`EnvironmentFailure` where the family named cannot build here.
    """

    def made(candidate: str) -> EngineFamily:
        return family(
            candidate, source=source, gpu=gpu, cores=cores, builder_python=builder_python, module=module,
            gpu_id=gpu_id, shapes=shapes, builder_image=builder_image, version_compatible=version_compatible,
        )  # fmt: skip

    if name != AUTO:
        chosen = made(name)
        missing = chosen.available()
        if missing:
            raise EnvironmentFailure(missing, field="--family", remedy="install it, or choose another family")
        refusal = chosen.refuses(model, source)
        if refusal:
            raise InputError(refusal, where=model.directory, field="--family", remedy="choose another family")
        return chosen, f"{name} was asked for"

    against: list[str] = []
    for candidate in NAMES:
        if candidate == TENSORRT and not gpu:
            against.append("not tensorrt: no GPU")
            continue
        chosen = made(candidate)
        reason = chosen.available() or chosen.refuses(model, source)
        if reason is None:
            return chosen, "; ".join([candidate + _FOR[candidate], *against])
        against.append(f"not {candidate}: {reason}")
    raise InputError(
        "no engine family can serve this model: " + "; ".join(against),
        where=model.directory,
        remedy="give an ONNX source with --onnx, or leave the model out",
    )


_FOR = {
    TENSORRT: ": a GPU, and a source that it builds from",
    ONNXRUNTIME: ": an ONNX model",
    UNCHANGED: ": serving knobs only",
}
