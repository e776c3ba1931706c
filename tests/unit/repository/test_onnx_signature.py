from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from optimizer.repository.onnx_signature import OnnxTensor, OnnxUnreadable, read_signature

FLOAT, INT64 = 1, 7
MakeOnnx = Callable[..., Path]


def test_initializers_are_no_inputs(tiny_onnx: Path) -> None:
    signature = read_signature(tiny_onnx)
    assert signature.inputs == (OnnxTensor("X", "FP32", (-1, 4)),)
    assert signature.outputs == (OnnxTensor("Y", "FP32", (-1, 4)),)
    assert signature.opsets == {"ai.onnx": 17}
    assert signature.can_batch


def test_an_input_with_a_default_may_be_left_out(tmp_path: Path, make_onnx: MakeOnnx) -> None:
    from onnx import helper

    path = make_onnx(
        tmp_path / "m.onnx",
        [helper.make_node("Add", ["a", "b"], ["c"])],
        [("a", FLOAT, ["n"]), ("b", FLOAT, [1])],
        [("c", FLOAT, ["n"])],
        [helper.make_tensor("b", FLOAT, [1], [0.5])],
    )
    signature = read_signature(path)
    assert [tensor.name for tensor in signature.inputs] == ["a"]
    assert signature.overridable == (OnnxTensor("b", "FP32", (1,)),)


def test_shape_inference_fills_what_the_file_leaves_open(tmp_path: Path, make_onnx: MakeOnnx) -> None:
    from onnx import helper

    path = make_onnx(
        tmp_path / "m.onnx",
        [helper.make_node("Flatten", ["a"], ["b"])],
        [("a", FLOAT, ["n", 2, 3])],
        [("b", FLOAT, ["n", "m"])],
    )
    assert read_signature(path).outputs == (OnnxTensor("b", "FP32", (-1, 6)),)


def test_a_scalar_or_a_fixed_dimension_cannot_batch(tmp_path: Path, make_onnx: MakeOnnx) -> None:
    from onnx import helper

    node = helper.make_node("Identity", ["a"], ["b"])
    for shape in ([], [1, 4]):
        path = make_onnx(tmp_path / "m.onnx", [node], [("a", FLOAT, shape)], [("b", FLOAT, shape)])
        assert not read_signature(path).can_batch


def test_external_data_of_subgraphs_is_found(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    def external(name: str, location: str) -> TensorProto:
        tensor = TensorProto(name=name, data_type=FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=location)
        return tensor

    def branch(name: str) -> onnx.GraphProto:
        constant = helper.make_node("Constant", [], [name], value=external(name, f"{name}.bin"))
        return helper.make_graph([constant], name, [], [helper.make_tensor_value_info(name, FLOAT, [1])])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("t"), else_branch=branch("e"))
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", FLOAT, [1])],
        [external("w", "w.bin"), external("v", "w.bin")],
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    assert set(read_signature(path).external_files) == {"t.bin", "e.bin", "w.bin"}


def test_sequences_and_small_floats_have_no_triton_type(tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("SequenceAt", ["s", "i"], ["y"])],
        "g",
        [
            helper.make_tensor_sequence_value_info("s", FLOAT, None),
            helper.make_tensor_value_info("i", INT64, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT8E4M3FN, [1])],
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)]).SerializeToString())
    signature = read_signature(path)
    assert (signature.inputs[0].datatype, signature.inputs[0].type_text) == (None, "sequence")
    assert signature.outputs[0].datatype is None
    assert "17" in signature.outputs[0].type_text


@pytest.mark.parametrize("content", [b"", b"no model at all", b"\0" * 32, b"\x08\x08"])
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(OnnxUnreadable):
        read_signature(path)


def test_a_file_that_is_cut_off(tmp_path: Path, tiny_onnx: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(tiny_onnx.read_bytes()[:-20])
    with pytest.raises(OnnxUnreadable):
        read_signature(path)
