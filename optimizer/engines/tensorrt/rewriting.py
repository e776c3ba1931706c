"""The ONNX file that a route builds from: the source itself, or a rewritten copy that lives as long as the build."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optimizer.engines._base import BuildRequest
from optimizer.engines.tensorrt import modelopt
from optimizer.engines.tensorrt.source import rename_dimensions
from optimizer.engines.tensorrt.supervisor import WorkerFailure, WorkerPlace, run_command, run_worker
from optimizer.records.engine import BuildFailureReason
from optimizer.records.samples import SampleSet

_COPY = "rewritten.onnx"
_PRECISION_WORKER = "optimizer.engines.tensorrt.precision"


def make_source(
    document: dict[str, Any],
    request: BuildRequest,
    *,
    strong: bool,
    dimension_names: Mapping[str, Mapping[int, str]],
    modelopt_python: Path | str | None,
    calibration: SampleSet | None,
) -> float | WorkerFailure:
    """Changes the worker's request ``document`` to build from the right file; returns seconds spent.

    ``strong``: the builder takes types from the network. Raises ``OSError`` where the copy cannot be written.
    """
    source, target = Path(document["onnx"]), request.directory / _COPY
    precision = str(document["precision"])
    if precision in modelopt.PRECISIONS:
        spent = _with_modelopt(document, request, strong, modelopt_python, calibration)
        if dimension_names and not isinstance(spent, WorkerFailure):
            _rename(target, target, dimension_names)
        return spent
    if strong and precision in ("fp16", "bf16"):
        answer = run_worker(
            WorkerPlace(sys.executable, module=_PRECISION_WORKER),
            {
                "onnx": str(source),
                "target": str(target),
                "precision": precision,
                "keep_fp32": document["keep_fp32"],
                "dimension_names": dimension_names,
            },
            request.directory,
            time_limit_s=request.time_limit_s,
            memory_limit_bytes=request.memory_limit_bytes,
            log_name="rewrite.log",
        )
        if isinstance(answer, WorkerFailure):
            return answer
        document.update(onnx=str(target), rewritten=True)
        return answer.seconds
    if dimension_names:
        _rename(source, target, dimension_names)
        document.update(onnx=str(target), weights_of=str(source))
    return 0.0


def remove_source(request: BuildRequest) -> None:
    for left in request.directory.glob(f"{_COPY}*"):
        left.unlink()


def _with_modelopt(
    document: dict[str, Any],
    request: BuildRequest,
    strong: bool,
    python: Path | str | None,
    calibration: SampleSet | None,
) -> float | WorkerFailure:
    precision, target = str(document["precision"]), request.directory / _COPY
    if python is None:
        return WorkerFailure(BuildFailureReason.NOT_AVAILABLE, f"precision={precision} needs NVIDIA ModelOpt")
    data = None
    if calibration is not None:
        data = modelopt.write_calibration(calibration, request.model, request.directory / f"{_COPY}.npz")
    command = modelopt.command(
        python, precision, Path(document["onnx"]), target, keep_fp32=document["keep_fp32"], calibration=data
    )
    ended = run_command(
        command,
        request.directory / "modelopt.log",
        time_limit_s=request.time_limit_s,
        memory_limit_bytes=request.memory_limit_bytes,
    )
    if isinstance(ended, WorkerFailure):
        return ended
    if not target.is_file():
        return WorkerFailure(BuildFailureReason.OTHER, "ModelOpt ended and wrote no model", ended.log_excerpt)
    quantized = [modelopt.QUANTIZE[precision]] if precision in modelopt.QUANTIZE else []
    # Weak typing ignores the types in the file unless a flag allows them.
    flag = "tf32" if strong else modelopt.AUTOCAST.get(precision, "tf32")
    document.update(onnx=str(target), precision=flag, quantized=quantized)
    return ended.seconds


def _rename(source: Path, target: Path, names: Mapping[str, Mapping[int, str]]) -> None:
    import onnx

    model = onnx.load(str(source), load_external_data=False)
    rename_dimensions(model, names)
    target.write_bytes(model.SerializeToString())
