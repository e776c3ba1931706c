"""As-found where the sandbox has no GPU runtime for its backend: on the CPU, a crippled reference that judges nothing.

Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from optimizer.records.deployment import LoadFailure

if TYPE_CHECKING:
    from optimizer.triton.protobuf import ModelConfig

_NO_GPU_RUNTIME = re.compile(r"needs ONNX Runtime's (?:CUDA|Tensorrt)ExecutionProvider")
_KIND_CPU = 2

CAVEAT = (
    "as-found was served on the CPU because the sandbox has no GPU runtime for onnxruntime: the gain over it says "
    "little; look at the gain over the default route"
)


def lacks_gpu_runtime(failure: LoadFailure) -> bool:
    """Whether the model as found did not load only because ONNX Runtime cannot use the GPU here."""
    return _NO_GPU_RUNTIME.search(failure.message) is not None


def on_cpu(config: ModelConfig) -> ModelConfig:
    """A new message: ``config`` with CPU instances only, and nothing that needs a GPU. Counts stay."""
    changed = type(config)()
    changed.CopyFrom(config)
    if not changed.instance_group:
        changed.instance_group.add()
    for group in changed.instance_group:
        group.kind = _KIND_CPU
        group.ClearField("gpus")
        group.ClearField("secondary_devices")
    changed.optimization.execution_accelerators.ClearField("gpu_execution_accelerator")
    changed.optimization.ClearField("cuda")
    return changed
