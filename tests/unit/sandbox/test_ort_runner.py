"""The python-based ONNX Runtime backend without Triton: the modules beside its ``model.py``, on real sessions."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import triton_templates

sys.path.insert(0, str(triton_templates.path("onnxruntime")))
ort_options: Any = importlib.import_module("ort_options")
ort_checks: Any = importlib.import_module("ort_checks")
ort_runner: Any = importlib.import_module("ort_runner")
ort_bfloat16: Any = importlib.import_module("ort_bfloat16")
sys.path.pop(0)


def tensor(name: str, datatype: str, dims: Sequence[int], **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": f"TYPE_{datatype}", "dims": [str(dim) for dim in dims], **more}


def config(inputs: Sequence[Any], outputs: Sequence[Any], batch: int = 0, **more: Any) -> dict[str, Any]:
    return {"name": "m", "max_batch_size": batch, "input": list(inputs), "output": list(outputs), **more}


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.fixture
def double(tiny_onnx: Path) -> Any:
    batched = config([tensor("X", "FP32", [4])], [tensor("Y", "FP32", [4])], 8)
    return ort_runner.Runner(session(tiny_onnx), batched)


def rows(*values: float) -> np.ndarray:
    return np.array([[value] * 4 for value in values], np.float32)


# Sharing a run


class Counting:
    """A session that counts its runs."""

    def __init__(self, inner: onnxruntime.InferenceSession) -> None:
        self.inner = inner
        self.batches: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def run(self, names: Any, feeds: Any, options: Any) -> Any:
        self.batches.append(next(iter(feeds.values())).shape[0])
        return self.inner.run(names, feeds, options)


def test_requests_of_equal_shape_share_one_run_and_get_their_own_rows(double: Any) -> None:
    double.session = Counting(double.session)
    answers = double.answer([{"X": rows(1)}, {"X": rows(2, 3)}, {"X": rows(4)}])
    assert double.session.batches == [4]
    np.testing.assert_array_equal([a["Y"][:, 0].tolist() for a in answers[:1]], [[3]])
    np.testing.assert_array_equal(answers[1]["Y"], rows(5, 7))
    np.testing.assert_array_equal(answers[2]["Y"], rows(9))


def test_no_requests_no_answers(double: Any) -> None:
    assert double.answer([]) == []


@pytest.fixture
def divide(tmp_path: Path, make_onnx: Callable[..., Path]) -> Any:
    """Y[i] = table[X[i]]: an index outside the table fails the run."""
    table = numpy_helper.from_array(np.array([10.0, 11.0, 12.0], np.float32), "table")
    path = make_onnx(
        tmp_path / "gather.onnx",
        [helper.make_node("Gather", ["table", "X"], ["Y"], axis=0)],
        [("X", TensorProto.INT64, ["N", "K"])],
        [("Y", TensorProto.FLOAT, ["N", "K"])],
        [table],
    )
    return ort_runner.Runner(session(path), config([tensor("X", "INT64", [-1])], [tensor("Y", "FP32", [-1])], 8))


def test_a_failing_request_has_its_own_error_and_harms_no_other(divide: Any) -> None:
    good, bad, other = np.array([[0, 1]]), np.array([[0, 7]]), np.array([[2]])
    answers = divide.answer([{"X": good}, {"X": bad}, {"X": other}, {"X": good}])
    np.testing.assert_array_equal(answers[0]["Y"], [[10.0, 11.0]])
    assert isinstance(answers[1], Exception)
    assert "out of" in str(answers[1])
    np.testing.assert_array_equal(answers[2]["Y"], [[12.0]])
    np.testing.assert_array_equal(answers[3]["Y"], [[10.0, 11.0]])


def test_an_output_without_the_batch_dimension_is_an_error_not_a_wrong_slice(
    tmp_path: Path, make_onnx: Callable[..., Path]
) -> None:
    # As many rows as there are elements other than zero: rows of one request would be given to another.
    path = make_onnx(
        tmp_path / "nonzero.onnx",
        [helper.make_node("NonZero", ["X"], ["T"]), helper.make_node("Transpose", ["T"], ["Y"])],
        [("X", TensorProto.FLOAT, ["N", 4])],
        [("Y", TensorProto.INT64, ["M", 2])],
    )
    runner = ort_runner.Runner(session(path), config([tensor("X", "FP32", [4])], [tensor("Y", "INT64", [2])], 8))
    one = np.array([[0, 5, 0, 0]], np.float32)
    two = np.array([[0, 5, 5, 0]], np.float32)
    first, second = runner.answer([{"X": one}, {"X": two}])
    assert first["Y"].tolist() == [[0, 1]]
    assert "shape [2, 2] for a batch of 1" in str(second)


def test_without_batching_every_request_runs_alone(tiny_onnx: Path) -> None:
    runner = ort_runner.Runner(
        Counting(session(tiny_onnx)), config([tensor("X", "FP32", [-1, 4])], [tensor("Y", "FP32", [-1, 4])])
    )
    answers = runner.answer([{"X": rows(1)}, {"X": rows(2, 3)}])
    assert runner.session.batches == [1, 2]
    np.testing.assert_array_equal(answers[1]["Y"], rows(5, 7))


def test_scalars_come_and_go_as_one_element(tmp_path: Path, make_onnx: Callable[..., Path]) -> None:
    path = make_onnx(
        tmp_path / "scalar.onnx",
        [helper.make_node("Mul", ["X", "S"], ["Y"]), helper.make_node("Identity", ["S"], ["T"])],
        [("X", TensorProto.FLOAT, ["N"]), ("S", TensorProto.FLOAT, [])],
        [("Y", TensorProto.FLOAT, ["N"]), ("T", TensorProto.FLOAT, [])],
    )
    spec = config(
        [tensor("X", "FP32", [-1]), tensor("S", "FP32", [1])], [tensor("Y", "FP32", [-1]), tensor("T", "FP32", [1])]
    )
    (answer,) = ort_runner.Runner(session(path), spec).answer(
        [{"X": np.array([1, 2], np.float32), "S": np.array([3], np.float32)}]
    )
    assert answer["Y"].tolist() == [3, 6]
    assert answer["T"].shape == (1,)


def test_optional_inputs_fall_back_to_their_initializer(tmp_path: Path, make_onnx: Callable[..., Path]) -> None:
    path = make_onnx(
        tmp_path / "optional.onnx",
        [helper.make_node("Add", ["X", "B"], ["Y"])],
        [("X", TensorProto.FLOAT, [2]), ("B", TensorProto.FLOAT, [2])],
        [("Y", TensorProto.FLOAT, [2])],
        [helper.make_tensor("B", TensorProto.FLOAT, [2], [10.0, 20.0])],
    )
    spec = config([tensor("X", "FP32", [2]), tensor("B", "FP32", [2], optional=True)], [tensor("Y", "FP32", [2])])
    runner = ort_runner.Runner(session(path), spec)
    x = np.array([1, 2], np.float32)
    without, given = runner.answer([{"X": x}, {"X": x, "B": x}])
    assert without["Y"].tolist() == [11, 22]
    assert given["Y"].tolist() == [2, 4]


NUMPY = {
    "BOOL": (TensorProto.BOOL, np.bool_),
    "UINT8": (TensorProto.UINT8, np.uint8),
    "UINT16": (TensorProto.UINT16, np.uint16),
    "UINT32": (TensorProto.UINT32, np.uint32),
    "UINT64": (TensorProto.UINT64, np.uint64),
    "INT8": (TensorProto.INT8, np.int8),
    "INT16": (TensorProto.INT16, np.int16),
    "INT32": (TensorProto.INT32, np.int32),
    "INT64": (TensorProto.INT64, np.int64),
    "FP16": (TensorProto.FLOAT16, np.float16),
    "FP32": (TensorProto.FLOAT, np.float32),
    "FP64": (TensorProto.DOUBLE, np.float64),
    "STRING": (TensorProto.STRING, np.object_),
}


@pytest.mark.parametrize("name", NUMPY)
def test_every_datatype_passes_unchanged(name: str, tmp_path: Path, make_onnx: Callable[..., Path]) -> None:
    onnx_type, dtype = NUMPY[name]
    path = make_onnx(
        tmp_path / "same.onnx",
        [helper.make_node("Identity", ["X"], ["Y"])],
        [("X", onnx_type, ["N", 2])],
        [("Y", onnx_type, ["N", 2])],
    )
    runner = ort_runner.Runner(session(path), config([tensor("X", name, [2])], [tensor("Y", name, [2])], 4))
    x = np.array([[b"a", "\u00e9".encode()]], object) if name == "STRING" else np.array([[1, 0]]).astype(dtype)
    first, second = runner.answer([{"X": x}, {"X": x[:, ::-1]}])
    expected = [[v.decode() for v in row] for row in x] if name == "STRING" else x.tolist()
    assert first["Y"].tolist() == expected
    assert second["Y"].dtype == dtype


def test_strings_that_are_not_utf8(tmp_path: Path, make_onnx: Callable[..., Path]) -> None:
    path = make_onnx(
        tmp_path / "length.onnx",
        [helper.make_node("Equal", ["X", "X"], ["Y"])],
        [("X", TensorProto.STRING, ["N", 2])],
        [("Y", TensorProto.BOOL, ["N", 2])],
        opset=19,
    )
    runner = ort_runner.Runner(session(path), config([tensor("X", "STRING", [2])], [tensor("Y", "BOOL", [2])], 4))
    (answer,) = runner.answer([{"X": np.array([[b"\xff\xfe", b"a"]], object)}])
    assert answer["Y"].tolist() == [[True, True]]


def test_bfloat16_is_carried_as_bits(tmp_path: Path, make_onnx: Callable[..., Path]) -> None:
    path = make_onnx(
        tmp_path / "bf16.onnx",
        [
            helper.make_node("Cast", ["X"], ["F"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["F", "F"], ["G"]),
            helper.make_node("Cast", ["G"], ["Y"], to=TensorProto.BFLOAT16),
        ],
        [("X", TensorProto.BFLOAT16, ["N", 2])],
        [("Y", TensorProto.BFLOAT16, ["N", 2]), ("G", TensorProto.FLOAT, ["N", 2])],
    )
    runner = ort_runner.Runner(
        session(path), config([tensor("X", "BF16", [2])], [tensor("Y", "BF16", [2]), tensor("G", "FP32", [2])], 4)
    )
    one, two, four, minus = 0x3F80, 0x4000, 0x4080, 0xBF80
    first, second = runner.answer(
        [{"X": np.array([[one, two]], np.uint16)}, {"X": np.array([[minus, one]], np.uint16)}]
    )
    assert first["Y"].tolist() == [[two, four]]
    assert second["Y"].tolist() == [[0xC000, two]]
    assert second["G"].tolist() == [[-2.0, 2.0]]


# The config against the model


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (config([tensor("X", "FP32", [5])], [tensor("Y", "FP32", [4])], 8), r"\[-1,4\]\) but .* \[-1,5\]"),
        (config([tensor("X", "FP32", [4])], [tensor("Y", "FP32", [4])]), "specifies 1 dimensions"),
        (config([tensor("X", "FP16", [4])], [tensor("Y", "FP32", [4])], 8), "expects datatype TYPE_FP16 for input"),
        (config([tensor("X", "FP32", [4])], [tensor("Y", "FP64", [4])], 8), "expects datatype TYPE_FP64 for output"),
        (config([tensor("Z", "FP32", [4])], [tensor("Y", "FP32", [4])], 8), "unexpected inference input 'Z'"),
        (config([tensor("X", "FP32", [4])], [tensor("Z", "FP32", [4])], 8), "unexpected inference output 'Z'"),
        # An output's dims must agree exactly, an input's may be narrower than the model's.
        (config([tensor("X", "FP32", [4])], [tensor("Y", "FP32", [-1])], 8), r"\[-1,4\]\) but .* \[-1,-1\]"),
        (config([], [tensor("Y", "FP32", [4])], 8), "expects 0 inputs, model provides 1"),
        (config([tensor("X", "FP32", [4], optional=True)], [tensor("Y", "FP32", [4])], 8), "expects 0 inputs"),
        (config([tensor("X", "FP32", [4], allow_ragged_batch=True)], [tensor("Y", "FP32", [4])], 8), "ragged.*native"),
        (config([tensor("X", "BF16", [4])], [tensor("Y", "STRING", [4])], 8), "BF16 beside STRING.*native"),
        (config([tensor("X", "FP32", [4])], [tensor("Y", "FP32", [4])], 8, batch_input=[{}]), "batch_input.*native"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(spec: dict[str, Any], words: str, tiny_onnx: Path) -> None:
    with pytest.raises(ort_checks.MismatchError, match=words):
        ort_runner.Runner(session(tiny_onnx), spec)


def test_reshape_is_what_the_model_sees(tiny_onnx: Path) -> None:
    spec = config(
        [tensor("X", "FP32", [2, 2], reshape={"shape": ["4"]})],
        [tensor("Y", "FP32", [2, 2], reshape={"shape": ["4"]})],
        8,
    )
    assert ort_runner.Runner(session(tiny_onnx), spec).output_names == ["Y"]


def test_batching_needs_a_free_first_dimension(tmp_path: Path, make_onnx: Callable[..., Path]) -> None:
    path = make_onnx(
        tmp_path / "fixed.onnx",
        [helper.make_node("Identity", ["X"], ["Y"])],
        [("X", TensorProto.FLOAT, [8, 4])],
        [("Y", TensorProto.FLOAT, [8, 4])],
    )
    with pytest.raises(ort_checks.MismatchError, match="first dimension must be -1"):
        ort_runner.Runner(session(path), config([tensor("X", "FP32", [4])], [tensor("Y", "FP32", [4])], 8))


# Options


def parse(**config: Any) -> Any:
    return ort_options.parse(config)


def parameters(**values: str) -> dict[str, Any]:
    return {"parameters": {key: {"string_value": value} for key, value in values.items()}}


@pytest.mark.parametrize(
    ("level", "name"),
    [(-1, "ORT_ENABLE_BASIC"), (0, "ORT_ENABLE_ALL"), (1, "ORT_ENABLE_EXTENDED"), (2, "ORT_DISABLE_ALL")],
)
def test_graph_level_as_the_native_backend_numbers_it(level: int, name: str) -> None:
    assert parse(optimization={"graph": {"level": level}}).graph_level == name


def test_defaults() -> None:
    assert parse() == ort_options.Options()
    made = ort_options.session_options(parse())
    assert made.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert made.execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    assert ort_options.run_options(parse()) is None


def test_parameters_reach_onnx_runtime() -> None:
    options = parse(
        **parameters(
            intra_op_thread_count="3",
            inter_op_thread_count="2",
            execution_mode="1",
            enable_mem_arena="0",
            enable_mem_pattern="false",
            unknown_to_the_native_backend_too="1",
            **{"session.use_device_allocator_for_initializers": "1", "memory.enable_memory_arena_shrinkage": "cpu:0"},
        )
    )
    made = ort_options.session_options(options)
    assert (made.intra_op_num_threads, made.inter_op_num_threads) == (3, 2)
    assert made.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert not made.enable_cpu_mem_arena
    assert not made.enable_mem_pattern
    assert made.get_session_config_entry("session.use_device_allocator_for_initializers") == "1"
    assert ort_options.run_options(options).get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"execution_mode": "2"}, "0 or 1 but got 2"),
        ({"intra_op_thread_count": "many"}, "'intra_op_thread_count'.*'many'"),
        ({"enable_mem_arena": "perhaps"}, "'enable_mem_arena'.*boolean"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, str], words: str) -> None:
    with pytest.raises(ort_options.ConfigError, match=words):
        parse(**parameters(**values))


GPU = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")


def accelerated(*accelerators: dict[str, Any]) -> dict[str, Any]:
    return {"optimization": {"execution_accelerators": {"gpu_execution_accelerator": list(accelerators)}}}


def test_accelerators_become_providers() -> None:
    tensorrt = {
        "name": "tensorrt",
        "parameters": {"precision_mode": "FP16", "max_workspace_size_bytes": "1024", "trt_engine_cache_enable": "1"},
    }
    options = ort_options.parse(accelerated(tensorrt), "GPU", 2, GPU)
    assert options.providers == (
        (
            "TensorrtExecutionProvider",
            {
                "device_id": "2",
                "trt_fp16_enable": "1",
                "trt_max_workspace_size": "1024",
                "trt_engine_cache_enable": "1",
            },
        ),
        ("CUDAExecutionProvider", {"device_id": "2"}),
        "CPUExecutionProvider",
    )


@pytest.mark.parametrize(
    ("accelerator", "available", "words"),
    [
        ({"name": "tensorrt", "parameters": {"trt_fp16": "1"}}, GPU, "unknown parameter 'trt_fp16'"),
        ({"name": "tensorrt", "parameters": {"precision_mode": "FP8"}}, GPU, "unsupported precision mode 'FP8'"),
        ({"name": "magic"}, GPU, "unknown Execution Accelerator 'magic'"),
        ({"name": "cuda"}, ("CPUExecutionProvider",), "KIND_GPU needs ONNX Runtime's CUDAExecutionProvider"),
    ],
)
def test_wrong_accelerators_are_refused(accelerator: dict[str, Any], available: tuple[str, ...], words: str) -> None:
    with pytest.raises(ort_options.ConfigError, match=words):
        ort_options.parse(accelerated(accelerator), "GPU", 0, available)


def test_templates_by_name() -> None:
    assert "onnxruntime" in triton_templates.names()
    assert (triton_templates.path("onnxruntime") / "model.py").is_file()
    with pytest.raises(KeyError, match=r"no template 'nothing'; there are: .*onnxruntime"):
        triton_templates.path("nothing")
