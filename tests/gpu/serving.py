"""Configs, servers and reference answers that the pieces share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from optimizer.records.deployment import Deployment
from optimizer.sandbox._base import Sandbox, SandboxOptions
from optimizer.triton.client import TritonClient, TritonError, build_request, parse_response

Tensors = Mapping[str, tuple[str, Sequence[int]]]
"""Name to (Triton data type without ``TYPE_``, dims)."""

PHASES_VARIABLE = "TENSORRT_BACKEND_PROFILE"


def config_text(
    inputs: Tensors,
    outputs: Tensors,
    *,
    max_batch: int,
    instances: int = 1,
    extra: str = "",
    batching: bool = True,
    shape_tensors: Sequence[str] = (),
    reshape: Mapping[str, Sequence[int]] | None = None,
    group: str = "",
) -> str:
    """A native TensorRT config. ``group`` replaces the instance group."""
    lines = ['backend: "tensorrt"', 'platform: "tensorrt_plan"', 'default_model_filename: "model.plan"']
    lines.append(f"max_batch_size: {max_batch}")
    for what, tensors in (("input", inputs), ("output", outputs)):
        for name, (kind, dims) in tensors.items():
            more = " is_shape_tensor: true" if name in shape_tensors else ""
            if reshape and name in reshape:
                more += " reshape { shape: [" + ", ".join(map(str, reshape[name])) + "] }"
            listed = ", ".join(map(str, dims))
            lines.append(f'{what} {{ name: "{name}" data_type: TYPE_{kind} dims: [{listed}]{more} }}')
    lines.append(group or f"instance_group {{ kind: KIND_GPU count: {instances} gpus: [0] }}")
    if max_batch and batching:
        lines.append("dynamic_batching { }")
    return "\n".join(lines) + "\n" + extra + "\n"


GRAPHS = "optimization { cuda { graphs: true } }"


def start(workdir: Path, gpu: str | None = "0") -> Sandbox:
    from optimizer.sandbox.launchers import launcher

    workdir.mkdir(parents=True, exist_ok=True)
    return launcher("embedded").start(SandboxOptions(workdir=workdir, gpu=gpu, ready_timeout_s=120))


def deployment(name: str, config: str, plan: Path, file: str = "model.plan") -> Deployment:
    return Deployment(name=name, config_text=config, files={f"1/{file}": plan})


class Reference:
    """ONNX Runtime on the CPU."""

    def __init__(self, model: bytes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._types = {entry.name: entry.type for entry in self._session.get_inputs()}
        self._names = [entry.name for entry in self._session.get_outputs()]

    def __call__(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        # TensorRT 8 has INT32 where ONNX has INT64.
        feed = {
            name: value.astype(np.int64) if self._types[name] == "tensor(int64)" else value
            for name, value in inputs.items()
        }
        return dict(zip(self._names, self._session.run(self._names, feed), strict=True))


def ask(
    client: TritonClient,
    model: str,
    requests: Sequence[Mapping[str, np.ndarray[Any, Any]]],
    datatypes: Mapping[str, str],
    *,
    in_flight: int = 32,
    outputs: Sequence[str] = (),
    parameters: Sequence[Mapping[str, Any]] | None = None,
) -> list[dict[str, np.ndarray[Any, Any]] | str]:
    """Every answer in order, an error as its text, with ``in_flight`` requests out at any time."""
    answers: list[Any] = [None] * len(requests)
    waiting: list[tuple[int, Any]] = []

    def collect() -> None:
        index, future = waiting.pop(0)
        try:
            answers[index] = parse_response(future.result())[0]
        except Exception as error:  # noqa: BLE001 - grpc's error, imported late
            details = getattr(error, "details", None)
            answers[index] = str(details() if callable(details) else error)

    for index, inputs in enumerate(requests):
        body = build_request(
            model, inputs, datatypes, outputs=outputs, parameters=parameters[index] if parameters else None
        )
        waiting.append((index, client.infer_future(body, timeout_s=60)))
        if len(waiting) >= in_flight:
            collect()
    while waiting:
        collect()
    return answers


def worst_difference(
    answers: Iterable[Mapping[str, np.ndarray[Any, Any]]], expected: Iterable[Mapping[str, np.ndarray[Any, Any]]]
) -> dict[str, float]:
    """Per output: the largest |difference| over the largest |expected value|; infinite for another shape or a NaN."""
    worst: dict[str, float] = {}
    for answer, want in zip(answers, expected, strict=True):
        for name, reference in want.items():
            got = np.asarray(answer[name], np.float64)
            wanted = np.asarray(reference, np.float64)
            if got.shape != wanted.shape or not np.isfinite(got).all():
                worst[name] = float("inf")
                continue
            scale = max(float(np.abs(wanted).max(initial=0.0)), 1e-6)
            loss = float(np.abs(got - wanted).max(initial=0.0)) / scale
            worst[name] = max(worst.get(name, 0.0), loss)
    return worst


def gpu_used_bytes(gpu: int = 0) -> int | None:
    """Memory in use on the whole GPU, by NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(gpu)).used)
    except Exception:  # noqa: BLE001 - unknown is a value here
        return None


def facts() -> dict[str, Any]:
    """What the results belong to."""
    from importlib import metadata

    import tensorrt

    packages = ("cuda-python", "nvidia-pytriton", "tritonclient", "numpy", "onnx", "onnxruntime", "perf_analyzer")
    found: dict[str, Any] = {"tensorrt": tensorrt.__version__}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        found["gpu"] = _text(pynvml.nvmlDeviceGetName(handle))
        found["driver"] = _text(pynvml.nvmlSystemGetDriverVersion())
        found["cuda_driver"] = pynvml.nvmlSystemGetCudaDriverVersion()
        found["sm_clock_mhz"] = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
        found["memory_used_mib"] = pynvml.nvmlDeviceGetMemoryInfo(handle).used >> 20
    except Exception as error:  # noqa: BLE001 - facts are best effort
        found["nvml"] = str(error)
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


__all__ = ["GRAPHS", "Reference", "TritonError", "ask", "config_text", "deployment", "facts", "start"]
