"""Native ONNX Runtime configs, unchanged, on the embedded server: what clients see."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from optimizer.records.deployment import Deployment
from optimizer.records.model import TRITON_TO_NUMPY
from optimizer.triton.client import Statistics, TritonClient, TritonError, build_request, parse_response

pytestmark = pytest.mark.system

CPU = "instance_group { kind: KIND_CPU count: 1 }\n"


@contextmanager
def served(sandbox: Any, name: str, config: str, files: dict[str, Path]) -> Iterator[TritonClient]:
    failure = sandbox.load(Deployment(name, config, files))
    assert failure is None, failure.message
    try:
        with TritonClient(sandbox.info.grpc_url) as client:
            yield client
    finally:
        sandbox.unload(name)


def test_dynamic_batches_give_every_request_its_own_rows(embedded_sandbox: Any, tiny_onnx: Path) -> None:
    config = """
platform: "onnxruntime_onnx"
max_batch_size: 16
input { name: "X" data_type: TYPE_FP32 dims: 4 }
output { name: "Y" data_type: TYPE_FP32 dims: 4 }
dynamic_batching { max_queue_delay_microseconds: 20000 }
"""
    with served(embedded_sandbox, "ort_dynamic", config + CPU, {"1/model.onnx": tiny_onnx}) as client:
        before = client.statistics("ort_dynamic")

        def ask(value: int) -> bool:
            x = np.full((1 + value % 3, 4), value, np.float32)
            return np.array_equal(client.infer("ort_dynamic", {"X": x}, {"X": "FP32"})["Y"], 2 * x + 1)

        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            assert all(pool.map(ask, range(120)))
        did = client.statistics("ort_dynamic").since(before)
    assert isinstance(before, Statistics)
    assert did.inference_count == sum(1 + value % 3 for value in range(120))
    assert did.failure_count == 0
    # Requests did share runs: otherwise the splitting above proves nothing.
    assert did.execution_count < 120
    assert sum(size * count for size, count in did.batch_executions.items()) == did.inference_count


def test_all_datatypes_with_requested_outputs_only(
    embedded_sandbox: Any, tmp_path: Path, make_onnx: Callable[..., Path]
) -> None:
    kinds = {
        "BOOL": TensorProto.BOOL,
        "UINT8": TensorProto.UINT8,
        "UINT16": TensorProto.UINT16,
        "UINT32": TensorProto.UINT32,
        "UINT64": TensorProto.UINT64,
        "INT8": TensorProto.INT8,
        "INT16": TensorProto.INT16,
        "INT32": TensorProto.INT32,
        "INT64": TensorProto.INT64,
        "FP16": TensorProto.FLOAT16,
        "FP32": TensorProto.FLOAT,
        "FP64": TensorProto.DOUBLE,
        "BF16": TensorProto.BFLOAT16,
    }
    path = make_onnx(
        tmp_path / "all.onnx",
        [helper.make_node("Identity", [f"I_{kind}"], [f"O_{kind}"]) for kind in kinds],
        [(f"I_{kind}", kinds[kind], ["N", 3]) for kind in kinds],
        [(f"O_{kind}", kinds[kind], ["N", 3]) for kind in kinds],
    )
    config = 'platform: "onnxruntime_onnx" max_batch_size: 4\n' + CPU
    config += "".join(f'input {{ name: "I_{kind}" data_type: TYPE_{kind} dims: 3 }}\n' for kind in kinds)
    config += "".join(f'output {{ name: "O_{kind}" data_type: TYPE_{kind} dims: 3 }}\n' for kind in kinds)
    values = np.array([[0, 1, 2], [1, 0, 3]])
    inputs = {f"I_{kind}": values.astype(TRITON_TO_NUMPY[kind]) for kind in kinds}
    datatypes = {f"I_{kind}": kind for kind in kinds}
    with served(embedded_sandbox, "ort_types", config, {"1/model.onnx": path}) as client:
        answer, said = parse_response(client.infer_raw(build_request("ort_types", inputs, datatypes)))
        assert said == {f"O_{kind}": kind for kind in kinds}
        for kind in kinds:
            np.testing.assert_array_equal(answer[f"O_{kind}"], inputs[f"I_{kind}"], err_msg=kind)
        some = build_request("ort_types", inputs, datatypes, outputs=["O_FP16", "O_BF16"])
        assert sorted(parse_response(client.infer_raw(some))[0]) == ["O_BF16", "O_FP16"]


def test_strings(embedded_sandbox: Any, tmp_path: Path, make_onnx: Callable[..., Path]) -> None:
    path = make_onnx(
        tmp_path / "strings.onnx",
        [helper.make_node("Identity", ["X"], ["Y"])],
        [("X", TensorProto.STRING, ["N", 3])],
        [("Y", TensorProto.STRING, ["N", 3])],
    )
    config = """
platform: "onnxruntime_onnx"
max_batch_size: 4
input { name: "X" data_type: TYPE_STRING dims: 3 }
output { name: "Y" data_type: TYPE_STRING dims: 3 }
"""
    x = np.array([[b"", b"abc", "\u00e9\u4e2d".encode()], [b"x", b"", b"z"]], object)
    with served(embedded_sandbox, "ort_strings", config + CPU, {"1/model.onnx": path}) as client:
        np.testing.assert_array_equal(client.infer("ort_strings", {"X": x}, {"X": "BYTES"})["Y"], x)


def test_reshape_scalar_optional_and_no_batching(
    embedded_sandbox: Any, tmp_path: Path, make_onnx: Callable[..., Path]
) -> None:
    path = make_onnx(
        tmp_path / "odd.onnx",
        [
            helper.make_node("Mul", ["X", "S"], ["T"]),
            helper.make_node("Add", ["T", "B"], ["Y"]),
            helper.make_node("Identity", ["S"], ["U"]),
        ],
        [("X", TensorProto.FLOAT, ["N", 4]), ("S", TensorProto.FLOAT, []), ("B", TensorProto.FLOAT, [4])],
        [("Y", TensorProto.FLOAT, ["N", 4]), ("U", TensorProto.FLOAT, [])],
        [helper.make_tensor("B", TensorProto.FLOAT, [4], [1.0, 1.0, 1.0, 1.0])],
    )
    config = """
backend: "onnxruntime"
input { name: "X" data_type: TYPE_FP32 dims: [ -1, 2, 2 ] reshape { shape: [ -1, 4 ] } }
input { name: "S" data_type: TYPE_FP32 dims: [ 1 ] }
input { name: "B" data_type: TYPE_FP32 dims: [ 4 ] optional: true }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1, 2, 2 ] reshape { shape: [ -1, 4 ] } }
output { name: "U" data_type: TYPE_FP32 dims: [ 1 ] }
default_model_filename: "odd.onnx"
"""
    x = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    s = np.array([3], np.float32)
    b = np.array([5, 6, 7, 8], np.float32)
    types = {"X": "FP32", "S": "FP32", "B": "FP32"}
    with served(embedded_sandbox, "ort_odd", config + CPU, {"1/odd.onnx": path}) as client:
        answer = client.infer("ort_odd", {"X": x, "S": s}, types)
        np.testing.assert_array_equal(answer["Y"], 3 * x + 1)
        np.testing.assert_array_equal(answer["U"], s)
        answer = client.infer("ort_odd", {"X": x, "S": s, "B": b}, types)
        np.testing.assert_array_equal(answer["Y"], 3 * x + b.reshape(2, 2))


def test_a_bad_request_has_an_error_of_its_own_and_the_model_goes_on(
    embedded_sandbox: Any, tmp_path: Path, make_onnx: Callable[..., Path]
) -> None:
    path = make_onnx(
        tmp_path / "gather.onnx",
        [helper.make_node("Gather", ["table", "X"], ["Y"], axis=0)],
        [("X", TensorProto.INT64, ["N", "K"])],
        [("Y", TensorProto.FLOAT, ["N", "K"])],
        [helper.make_tensor("table", TensorProto.FLOAT, [3], [10.0, 11.0, 12.0])],
    )
    config = """
platform: "onnxruntime_onnx"
max_batch_size: 8
input { name: "X" data_type: TYPE_INT64 dims: -1 }
output { name: "Y" data_type: TYPE_FP32 dims: -1 }
dynamic_batching { max_queue_delay_microseconds: 50000 }
"""
    with served(embedded_sandbox, "ort_gather", config + CPU, {"1/model.onnx": path}) as client:
        futures = [
            client.infer_future(build_request("ort_gather", {"X": np.array([[index]])}, {"X": "INT64"}))
            for index in (0, 1, 99, 2)
        ]
        for value, future in zip([10.0, 11.0, None, 12.0], futures, strict=True):
            if value is None:
                assert "onnx runtime error" in str(future.exception())
            else:
                assert parse_response(future.result())[0]["Y"].tolist() == [[value]]
        with pytest.raises(TritonError, match="shape"):
            client.infer("ort_gather", {"X": np.array([1])}, {"X": "INT64"})


def test_external_data_as_linked_files_and_as_a_directory(embedded_sandbox: Any, tmp_path: Path) -> None:
    weights = np.arange(4096, dtype=np.float32).reshape(1, 4096)
    graph = helper.make_graph(
        [helper.make_node("Add", ["X", "W"], ["Y"])],
        "external",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["N", 4096])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["N", 4096])],
        [onnx.numpy_helper.from_array(weights, "W")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    source = tmp_path / "source"
    source.mkdir()
    onnx.save(model, source / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    config = """
platform: "onnxruntime_onnx"
max_batch_size: 2
input { name: "X" data_type: TYPE_FP32 dims: 4096 }
output { name: "Y" data_type: TYPE_FP32 dims: 4096 }
"""
    x = np.ones((1, 4096), np.float32)
    layouts = (
        {"1/model.onnx": source / "model.onnx", "1/weights.bin": source / "weights.bin"},
        {"1/model.onnx": source},
    )
    for files in layouts:
        with served(embedded_sandbox, "ort_external", config + CPU, files) as client:
            np.testing.assert_array_equal(client.infer("ort_external", {"X": x}, {"X": "FP32"})["Y"], x + weights)


def test_options_of_the_native_backend_are_taken_and_wrong_ones_refused(
    embedded_sandbox: Any, tiny_onnx: Path, tiny_config: str
) -> None:
    def with_options(level: int, **parameters: str) -> str:
        text = tiny_config + f"optimization {{ graph {{ level: {level} }} }}\n"
        for key, value in parameters.items():
            text += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        return text

    good = with_options(2, intra_op_thread_count="1", inter_op_thread_count="1", execution_mode="1")
    with served(embedded_sandbox, "ort_options", good, {"1/model.onnx": tiny_onnx}) as client:
        assert client.model_config("ort_options").optimization.graph.level == 2
        assert client.model_config("ort_options").parameters["execution_mode"].string_value == "1"
    bad = with_options(0, intra_op_thread_count="many")
    failure = embedded_sandbox.load(Deployment("ort_options", bad, {"1/model.onnx": tiny_onnx}))
    assert failure is not None
    assert failure.code == "invalid_config"
    assert "intra_op_thread_count" in failure.message
