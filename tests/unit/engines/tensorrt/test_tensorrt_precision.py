"""Rewriting types: right answers in ONNX Runtime, casts only where a tensor crosses, nothing else changed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from optimizer.engines.tensorrt.knobs import OVERFLOW_OPERATORS
from optimizer.engines.tensorrt.precision import CannotRewrite, rewrite

FLOAT, HALF, BRAIN = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16


def make(nodes, inputs, outputs, weights=(), opset=17):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in outputs],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def layer_norm():
    """LayerNorm as exporters of older opsets write it; a deviation of 300 overflows FP16 when squared."""
    return make(
        [
            helper.make_node("ReduceMean", ["x"], ["mean"], axes=[-1]),
            helper.make_node("Sub", ["x", "mean"], ["centred"]),
            helper.make_node("Pow", ["centred", "two"], ["squared"]),
            helper.make_node("ReduceMean", ["squared"], ["variance"], axes=[-1]),
            helper.make_node("Add", ["variance", "epsilon"], ["shifted"]),
            helper.make_node("Sqrt", ["shifted"], ["deviation"]),
            helper.make_node("Div", ["centred", "deviation"], ["y"]),
        ],
        [("x", FLOAT, ["n", 64])],
        [("y", FLOAT, ["n", 64])],
        [("two", 2.0), ("epsilon", 1e-5)],
    )


def run(model, **inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def run_literally(model, **inputs):
    """ONNX's own evaluator: FP16 nodes compute in FP16. ONNX Runtime on a CPU computes them in FP32."""
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, inputs)


def producers(model):
    return {name: node for node in model.graph.node for name in node.output}


def test_layer_norm_survives_where_the_whole_in_fp16_does_not():
    model = layer_norm()
    x = np.random.default_rng(0).normal(scale=600, size=(4, 64)).astype(np.float32)
    (expected,) = run_literally(model, x=x)

    safe = rewrite(model, "fp16", OVERFLOW_OPERATORS)
    (kept,) = run_literally(safe.model, x=x)
    (everything,) = run_literally(rewrite(model, "fp16", ()).model, x=x)

    np.testing.assert_allclose(kept, expected, atol=5e-3)
    assert not np.abs(everything - expected).max() < 0.1
    assert safe.low == 2
    assert safe.kept == 5


def test_no_cast_stands_between_two_kept_nodes():
    model = rewrite(layer_norm(), "fp16", OVERFLOW_OPERATORS).model
    made_by = producers(model)

    for node in model.graph.node:
        if node.op_type in ("Sqrt", "Add"):
            assert made_by[node.input[0]].op_type in ("Add", "ReduceMean")


def test_inputs_and_outputs_keep_their_types_and_names():
    model = layer_norm()
    new = rewrite(model, "fp16", ()).model

    assert list(new.graph.input) == list(model.graph.input)
    assert list(new.graph.output) == list(model.graph.output)
    onnx.checker.check_model(new, full_check=True)


def test_positions_that_stay_fp32_by_schema_do():
    """The scales of Resize are FP32 whatever its input."""
    model = make(
        [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest")],
        [("x", FLOAT, [1, 1, 2, 2])],
        [("y", FLOAT, [1, 1, 4, 4])],
        [("scales", [1, 1, 2, 2])],
    )
    new = rewrite(model, "fp16", ()).model
    onnx.checker.check_model(new, full_check=True)

    assert {item.name: item.data_type for item in new.graph.initializer} == {"scales": FLOAT}
    (y,) = run(new, x=np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2))
    assert y[0, 0, 3, 3] == 3


def test_explicit_casts_to_float_follow():
    model = make(
        [helper.make_node("Cast", ["ids"], ["f"], to=FLOAT), helper.make_node("MatMul", ["f", "w"], ["y"])],
        [("ids", TensorProto.INT32, ["n", 2])],
        [("y", FLOAT, ["n", 1])],
        [("w", [[2.0], [3.0]])],
    )
    new = rewrite(model, "fp16", ()).model

    (y,) = run(new, ids=np.array([[1, 2]], np.int32))
    assert y.tolist() == [[8.0]]
    assert producers(new)["f"].attribute[0].i == HALF


def test_a_weight_read_in_both_types_exists_twice():
    model = make(
        [helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Pow", ["a", "w"], ["y"])],
        [("x", FLOAT, [2])],
        [("y", FLOAT, [2])],
        [("w", [2.0, 3.0])],
    )
    new = rewrite(model, "fp16", ["Pow"]).model

    assert sorted(item.data_type for item in new.graph.initializer) == [FLOAT, HALF]
    (y,) = run(new, x=np.array([3, 2], np.float32))
    assert y.tolist() == [36.0, 216.0]


def test_a_tensor_that_a_subgraph_reads_stays_fp32_under_its_name():
    def branch(name, operator):
        return helper.make_graph(
            [helper.make_node(operator, ["a"], [name])], name, [], [helper.make_tensor_value_info(name, FLOAT, [2])]
        )

    model = make(
        [
            helper.make_node("Mul", ["x", "w"], ["a"]),
            helper.make_node("If", ["c"], ["b"], then_branch=branch("t", "Neg"), else_branch=branch("e", "Abs")),
            helper.make_node("Mul", ["b", "w"], ["y"]),
        ],
        [("x", FLOAT, [2]), ("c", TensorProto.BOOL, [])],
        [("y", FLOAT, [2])],
        [("w", [2.0, 2.0])],
    )
    new = rewrite(model, "fp16", ()).model
    onnx.checker.check_model(new, full_check=True)

    (y,) = run(new, x=np.array([1, 2], np.float32), c=np.array(True))
    assert y.tolist() == [-4.0, -8.0]


def test_an_output_that_is_also_read_inside():
    model = make(
        [helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "w"], ["y"])],
        [("x", FLOAT, [1])],
        [("a", FLOAT, [1]), ("y", FLOAT, [1])],
        [("w", [2.0])],
    )
    new = rewrite(model, "fp16", ()).model

    a, y = run(new, x=np.array([4], np.float32))
    assert (a.tolist(), y.tolist()) == ([8.0], [10.0])
    assert (a.dtype, y.dtype) == (np.float32, np.float32)


def test_bf16_rounds_the_original_weights_to_nearest_even():
    values = np.array([1.0, 1e38, 1e-38, 1 + 2**-8, 1 + 3 * 2**-8, -np.inf], np.float32)
    model = make(
        [helper.make_node("Mul", ["x", "w"], ["y"])], [("x", FLOAT, [6])], [("y", FLOAT, [6])], [("w", values)]
    )
    new = rewrite(model, "bf16", ()).model
    (weight,) = new.graph.initializer

    assert weight.data_type == BRAIN
    bits = np.frombuffer(weight.raw_data, "<u2").astype(np.uint32) << 16
    got = bits.view(np.float32)
    assert got[0] == 1.0
    assert got[1] == pytest.approx(1e38, rel=2**-8)
    assert got[2] == pytest.approx(1e-38, rel=2**-7)
    # Ties go to the even neighbour: 1 + 2^-8 down, 1 + 3 * 2^-8 up.
    assert got[3] == 1.0
    assert got[4] == 1 + 2**-6
    assert got[5] == -np.inf


def test_weights_beyond_fp16_are_clipped_and_told_of():
    model = make(
        [helper.make_node("Mul", ["x", "w"], ["y"])], [("x", FLOAT, [2])], [("y", FLOAT, [2])], [("w", [1e6, -1e9])]
    )
    done = rewrite(model, "fp16", ())

    assert numpy_helper.to_array(done.model.graph.initializer[0]).tolist() == [65504.0, -65504.0]
    assert "2 values of w" in done.warnings[0]


def test_a_model_with_nothing_to_rewrite_says_so():
    model = make(
        [helper.make_node("Identity", ["x"], ["y"])], [("x", TensorProto.INT32, [2])], [("y", TensorProto.INT32, [2])]
    )

    with pytest.raises(CannotRewrite, match="no node"):
        rewrite(model, "fp16", ())


def test_the_original_is_not_touched():
    model = layer_norm()
    before = model.SerializeToString()
    rewrite(model, "fp16", OVERFLOW_OPERATORS)

    assert model.SerializeToString() == before
