"""What Triton makes of a config before a backend sees it, and what the ONNX Runtime backend completes.

Follows the server's ``AutoCompleteBackendFields`` and the ONNX Runtime backend's ``AutoCompleteConfig``. Normalisation
that depends on the machine (instance groups, pinned memory) is left to the server.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from optimizer.repository.onnx_signature import OnnxSignature, OnnxTensor
from optimizer.repository.versions import BACKENDS, first_version_directory
from optimizer.triton.protobuf import datatype_value, new_config

if TYPE_CHECKING:
    from optimizer.triton.protobuf import ModelConfig

DEFAULT_MAX_BATCH_SIZE = 4
"""What the backends complete ``max_batch_size`` to: the server's ``--backend-config=default-max-batch-size``."""


def complete_backend(config: ModelConfig, name: str, directory: Path) -> ModelConfig:
    """A copy with ``name``, ``backend``, ``platform`` and ``default_model_filename`` as Triton fills them in.

    ``backend`` stays empty where Triton could not tell it either (and for ensembles, which have none).
    """
    completed = new_config()
    completed.CopyFrom(config)
    if not completed.name:
        completed.name = name
    if completed.platform == "ensemble" or completed.HasField("ensemble_scheduling"):
        return completed
    if not completed.backend:
        completed.backend = _backend(completed, name, directory)
    platform, filename, _ = BACKENDS.get(completed.backend, ("", "", None))
    if completed.backend == "pytorch":
        if not completed.platform and _only_pt2(config, directory):
            completed.platform = "torch_aoti"
        if completed.platform == "torch_aoti":
            filename = "model.pt2"
    completed.platform = completed.platform or platform
    completed.default_model_filename = completed.default_model_filename or filename
    if completed.backend not in BACKENDS and not completed.default_model_filename and not config.backend:
        completed.default_model_filename = f"model.{completed.backend}" if completed.backend else ""
    return completed


def complete_from_onnx(config: ModelConfig, signature: OnnxSignature) -> ModelConfig:
    """A copy with inputs and outputs, batch size and dynamic batching as the ONNX Runtime backend completes them.

    A config that has inputs and outputs is left as it is, and so is ``max_batch_size`` where it is given. Where it is
    not, and every tensor has a free first dimension, it becomes 4.
    """
    completed = new_config()
    completed.CopyFrom(config)
    if (len(config.input) or len(config.batch_input)) and len(config.output):
        return completed
    if signature.can_batch:
        completed.max_batch_size = completed.max_batch_size or DEFAULT_MAX_BATCH_SIZE
        if completed.max_batch_size > 1 and not completed.WhichOneof("scheduling_choice"):
            completed.dynamic_batching.SetInParent()
    if not len(config.input) and not len(config.batch_input):
        for tensor in signature.inputs:
            _add_tensor(completed.input.add(), tensor, completed.max_batch_size)
    if not len(config.output):
        for tensor in signature.outputs:
            _add_tensor(completed.output.add(), tensor, completed.max_batch_size)
    return completed


def _add_tensor(field: ModelConfig, tensor: OnnxTensor, max_batch_size: int) -> None:
    field.name = tensor.name
    field.data_type = datatype_value(tensor.datatype) if tensor.datatype else 0
    dims = (tensor.dims or ())[1 if max_batch_size > 0 else 0 :]
    field.dims.extend(dims or (1,))
    if not dims and max_batch_size > 0:
        field.reshape.SetInParent()


def _backend(config: ModelConfig, name: str, directory: Path) -> str:
    """The first rule that holds, in Triton's order."""
    by_platform = {
        "tensorrt_plan": "tensorrt",
        "onnxruntime_onnx": "onnxruntime",
        "pytorch_libtorch": "pytorch",
        "libtorch": "pytorch",
        "torch_aoti": "pytorch",
        "tensorflow_savedmodel": "tensorflow",
        "tensorflow_graphdef": "tensorflow",
    }
    if config.platform:
        return by_platform.get(config.platform, "")
    by_filename = {filename: backend for backend, (_, filename, _) in BACKENDS.items()} | {"model.pt2": "pytorch"}
    if config.default_model_filename:
        return by_filename.get(config.default_model_filename, "")
    first = first_version_directory(directory)
    if first is not None:
        if (first / "model.plan").is_file():
            return "tensorrt"
        for filename, backend in (("model.onnx", "onnxruntime"), ("model.xml", "openvino")):
            if (first / filename).exists():
                return backend
        if (first / "model.pt").is_file() or (first / "model.pt2").is_file():
            return "pytorch"
        if (first / "model.py").exists():
            return "python"
    # A model called NAME.BACKEND, such as simple.identity, names its custom backend.
    return name.split(".", 1)[1] if "." in name else ""


def _only_pt2(config: ModelConfig, directory: Path) -> bool:
    if config.default_model_filename:
        return bool(config.default_model_filename == "model.pt2")
    first = first_version_directory(directory)
    return first is not None and not (first / "model.pt").is_file() and (first / "model.pt2").is_file()
