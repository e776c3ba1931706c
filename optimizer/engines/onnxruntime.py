"""ONNX models on ONNX Runtime's CPU provider: the family that every machine can build and serve.

Three knobs. ``graph_optimization`` writes the optimized model once, instead of at every load of every instance, and
then tells the backend to leave it alone. ``quantization`` makes weights INT8 and quantizes activations as they come,
without calibration. ``intra_op_threads`` is a setting of the backend and needs no new engine. The default route is
the model file exactly as found.

``configure`` writes what the real backend reads (onnxruntime_backend, ``ModelState``): ``optimization.graph.level``
-1 is basic, 1 extended, 2 none, anything else all; ``parameters.intra_op_thread_count`` is a string, 0 leaves the
number to ONNX Runtime. Both thread counts are ignored where the server runs with a global thread pool.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optimizer import processes
from optimizer.engines import onnx_files
from optimizer.engines._base import BuildRequest
from optimizer.engines.onnx_files import UnreadableOnnx
from optimizer.engines.onnxruntime_worker import EXTERNAL_ABOVE_BYTES, OUT_OF_MEMORY_SIGNS, Job, write_job
from optimizer.records.engine import BuildFailure, BuildFailureReason, Engine
from optimizer.records.model import Model, ModelFormat
from optimizer.records.route import Knob, KnobClass, Layer, Route
from optimizer.records.samples import SampleSet
from optimizer.triton.protobuf import parse_config

if TYPE_CHECKING:
    from optimizer.triton.protobuf import ModelConfig

GRAPH_OPTIMIZATION = "graph_optimization"
QUANTIZATION = "quantization"
INTRA_OP_THREADS = "intra_op_threads"

_LEVELS = {"all": 0, "extended": 1, "basic": -1, "disabled": 2}
"""Knob value to ``optimization.graph.level``."""
_KIND_CPU = 2
_WORKER = (sys.executable, "-m", "optimizer.engines.onnxruntime_worker")


class OnnxRuntimeFamily:
    """``gpu``: the model is served on a GPU (ONNX Runtime's CUDA provider); then nothing hardware specific is written
    into the file. ``cores``: of the serving machine, this one's by default. ``worker``: the command of the build
    process, which tests replace by one that misbehaves.
    """

    name = "onnxruntime"

    def __init__(self, *, gpu: bool = False, cores: int | None = None, worker: Sequence[str] = _WORKER) -> None:
        self._gpu = gpu
        self._cores = cores or len(os.sched_getaffinity(0))
        self._worker = tuple(worker)

    def available(self) -> str | None:
        missing = [package for package in ("onnxruntime", "onnx") if _version(package) is None]
        if not missing:
            return None
        return f"{' and '.join(missing)} not installed: pip install 'triton-optimizer[embedded]'"

    def facts(self) -> Mapping[str, str]:
        return {package: version for package in ("onnxruntime", "onnx") if (version := _version(package))}

    def refuses(self, model: Model, source: Path | None = None) -> str | None:
        if source is not None:
            return None if onnx_files.onnx_file(source).is_file() else f"{source}: no such ONNX file"
        version = model.live_version
        if version is None or version.file is None:
            return "no version with a model file is served"
        if model.format is not ModelFormat.ONNX:
            return f"the model is {model.format.value}, not ONNX; give its source with --onnx"
        return None

    def knobs(self, model: Model) -> tuple[Knob, ...]:
        config = _as_found(model)
        threads = _threads(config)
        counts = sorted({0, 1, threads, *(count for count in (2, 4, 8) if count <= self._cores)})
        knobs = [
            Knob(
                GRAPH_OPTIMIZATION,
                Layer.BUILDER,
                tuple(_LEVELS),
                _level(config),
                help="graph optimizations of ONNX Runtime, applied once and written to the file",
            )
        ]
        if not self._on_gpu(config):
            knobs.append(
                Knob(
                    QUANTIZATION,
                    Layer.PRECISION,
                    ("none", "int8_dynamic"),
                    "none",
                    KnobClass.NUMERIC,
                    "INT8 weights, activations quantized as they come; no calibration",
                )
            )
            knobs.append(
                Knob(
                    INTRA_OP_THREADS,
                    Layer.SERVING,
                    tuple(map(str, counts)),
                    str(threads),
                    help="threads inside one operator, per instance; 0: one per physical core",
                )
            )
        return tuple(knobs)

    def build(self, request: BuildRequest, calibration: SampleSet | None = None) -> Engine | BuildFailure:  # noqa: ARG002
        started = time.monotonic()
        config = _as_found(request.model)
        level = request.route.get(GRAPH_OPTIMIZATION, _level(config)) or ""
        quantization = request.route.get(QUANTIZATION, "none") or "none"
        problem = self._invalid(level, quantization)
        if problem:
            return BuildFailure(request.engine_id, BuildFailureReason.REFUSED, problem)
        try:
            source = _source(request)
            name = _file_name(request, config)
            as_found = onnx_files.served_files(source, name)
        except UnreadableOnnx as error:
            return BuildFailure(request.engine_id, BuildFailureReason.PARSE_ERROR, str(error))

        rewrites = level != _level(config) and level != "disabled" and not self._on_gpu(config)
        if not rewrites and quantization == "none":
            details = {"served_level": level, "quantization": quantization, "as_found": True}
            return _engine(request.engine_id, as_found, 0.0, "none: the file as found", details)
        if config.cc_model_filenames:
            return BuildFailure(
                request.engine_id,
                BuildFailureReason.REFUSED,
                "cc_model_filenames names other files per compute capability: a rewritten file would not be the one "
                "that is served",
            )

        model_file = onnx_files.onnx_file(source)
        job = Job(
            source=str(model_file.absolute()),
            target=str(request.directory.absolute()),
            name=name,
            level=level if rewrites else "",
            quantization=quantization,
            external_data=len(as_found) > 1 or source.is_dir() or model_file.stat().st_size > EXTERNAL_ABOVE_BYTES,
        )
        failure_or_details = self._run(request, job, started)
        if isinstance(failure_or_details, BuildFailure):
            return failure_or_details
        details = {
            **failure_or_details,
            "served_level": "disabled" if rewrites else level,
            "optimized_at": level if rewrites else None,
            "quantization": quantization,
            "as_found": False,
            "caveats": _caveats(level if rewrites else "", quantization),
        }
        try:
            files = onnx_files.served_files(request.directory / name, name)
        except UnreadableOnnx as error:
            return BuildFailure(request.engine_id, BuildFailureReason.INVALID_ENGINE, str(error))
        return _engine(
            request.engine_id, files, time.monotonic() - started, f"onnxruntime {_version('onnxruntime')}", details
        )

    def configure(self, config: ModelConfig, engine: Engine, route: Route) -> ModelConfig:
        changed = type(config)()
        changed.CopyFrom(config)
        # A live config of a python-based backend names its runner here; the native backend has none.
        if changed.runtime == "model.py":
            changed.ClearField("runtime")
        if changed.platform not in {"", "onnxruntime_onnx"} or changed.backend not in {"", self.name}:
            changed.platform = "onnxruntime_onnx"
            changed.backend = self.name
        elif not changed.platform:
            changed.backend = self.name
        served_level = str(engine.details.get("served_level", _level(changed)))
        if served_level != _level(changed):
            if served_level == "all":
                changed.optimization.ClearField("graph")
            else:
                changed.optimization.graph.level = _LEVELS[served_level]
        name = next(iter(engine.files))
        if changed.default_model_filename not in {"", name} or name != "model.onnx":
            changed.default_model_filename = name
        threads = route.get(INTRA_OP_THREADS)
        if threads is not None and int(threads) != _threads(changed):
            changed.parameters["intra_op_thread_count"].string_value = threads
        return changed

    def _run(self, request: BuildRequest, job: Job, started: float) -> BuildFailure | dict[str, Any]:
        scratch = request.directory
        job_path, result_path, log_path = scratch / "job.json", scratch / "result.json", scratch / "build.log"
        write_job(job_path, job)
        package_root = str(Path(__file__).parents[2])
        search_path = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
        process = processes.start(
            [*self._worker, str(job_path), str(result_path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(search_path)},
            cwd=scratch,
            log_path=log_path,
            grace_s=1.0,
            memory_limit_bytes=request.memory_limit_bytes,
        )
        with process:
            try:
                status: int | None = process.wait(request.time_limit_s)
            except subprocess.TimeoutExpired:
                status = None
        log = process.log_tail()
        outcome = _read_result(result_path)
        if status == 0 and outcome is not None and "details" in outcome and (scratch / job.name).is_file():
            for leftover in (job_path, result_path):
                leftover.unlink(missing_ok=True)
            details: dict[str, Any] = outcome["details"]
            return details
        reason, message = _classify(status, outcome, log, request)
        return BuildFailure(
            request.engine_id,
            reason,
            message,
            log_excerpt=log,
            build_s=time.monotonic() - started,
            exit_signal=status - 128 if status is not None and status > 128 else None,
        )

    def _on_gpu(self, config: ModelConfig) -> bool:
        kinds = {group.kind for group in config.instance_group}
        return self._gpu and kinds != {_KIND_CPU}

    @staticmethod
    def _invalid(level: str, quantization: str) -> str:
        if level not in _LEVELS:
            return f"{GRAPH_OPTIMIZATION} {level!r} is none of {', '.join(_LEVELS)}"
        if quantization not in {"none", "int8_dynamic"}:
            return f"{QUANTIZATION} {quantization!r} is none of none, int8_dynamic"
        return ""


def _classify(
    status: int | None, outcome: Mapping[str, Any] | None, log: str, request: BuildRequest
) -> tuple[BuildFailureReason, str]:
    limit = request.memory_limit_bytes
    if status is None:
        return BuildFailureReason.TIMEOUT, f"not done after {request.time_limit_s:g} s"
    told = outcome if outcome is not None and "reason" in outcome else {}
    reason = BuildFailureReason(told.get("reason", BuildFailureReason.OTHER))
    # A library that does not fit the limit fails to import, which only the log explains.
    if reason is BuildFailureReason.OTHER and any(sign in log for sign in OUT_OF_MEMORY_SIGNS):
        within = f" within {limit / 2**20:.0f} MiB" if limit else ""
        return BuildFailureReason.OUT_OF_MEMORY, f"the builder ran out of memory{within}"
    if told:
        return reason, str(told["message"])
    if status == 128 + 9:
        return BuildFailureReason.OUT_OF_MEMORY, "the builder was killed (signal 9), most likely for memory"
    if status > 128:
        return BuildFailureReason.CRASH, f"the builder died of signal {status - 128}"
    if status == 0:
        return BuildFailureReason.RETURNED_NOTHING, "the builder reported success and left no model"
    return BuildFailureReason.CRASH, f"the builder exited with status {status} and no result"


def _read_result(path: Path) -> dict[str, Any] | None:
    try:
        outcome = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return outcome if isinstance(outcome, dict) else None


def _engine(
    engine_id: str, files: Mapping[str, Path], build_s: float, builder: str, details: Mapping[str, Any]
) -> Engine:
    return Engine(
        engine_id=engine_id,
        family=OnnxRuntimeFamily.name,
        files=files,
        sha256=onnx_files.content_hash(files),
        size_bytes=onnx_files.total_bytes(files),
        build_s=build_s,
        builder=builder,
        details=details,
    )


def _source(request: BuildRequest) -> Path:
    if request.source is not None:
        return request.source
    version = request.model.live_version
    if version is None or version.file is None:
        raise UnreadableOnnx(f"{request.model.directory}: no version with a model file is served")
    return version.file


def _file_name(request: BuildRequest, config: ModelConfig) -> str:
    if request.model.format is ModelFormat.ONNX and config.default_model_filename:
        return str(config.default_model_filename)
    return "model.onnx"


def _as_found(model: Model) -> ModelConfig:
    return parse_config(model.effective_config_text or model.config_text, where=model.config_path or model.name)


def _level(config: ModelConfig) -> str:
    level = config.optimization.graph.level if config.optimization.HasField("graph") else 0
    return {-1: "basic", 1: "extended", 2: "disabled"}.get(level, "all")


def _threads(config: ModelConfig) -> int:
    if "intra_op_thread_count" not in config.parameters:
        return 0
    text = config.parameters["intra_op_thread_count"].string_value
    return int(text) if text.isdigit() else 0


def _caveats(level: str, quantization: str) -> list[str]:
    """What ties the file to this machine. Basic optimizations do not."""
    caveats = []
    if level == "extended":
        caveats.append("extended graph optimizations are those of ONNX Runtime's CPU provider: not for a GPU")
    elif level == "all":
        caveats.append(
            f"the graph has the memory layouts that this CPU's vector units prefer ({_cpu()}): rebuild it for another"
        )
    if quantization != "none":
        caveats.append("INT8 kernels differ between CPUs with and without VNNI, in speed and in the last digits")
    return caveats


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
