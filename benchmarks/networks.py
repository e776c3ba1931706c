"""ONNX networks written with ``onnx.helper`` from NumPy seeds: real shapes and real speeds, no download, no training.

They say nothing about accuracy of trained models. Opset 17, IR 8, which TensorRT 8.6 and ONNX Runtime 1.16 read.

``python -m benchmarks.networks DIR [NAME ...]`` writes ``DIR/NAME.onnx``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx

OPSET = 17
IR_VERSION = 8

Shape = Sequence["int | str"]


class Graph:
    """Collects nodes and weights. Values are names."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def input(self, name: str, kind: str, shape: Shape) -> str:
        self.inputs.append(_value(name, kind, shape))
        return name

    def output(self, name: str, kind: str, shape: Shape) -> None:
        self.outputs.append(_value(name, kind, shape))

    def weight(self, array: np.ndarray[Any, Any]) -> str:
        from onnx import numpy_helper

        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def normal(self, *shape: int, fan_in: int) -> str:
        """He-scaled, so that values keep their size through the layers."""
        return self.weight((self.random.standard_normal(shape) * np.sqrt(2.0 / fan_in)).astype(np.float32))

    def add(self, operator: str, *inputs: str, into: str | None = None, **attributes: Any) -> str:
        from onnx import helper

        result = into or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [result], **attributes))
        return result

    def model(self) -> onnx.ModelProto:
        from onnx import checker, helper

        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="benchmarks")
        model.ir_version = IR_VERSION
        checker.check_model(model)
        return model


def _value(name: str, kind: str, shape: Shape) -> Any:
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, getattr(TensorProto, kind), list(shape))


def convolutional(seed: int = 0, size: int = 56, classes: int = 100, layers: int = 12) -> onnx.ModelProto:
    """``x`` FP32 [N, 3, 56, 56] (37.6 KB a sample) to ``y`` FP32 [N, classes]; 3×3 convolutions in three widths."""
    g = Graph("convolutional", seed)
    value = g.input("x", "FLOAT", ["N", 3, size, size])
    channels = 3
    for layer in range(layers):
        stage = 3 * layer // layers
        width = 64 << stage
        stride = 2 if stage and layer * 3 % layers == 0 else 1
        kernel = g.normal(width, channels, 3, 3, fan_in=9 * channels)
        bias = g.weight(g.random.standard_normal(width).astype(np.float32) * 0.01)
        value = g.add("Conv", value, kernel, bias, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[stride, stride])
        value = g.add("Relu", value)
        channels = width
    value = g.add("Flatten", g.add("GlobalAveragePool", value), axis=1)
    g.add(
        "Gemm", value, g.normal(channels, classes, fan_in=channels), g.weight(np.zeros(classes, np.float32)), into="y"
    )
    g.output("y", "FLOAT", ["N", classes])
    return g.model()


def convolutional_free_size(seed: int = 0, layers: int = 4) -> onnx.ModelProto:
    """``x`` FP32 [N, 3, H, W] to ``y`` FP32 [N, 4, H/2, W/2]: height and width are free."""
    g = Graph("convolutional_free_size", seed)
    value = g.input("x", "FLOAT", ["N", 3, "H", "W"])
    channels = 3
    for layer in range(layers):
        width = 4 if layer == layers - 1 else 16
        stride = 2 if layer == 1 else 1
        kernel = g.normal(width, channels, 3, 3, fan_in=9 * channels)
        into = "y" if layer == layers - 1 else None
        value = g.add("Conv", value, kernel, kernel_shape=[3, 3], pads=[1] * 4, strides=[stride] * 2, into=into)
        value = value if into else g.add("Relu", value)
        channels = width
    g.output("y", "FLOAT", ["N", 4, "H2", "W2"])
    return g.model()


def _layer_norm(g: Graph, value: str, width: int, decomposed: bool) -> str:
    scale = g.weight(np.ones(width, np.float32))
    bias = g.weight(np.zeros(width, np.float32))
    if not decomposed:
        return g.add("LayerNormalization", value, scale, bias, axis=-1, epsilon=1e-5)
    centred = g.add("Sub", value, g.add("ReduceMean", value, axes=[-1], keepdims=1))
    variance = g.add("ReduceMean", g.add("Mul", centred, centred), axes=[-1], keepdims=1)
    deviation = g.add("Sqrt", g.add("Add", variance, g.weight(np.array(1e-5, np.float32))))
    return g.add("Add", g.add("Mul", g.add("Div", centred, deviation), scale), bias)


def transformer(
    seed: int = 0,
    layers: int = 4,
    width: int = 512,
    heads: int = 8,
    length: int = 128,
    vocabulary: int = 1000,
    decomposed: bool = True,
) -> onnx.ModelProto:
    """``ids`` INT32 [N, length] to ``y`` FP32 [N, width]: an encoder, pre-norm, GELU by Erf, mean over the tokens."""
    g = Graph("transformer", seed)
    ids = g.input("ids", "INT32", ["N", length])
    table = g.weight((g.random.standard_normal((vocabulary, width)) * 0.5).astype(np.float32))
    position = g.weight((g.random.standard_normal((1, length, width)) * 0.1).astype(np.float32))
    value = g.add("Add", g.add("Gather", table, ids), position)
    per_head = width // heads
    split = g.weight(np.array([0, length, heads, per_head], np.int64))
    joined = g.weight(np.array([0, length, width], np.int64))
    scale = g.weight(np.array(per_head**-0.5, np.float32))
    half, one, root = (g.weight(np.array(x, np.float32)) for x in (0.5, 1.0, 2**-0.5))

    def dense(x: str, before: int, after: int) -> str:
        weight = g.weight((g.random.standard_normal((before, after)) / np.sqrt(before)).astype(np.float32))
        return g.add("Add", g.add("MatMul", x, weight), g.weight(np.zeros(after, np.float32)))

    for _ in range(layers):
        normed = _layer_norm(g, value, width, decomposed)
        query, key, content = (g.add("Reshape", dense(normed, width, width), split) for _ in range(3))
        query = g.add("Transpose", query, perm=[0, 2, 1, 3])
        key = g.add("Transpose", key, perm=[0, 2, 3, 1])
        content = g.add("Transpose", content, perm=[0, 2, 1, 3])
        attention = g.add("Softmax", g.add("Mul", g.add("MatMul", query, key), scale), axis=-1)
        mixed = g.add("Transpose", g.add("MatMul", attention, content), perm=[0, 2, 1, 3])
        value = g.add("Add", value, dense(g.add("Reshape", mixed, joined), width, width))
        hidden = dense(_layer_norm(g, value, width, decomposed), width, 4 * width)
        gelu = g.add("Mul", g.add("Mul", hidden, half), g.add("Add", g.add("Erf", g.add("Mul", hidden, root)), one))
        value = g.add("Add", value, dense(gelu, 4 * width, width))
    g.add("ReduceMean", _layer_norm(g, value, width, decomposed), axes=[1], keepdims=0, into="y")
    g.output("y", "FLOAT", ["N", width])
    return g.model()


def perceptron(seed: int = 0, width: int = 2048, layers: int = 6, features: int = 512) -> onnx.ModelProto:
    """``x`` FP32 [N, features] to ``y`` FP32 [N, 1]: weights, not activations, are what it reads."""
    g = Graph("perceptron", seed)
    value, before = g.input("x", "FLOAT", ["N", features]), features
    for _ in range(layers):
        weight, bias = g.normal(before, width, fan_in=before), g.weight(np.zeros(width, np.float32))
        value, before = g.add("Relu", g.add("Gemm", value, weight, bias)), width
    g.add("Gemm", value, g.normal(before, 1, fan_in=before), g.weight(np.zeros(1, np.float32)), into="y")
    g.output("y", "FLOAT", ["N", 1])
    return g.model()


def mixed(seed: int = 0) -> onnx.ModelProto:
    """Four inputs (FP32, FP16, INT64, BOOL) and four outputs (FP32, FP16, INT64, BOOL), [N, 16] each."""
    del seed
    g = Graph("mixed", 0)
    single = g.input("single", "FLOAT", ["N", 16])
    half = g.input("half", "FLOAT16", ["N", 16])
    count = g.input("count", "INT64", ["N", 16])
    keep = g.input("keep", "BOOL", ["N", 16])
    total = g.add("Add", single, g.add("Cast", half, to=1))
    g.add("Where", keep, total, g.add("Neg", total), into="chosen")
    g.add("Mul", half, g.weight(np.array(2, np.float16)), into="doubled")
    g.add("Add", count, g.weight(np.array(3, np.int64)), into="later")
    g.add("Greater", total, g.weight(np.array(0, np.float32)), into="positive")
    for name, kind in (("chosen", "FLOAT"), ("doubled", "FLOAT16"), ("later", "INT64"), ("positive", "BOOL")):
        g.output(name, kind, ["N", 16])
    return g.model()


def identity(kind: str = "FLOAT", width: int = 16, batch: int | str = "N") -> onnx.ModelProto:
    """``x`` to ``y`` of one ONNX type, [batch, width]: what goes in comes out, by way of the engine."""
    g = Graph(f"identity_{kind.lower()}", 0)
    g.add("Identity", g.input("x", kind, [batch, width]), into="y")
    g.output("y", kind, [batch, width])
    return g.model()


def affine(batch: int | str = "N", width: int = 16) -> onnx.ModelProto:
    """``x`` FP32 [batch, width] to ``y`` = 2x + 1; with a number as ``batch``, an engine of that batch alone."""
    g = Graph("affine", 0)
    value = g.add("Mul", g.input("x", "FLOAT", [batch, width]), g.weight(np.array(2, np.float32)))
    g.add("Add", value, g.weight(np.array(1, np.float32)), into="y")
    g.output("y", "FLOAT", [batch, width])
    return g.model()


def scalar_input(seed: int = 0) -> onnx.ModelProto:
    """``x`` FP32 [S, 8] and ``factor`` FP32 [] to ``y`` FP32 [S, 8] and ``sum`` FP32 []: no batch dimension."""
    del seed
    g = Graph("scalar_input", 0)
    g.add("Mul", g.input("x", "FLOAT", ["S", 8]), g.input("factor", "FLOAT", []), into="y")
    g.add("ReduceSum", "y", keepdims=0, into="sum")
    g.output("y", "FLOAT", ["S", 8])
    g.output("sum", "FLOAT", [])
    return g.model()


def shape_input(seed: int = 0) -> onnx.ModelProto:
    """``x`` FP32 [1, 8] and ``shape`` INT64 [2] to ``y`` FP32 of that shape: ``shape`` is a shape tensor."""
    del seed
    g = Graph("shape_input", 0)
    g.add("Expand", g.input("x", "FLOAT", [1, 8]), g.input("shape", "INT64", [2]), into="y")
    g.output("y", "FLOAT", ["A", "B"])
    return g.model()


NETWORKS: dict[str, Callable[..., onnx.ModelProto]] = {
    function.__name__: function
    for function in (
        convolutional,
        convolutional_free_size,
        transformer,
        perceptron,
        mixed,
        identity,
        affine,
        scalar_input,
        shape_input,
    )
}


def main(arguments: Sequence[str]) -> int:
    import onnx

    if not arguments or unknown(arguments[1:]):
        print(f"usage: python -m benchmarks.networks DIR [{' | '.join(NETWORKS)}]", file=sys.stderr)
        return 2
    directory = Path(arguments[0])
    directory.mkdir(parents=True, exist_ok=True)
    for name in arguments[1:] or NETWORKS:
        onnx.save(NETWORKS[name](), directory / f"{name}.onnx")
        print(directory / f"{name}.onnx")
    return 0


def unknown(names: Sequence[str]) -> list[str]:
    return [name for name in names if name not in NETWORKS]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
