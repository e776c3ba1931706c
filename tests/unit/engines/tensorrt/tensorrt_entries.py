"""A tiny model and its repository entry, for the tests of this directory."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from optimizer.engines.tensorrt import TensorRTFamily
from optimizer.repository.reader import read_model

STAND_INS = Path(__file__).parent / "stand_ins"

CONFIG = """\
name: "tiny"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt" } ]
"""


def tiny_onnx(*, domain: str = "", extra_output: bool = False, batch: int | str = "n") -> onnx.ModelProto:
    weights = np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4)
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 4])]
    if extra_output:
        outputs.append(helper.make_tensor_value_info("hidden", TensorProto.FLOAT, [batch, 4]))
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["hidden"], name="multiply", domain=domain),
            helper.make_node("Softmax", ["hidden"], ["y"], name="softmax", axis=-1),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 16])],
        outputs,
        [numpy_helper.from_array(weights, "w")],
    )
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def write_entry(repository: Path, model: onnx.ModelProto, config: str = CONFIG):
    directory = repository / "tiny"
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(config, encoding="utf-8")
    (directory / "labels.txt").write_text("a\nb\nc\nd\n", encoding="utf-8")
    onnx.save(model, directory / "1" / "model.onnx")
    return read_model(repository, "tiny")


@cache
def family(module: str = "fake_tensorrt") -> TensorRTFamily:
    """One a run: a family asks its builder once what it has, in a process of its own."""
    return TensorRTFamily(module=module, python_path=str(STAND_INS))
