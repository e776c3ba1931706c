"""As-found on the CPU where the sandbox has no GPU runtime."""

from __future__ import annotations

import pytest

from optimizer.baseline import lacks_gpu_runtime, on_cpu
from optimizer.records.deployment import LoadFailure
from optimizer.records.route import Knob, Layer, Route
from optimizer.suggesting import lower_precisions
from optimizer.triton.protobuf import parse_config

CONFIG = """
platform: "onnxruntime_onnx"
max_batch_size: 8
instance_group [ { kind: KIND_GPU count: 3 gpus: [ 0, 1 ] }, { count: 2 } ]
optimization { graph { level: 1 } execution_accelerators {
  gpu_execution_accelerator [ { name: "tensorrt" } ] cpu_execution_accelerator [ { name: "openvino" } ] } }
"""


def test_only_what_needs_a_gpu_changes():
    given = parse_config(CONFIG)
    changed = on_cpu(given)
    assert [(group.count, list(group.gpus)) for group in changed.instance_group] == [(3, []), (2, [])]
    assert {type(group).Kind.Name(group.kind) for group in changed.instance_group} == {"KIND_CPU"}
    assert not changed.optimization.execution_accelerators.gpu_execution_accelerator
    assert changed.optimization.execution_accelerators.cpu_execution_accelerator[0].name == "openvino"
    assert changed.optimization.graph.level == 1
    assert given == parse_config(CONFIG)


def test_a_config_without_instances_gets_a_group_on_the_cpu():
    (group,) = on_cpu(parse_config('backend: "onnxruntime"')).instance_group
    assert type(group).Kind.Name(group.kind) == "KIND_CPU"


@pytest.mark.parametrize(
    ("message", "lacks"),
    [
        (
            "an instance of kind KIND_GPU needs ONNX Runtime's CUDAExecutionProvider; the installed build has: "
            "CPUExecutionProvider",
            True,
        ),
        ("the accelerator 'tensorrt' needs ONNX Runtime's TensorrtExecutionProvider; the installed build has: …", True),
        ("Load model failed: Protobuf parsing failed", False),
    ],
)
def test_the_reason_is_told_from_others(message, lacks):
    assert lacks_gpu_runtime(LoadFailure("as_found", "model_error", message)) is lacks


def test_the_most_usual_lower_precision_comes_first():
    knobs = [
        Knob("quantization", Layer.PRECISION, ("none", "int8_dynamic"), "none"),
        Knob("precision", Layer.PRECISION, ("fp32", "fp16", "bf16"), "fp32"),
        Knob("instances", Layer.SERVING, ("1", "2"), "1"),
    ]
    assert lower_precisions(knobs) == [
        (Route.of({"precision": "fp16"}), "FP16"),
        (Route.of({"precision": "bf16"}), "BF16"),
        (Route.of({"quantization": "int8_dynamic"}), "INT8"),
    ]
