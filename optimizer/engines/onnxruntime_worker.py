"""One ONNX Runtime build in a process of its own: quantize, optimize the graph, check that the result loads.

``python -m optimizer.engines.onnxruntime_worker JOB RESULT`` reads a JSON job and writes a JSON result. Exit status 0
with ``{"files": {name: path}, …}``, or 1 with ``{"reason": …, "message": …}``. Anything else (a signal, no result
file) is a crash, which the caller classifies.
"""

from __future__ import annotations

import errno
import json
import re
import sys
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from optimizer.records.engine import BuildFailureReason

EXTERNAL_ABOVE_BYTES = 1 << 30
"""Sources at least this large, and those that already have external data, get external data: protobuf ends at 2 GiB."""
QUANTIZED_OPERATORS = ("MatMul", "Gemm", "Attention", "LSTM", "Gather", "EmbedLayerNormalization")
"""Not Conv: ConvInteger has no fast CPU kernel. With it the magika classifier took 1.9 times its FP32 time on a CPU
with VNNI, without it 1.04 times."""
OUT_OF_MEMORY_SIGNS = (
    "bad_alloc",
    "MemoryError",
    "Failed to allocate memory",
    "annot allocate memory",
    "failed to map segment",
)
_INTERMEDIATE = ("prepared.onnx", "prepared.onnx.data", "quantized.onnx", "quantized.onnx.data")


@dataclass(frozen=True)
class Job:
    """``level`` is ``""`` where the graph is to be left as it is."""

    source: str
    target: str
    name: str
    level: str
    quantization: str
    external_data: bool


class Refused(Exception):
    """The build makes no sense for this model."""

    def __init__(self, reason: BuildFailureReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def main(arguments: list[str]) -> int:
    job_path, result_path = map(Path, arguments)
    job = Job(**json.loads(job_path.read_text(encoding="utf-8")))
    try:
        result = build(job)
    except Exception as error:  # noqa: BLE001 - whatever went wrong becomes a typed failure
        if not isinstance(error, Refused):
            traceback.print_exc()
        reason, message = classify(error)
        result = {"reason": reason.value, "message": message}
    result_path.write_text(json.dumps(result), encoding="utf-8")
    return 1 if "reason" in result else 0


def write_job(path: Path, job: Job) -> None:
    path.write_text(json.dumps(asdict(job)), encoding="utf-8")


def build(job: Job) -> dict[str, Any]:
    source, target = Path(job.source), Path(job.target)
    before = _signature(source)
    details: dict[str, Any] = {}
    if job.quantization == "int8_dynamic":
        # Exporters keep weights in Constant nodes and batch normalization beside its convolution; the quantizer wants
        # initializers. Basic optimizations are the same on every machine.
        prepared = target / "prepared.onnx"
        _optimize(source, prepared, "basic", external_data=job.external_data)
        quantized = target / ("quantized.onnx" if job.level else job.name)
        details |= _quantize(prepared, quantized, external_data=job.external_data)
        source = quantized
    built = target / job.name
    if job.level:
        _optimize(source, built, job.level, external_data=job.external_data)
    if _signature(built) != before:
        raise Refused(
            BuildFailureReason.INVALID_ENGINE, f"inputs and outputs changed: {before} became {_signature(built)}"
        )
    for leftover in _INTERMEDIATE:
        (target / leftover).unlink(missing_ok=True)
    details["operators"] = _operators(built)
    return {"details": details}


def classify(error: BaseException) -> tuple[BuildFailureReason, str]:
    """The typed reason for an exception, and its first telling line."""
    text = str(error).strip() or type(error).__name__
    message = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text.splitlines()[0])
    kind = type(error).__name__
    if isinstance(error, Refused):
        return error.reason, message
    if isinstance(error, MemoryError) or any(sign in text for sign in OUT_OF_MEMORY_SIGNS):
        return BuildFailureReason.OUT_OF_MEMORY, message
    if (isinstance(error, OSError) and error.errno == errno.ENOSPC) or "No space left on device" in text:
        return BuildFailureReason.NO_SPACE, message
    if kind == "NotImplemented":
        return BuildFailureReason.NO_IMPLEMENTATION, message
    if re.search(r"is not a registered function/op|No Op registered for|not supported|opset", text):
        return BuildFailureReason.UNSUPPORTED_OPERATOR, message
    if "to be an initializer" in text:
        return BuildFailureReason.NO_IMPLEMENTATION, f"the quantizer takes constant weights only: {message}"
    if kind in {"InvalidProtobuf", "InvalidGraph", "DecodeError", "NoSuchFile", "NoModel"}:
        return BuildFailureReason.PARSE_ERROR, message
    return BuildFailureReason.OTHER, f"{kind}: {message}"


def _quantize(source: Path, target: Path, *, external_data: bool) -> dict[str, Any]:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(source), load_external_data=False)
    opset = next((entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), 0)
    if opset < 11:
        raise Refused(
            BuildFailureReason.REFUSED, f"opset {opset}: dynamic quantization needs 11 or later; convert the model"
        )
    quantize_dynamic(
        str(source),
        str(target),
        op_types_to_quantize=list(QUANTIZED_OPERATORS),
        weight_type=QuantType.QInt8,
        use_external_data_format=external_data,
    )
    after = _operators(target)
    quantized = sum(count for name, count in after.items() if "Integer" in name or name.startswith(("Dynamic", "QLin")))
    if not quantized:
        raise Refused(
            BuildFailureReason.REFUSED,
            f"no operator that dynamic quantization helps ({', '.join(QUANTIZED_OPERATORS)})",
        )
    return {"quantized_operators": quantized}


def _optimize(source: Path, target: Path, level: str, *, external_data: bool) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = {
        "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    }[level]
    options.optimized_model_filepath = str(target)
    options.intra_op_num_threads = 1
    if external_data:
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", target.name + ".data"
        )
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def _signature(path: Path) -> dict[str, list[str]]:
    """Names and types of inputs and outputs, as the runtime itself sees them: proof that the model loads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return {
        "inputs": [f"{tensor.name}: {tensor.type} rank {len(tensor.shape)}" for tensor in session.get_inputs()],
        "outputs": [f"{tensor.name}: {tensor.type} rank {len(tensor.shape)}" for tensor in session.get_outputs()],
    }


def _operators(path: Path) -> dict[str, int]:
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    return dict(sorted(Counter(node.op_type for node in model.graph.node).items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
