"""The TensorRT backend's own decisions, on doubles of TensorRT and CUDA whose device is the CPU (``tensorrt_doubles``).

What only a GPU can show (right answers of real engines, speed, real CUDA errors) is in ``tests/gpu``.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import triton_templates

DOUBLES = Path(__file__).with_name("tensorrt_doubles")
REPLACED = ("tensorrt", "cuda", "model", "triton_python_backend_utils")


class Backend:
    """The modules, imported over the doubles, and a way to load a model."""

    def __init__(self, repository: Path) -> None:
        self.model: ModuleType = importlib.import_module("model")
        self.cuda: ModuleType = importlib.import_module("cuda.bindings.runtime")
        self.utils: ModuleType = importlib.import_module("triton_python_backend_utils")
        self.settings: ModuleType = importlib.import_module("trt_settings")
        self.repository = repository
        self.loaded: list[Any] = []

    def load(
        self, plan: dict[str, Any] | bytes, config: dict[str, Any], *, kind: str = "GPU", name: str = "m_0_0"
    ) -> Any:
        (self.repository / "1").mkdir(exist_ok=True)
        data = plan if isinstance(plan, bytes) else json.dumps(plan).encode()
        file = self.repository / "1" / config.get("default_model_filename", "model.plan")
        if not file.exists() or file.read_bytes() != data:
            file.write_bytes(data)
        instance = self.model.TritonPythonModel()
        self.loaded.append(instance)
        instance.initialize(
            {
                "model_config": json.dumps(config),
                "model_instance_name": name,
                "model_instance_kind": kind,
                "model_instance_device_id": "0",
                "model_repository": str(self.repository),
                "model_version": "1",
            }
        )
        return instance

    def request(self, outputs: Sequence[str] = ("y",), parameters: dict[str, Any] | None = None, **inputs: Any) -> Any:
        tensors = [self.utils.Tensor(name, np.asarray(value)) for name, value in inputs.items()]
        return self.utils.InferenceRequest(tensors, list(outputs), parameters)

    def run(self, instance: Any, *requests: Any) -> list[Any]:
        """A dict of arrays, or the text of the error, for each request."""
        return self.answers(requests, instance.execute(list(requests)))

    def answers(self, requests: Sequence[Any], returned: Sequence[Any]) -> list[Any]:
        """Returned by ``execute``, or sent by the request's sender where that returned ``None``."""
        return [
            request.sender.answer()
            if answer is None
            else answer.error().message()
            if answer.error()
            else answer.copied()
            for request, answer in zip(requests, returned, strict=True)
        ]


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    def replaced(name: str) -> bool:
        return name.split(".")[0] in REPLACED or name.startswith("trt_")

    saved = {name: module for name, module in sys.modules.items() if replaced(name)}
    for name in saved:
        del sys.modules[name]
    monkeypatch.syspath_prepend(str(DOUBLES))
    monkeypatch.syspath_prepend(str(triton_templates.path("tensorrt")))
    monkeypatch.delenv("TENSORRT_BACKEND_PROFILE", raising=False)
    monkeypatch.delenv("TENSORRT_BACKEND_ENGINE_PROCESS", raising=False)
    made = Backend(tmp_path)
    try:
        made.cuda.reset()
        made.utils.Logger.lines.clear()
        yield made
        for instance in made.loaded:
            instance.finalize()
    finally:
        for name in [name for name in sys.modules if replaced(name)]:
            del sys.modules[name]
        sys.modules.update(saved)


def tensor(name: str, shape: list[int], kind: str = "FLOAT", **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": shape, "type": kind, **more}


def plan(function: str = "affine", low: int = 1, high: int = 8, width: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "function": function,
        "tensors": [tensor("x", [-1, width], input=True), tensor("y", [-1, 1 if function == "row_sum" else width])],
        "profiles": [{"x": [[low, width], [high, width], [high, width]]}],
        **more,
    }


def config(max_batch: int = 8, width: int = 4, out: int | None = None, **more: Any) -> dict[str, Any]:
    return {
        "name": "m",
        "max_batch_size": max_batch,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [width]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [width if out is None else out]}],
        "instance_group": [{"name": "m_0", "kind": "KIND_GPU", "count": 1, "gpus": [0]}],
        **more,
    }


GRAPHS = {"optimization": {"cuda": {"graphs": True}}}


def rows(count: int, start: float = 0, width: int = 4) -> np.ndarray:
    return np.arange(start, start + count * width, dtype=np.float32).reshape(count, width)


def test_requests_of_one_call_run_as_one_batch(backend: Backend) -> None:
    instance = backend.load(plan(), config())
    backend.cuda.calls.clear()
    batches = [rows(1), rows(3, 100), rows(2, -50)]
    answers = backend.run(instance, *(backend.request(x=batch) for batch in batches))
    for answer, batch in zip(answers, batches, strict=True):
        np.testing.assert_array_equal(answer["y"], batch * 2 + 1)
    assert backend.cuda.calls == ["cudaMemcpyAsync", "cudaMemcpyAsync", "cudaStreamSynchronize"]


def test_more_rows_than_the_engine_takes_run_in_several_batches(backend: Backend) -> None:
    instance = backend.load(plan(), config())
    batches = [rows(5, start) for start in (0, 1000, 2000)]
    answers = backend.run(instance, *(backend.request(x=batch) for batch in batches))
    for answer, batch in zip(answers, batches, strict=True):
        np.testing.assert_array_equal(answer["y"], batch * 2 + 1)


def test_shapes_of_one_call_are_grouped_and_a_bad_one_fails_alone(backend: Backend) -> None:
    free = plan("row_sum")
    free["tensors"][0]["shape"] = [-1, -1]
    free["profiles"] = [{"x": [[1, 2], [4, 4], [8, 6]]}]
    instance = backend.load(free, config(width=-1, out=1))
    inputs = [rows(2, 0, 3), rows(1, 5, 9), rows(1, 7, 6), rows(3, 9, 3)]
    answers = backend.run(instance, *(backend.request(x=value) for value in inputs))
    assert "no optimization profile in use admits: 'x' [1,9]" in answers[1]
    assert "profile 0: 'x' [1,2] to [8,6]" in answers[1]
    for index in (0, 2, 3):
        np.testing.assert_array_equal(answers[index]["y"], inputs[index].sum(axis=1, keepdims=True))


def test_profiles_in_use_are_those_of_the_instance_group(backend: Backend) -> None:
    two = plan("affine", high=2)
    two["profiles"].append({"x": [[3, 4], [8, 4], [8, 4]]})
    with pytest.raises(
        backend.utils.TritonModelException, match="configuration specified max-batch 8 but TensorRT engine"
    ):
        backend.load(two, config())
    both = config(instance_group=[{"name": "m_0", "kind": "KIND_GPU", "profile": ["0", "1"]}])
    instance = backend.load(two, both)
    for count in (2, 3, 8):
        np.testing.assert_array_equal(
            backend.run(instance, backend.request(x=rows(count)))[0]["y"], rows(count) * 2 + 1
        )
    with pytest.raises(
        backend.utils.TritonModelException, match=r"failed to find any Optimization Profile among \[7\]"
    ):
        backend.load(two, config(instance_group=[{"name": "m_0", "kind": "KIND_GPU", "profile": ["7"]}]))


def test_graphs_are_never_stale_when_sizes_and_inputs_alternate(backend: Backend) -> None:
    instance = backend.load(plan(), config(**GRAPHS))
    backend.cuda.calls.clear()
    for round_number in range(3):
        for count in (1, 5, 8, 2):
            value = rows(count, 10 * round_number)
            answer = backend.run(instance, backend.request(x=value))[0]["y"]
            np.testing.assert_array_equal(answer, value * 2 + 1)
    # 5 is no default size, so it goes the ordinary way: two copies.
    assert backend.cuda.calls.count("cudaGraphLaunch") == 9
    assert backend.cuda.calls.count("cudaMemcpyAsync") == 6


def test_graph_with_a_lower_bound_serves_smaller_batches_by_padding(backend: Backend) -> None:
    spec = {"batch_size": 8, "graph_lower_bound": {"batch_size": 5}}
    instance = backend.load(plan(), config(optimization={"cuda": {"graphs": True, "graph_spec": [spec]}}))
    backend.cuda.calls.clear()
    for count, launches in ((8, 1), (6, 2), (5, 3), (4, 3)):
        answer = backend.run(instance, backend.request(x=rows(count)))[0]["y"]
        np.testing.assert_array_equal(answer, rows(count) * 2 + 1)
        assert backend.cuda.calls.count("cudaGraphLaunch") == launches


def test_a_plan_without_profile_sharing_is_served_without_graphs_and_says_so(backend: Backend) -> None:
    instance = backend.load(plan(sharing=False), config(**GRAPHS))
    np.testing.assert_array_equal(backend.run(instance, backend.request(x=rows(2)))[0]["y"], rows(2) * 2 + 1)
    assert any("PROFILE_SHARING_0806" in text for _, text in backend.utils.Logger.lines)
    assert "cudaGraphLaunch" not in backend.cuda.calls


def test_several_inputs_and_outputs_and_only_the_requested_ones(backend: Backend) -> None:
    document = {
        "function": "two",
        "tensors": [
            tensor("a", [-1, 2], input=True),
            tensor("b", [-1, 2], "HALF", input=True),
            tensor("sum", [-1, 2]),
            tensor("more", [-1, 2], "HALF"),
        ],
        "profiles": [{"a": [[1, 2], [4, 2], [4, 2]], "b": [[1, 2], [4, 2], [4, 2]]}],
    }
    settings = config(max_batch=4)
    settings["input"] = [
        {"name": "b", "data_type": "TYPE_FP16", "dims": [2]},
        {"name": "a", "data_type": "TYPE_FP32", "dims": [2]},
    ]
    settings["output"] = [
        {"name": "sum", "data_type": "TYPE_FP32", "dims": [2]},
        {"name": "more", "data_type": "TYPE_FP16", "dims": [2]},
    ]
    instance = backend.load(document, settings)
    a, b = rows(2, width=2), rows(2, 7, width=2).astype(np.float16)
    both, one, missing = backend.run(
        instance,
        backend.request(("sum", "more"), b=b, a=a),
        backend.request(("more",), b=b, a=a),
        backend.request(("sum",), a=a),
    )
    np.testing.assert_array_equal(both["sum"], a + b)
    np.testing.assert_array_equal(both["more"], b + np.float16(1))
    assert list(one) == ["more"]
    assert missing == "input 'b' is missing: this engine needs every input"


def test_scalars_without_a_batch_dimension(backend: Backend) -> None:
    document = {
        "function": "scale",
        "tensors": [
            tensor("x", [-1, 2], input=True),
            tensor("factor", [], input=True),
            tensor("y", [-1, 2]),
            tensor("total", []),
        ],
        "profiles": [{"x": [[1, 2], [4, 2], [9, 2]], "factor": [[], [], []]}],
    }
    settings = config(max_batch=0)
    settings["input"] = [
        {"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 2]},
        {"name": "factor", "data_type": "TYPE_FP32", "dims": [1]},
    ]
    settings["output"] = [
        {"name": "y", "data_type": "TYPE_FP32", "dims": [-1, 2]},
        {"name": "total", "data_type": "TYPE_FP32", "dims": [1]},
    ]
    instance = backend.load(document, settings)
    names = ("y", "total")
    requests = [backend.request(names, x=rows(n, width=2), factor=np.full(1, n, np.float32)) for n in (3, 1, 9)]
    for n, answer in zip((3, 1, 9), backend.run(instance, *requests), strict=True):
        np.testing.assert_array_equal(answer["y"], rows(n, width=2) * n)
        np.testing.assert_array_equal(answer["total"], [(rows(n, width=2) * n).sum()])


def test_shape_tensors_decide_about_the_output_and_buffers_grow(backend: Backend) -> None:
    document = {
        "function": "expand",
        "tensors": [
            tensor("x", [1, 2], input=True),
            tensor("shape", [2], "INT32", input=True, host=True),
            tensor("y", [-1, -1]),
        ],
    }
    settings = config(max_batch=0, **GRAPHS)
    settings["input"] = [
        {"name": "x", "data_type": "TYPE_FP32", "dims": [1, 2]},
        {"name": "shape", "data_type": "TYPE_INT32", "dims": [2], "is_shape_tensor": True},
    ]
    settings["output"] = [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1, -1]}]
    instance = backend.load(document, settings)
    x = np.array([[3, 4]], np.float32)
    for count in (1, 700, 2):
        answer = backend.run(instance, backend.request(x=x, shape=np.array([count, 2], np.int32)))[0]["y"]
        np.testing.assert_array_equal(answer, np.broadcast_to(x, (count, 2)))


def test_a_fixed_batch_engine_refuses_other_batches_and_goes_on(backend: Backend) -> None:
    fixed = plan()
    fixed["tensors"] = [tensor("x", [8, 4], input=True), tensor("y", [8, 4])]
    fixed["profiles"] = [{}]
    instance = backend.load(fixed, config())
    refused = backend.run(instance, backend.request(x=rows(1)))[0]
    assert "profile 0: 'x' [8,4] to [8,4]" in refused
    np.testing.assert_array_equal(backend.run(instance, backend.request(x=rows(8)))[0]["y"], rows(8) * 2 + 1)


def test_int64_is_served_by_an_int32_engine_only_when_asked(backend: Backend) -> None:
    narrow = plan("affine")
    narrow["tensors"] = [tensor("x", [-1, 4], "INT32", input=True), tensor("y", [-1, 4], "INT32")]
    settings = config()
    settings["input"][0]["data_type"] = settings["output"][0]["data_type"] = "TYPE_INT64"
    with pytest.raises(
        backend.utils.TritonModelException,
        match="unexpected datatype TYPE_INT32 for inference input 'x', expecting TYPE_INT64",
    ):
        backend.load(narrow, settings)
    instance = backend.load(narrow, {**settings, "parameters": {"int64_as_int32": {"string_value": "true"}}})
    fits, too_large = backend.run(
        instance,
        backend.request(x=np.full((2, 4), 2**30 - 1, np.int64)),
        backend.request(x=np.full((1, 4), 2**31, np.int64)),
    )
    assert fits["y"].dtype == np.int64
    assert (fits["y"] == 2**31 - 1).all()
    assert too_large == "input 'x' has values that do not fit the engine's INT32"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output": []}, "expected configuration for output 'y' for model 'm'"),
        (
            {"input": [{"name": "z", "data_type": "TYPE_FP32", "dims": [4]}]},
            "unexpected inference input 'z' for model 'm', the engine has: x",
        ),
        (
            {"input": [{"name": "x", "data_type": "TYPE_FP16", "dims": [4]}]},
            "unexpected datatype TYPE_FP32 for inference input 'x', expecting TYPE_FP16",
        ),
        (
            {"input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [5]}]},
            r"the model expects 2 dimensions \(shape \[-1,4\]\) but the model configuration specifies 2 dimensions "
            r"\(shape \[-1,5\]\)",
        ),
        ({"max_batch_size": 9}, "configuration specified max-batch 9 but TensorRT engine only supports max-batch 8"),
    ],
)
def test_a_config_that_contradicts_the_engine_is_refused_in_triton_s_words(
    backend: Backend, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(backend.utils.TritonModelException, match=message):
        backend.load(plan(), {**config(), **change})
    assert not backend.cuda.live
    assert backend.cuda.state["streams"] == 0


def test_plans_of_another_release_and_broken_plans_name_file_and_machine(backend: Backend) -> None:
    with pytest.raises(
        backend.utils.TritonModelException,
        match=r"Current Version: 236, Serialized Engine Version: 239 \(plan file '.*model.plan', served by "
        r"TensorRT 8.6.0 on Double GPU, compute 9.0, GPU 0",
    ):
        backend.load(plan(version=239), config())
    with pytest.raises(backend.utils.TritonModelException, match=r"unable to create TensorRT engine: .*magicTagRead"):
        backend.load(b"not a plan", config())
    with pytest.raises(backend.utils.TritonModelException, match="KIND_CPU of model 'm' is not supported"):
        backend.load(plan(), config(), kind="KIND_CPU")
    named = config(cc_model_filenames={"9.0": "sm90.plan"})
    with pytest.raises(backend.utils.TritonModelException, match=r"unable to find '.*sm90.plan'"):
        backend.load(plan(), named)
    assert not backend.cuda.live


def test_an_output_whose_size_depends_on_the_data_is_refused_at_load(backend: Backend) -> None:
    odd = plan("unknown_size")
    odd["tensors"][1]["shape"] = [-1, 4]
    with pytest.raises(backend.utils.TritonModelException, match=r"output 'y' has shape \[-1\]: its size depends"):
        backend.load(odd, config())


def test_out_of_memory_at_load_is_named_and_gives_everything_back(backend: Backend) -> None:
    backend.cuda.state["memory_limit"] = 1500
    with pytest.raises(
        backend.utils.TritonModelException, match=r"out of GPU memory: cudaHostAlloc.*use fewer instances"
    ):
        backend.load(plan(), config())
    assert not backend.cuda.live


def test_an_error_that_cuda_survives_fails_the_call_and_not_the_next(backend: Backend) -> None:
    instance = backend.load(plan(), config(**GRAPHS))
    backend.cuda.state["fail_next"]["cudaGraphLaunch"] = 1
    failed = backend.run(instance, backend.request(x=rows(2)), backend.request(x=rows(2)))
    assert all("cudaGraphLaunch: cudaErrorInvalidValue (1)" in text for text in failed)
    assert instance.is_ready()
    backend.cuda.calls.clear()
    np.testing.assert_array_equal(backend.run(instance, backend.request(x=rows(4)))[0]["y"], rows(4) * 2 + 1)
    assert "cudaGraphLaunch" in backend.cuda.calls


def test_a_lost_gpu_context_is_said_to_every_later_request(backend: Backend) -> None:
    faults = {"parameters": {"fault_injection": {"string_value": "on"}}}
    instance = backend.load(plan(), config(**faults))
    failed = backend.run(instance, backend.request(x=rows(2), parameters={"inject_cuda_error": True}))[0]
    assert "cudaErrorIllegalAddress (700)" in failed
    assert "the GPU context is lost for instance 'm_0_0': unload the model" in failed
    assert not instance.is_ready()
    assert backend.run(instance, backend.request(x=rows(1)))[0] == failed


def test_everything_is_given_back_at_unload(backend: Backend) -> None:
    instance = backend.load(plan(), config(**GRAPHS))
    backend.run(instance, backend.request(x=rows(3)))
    assert backend.cuda.live
    instance.finalize()
    assert not backend.cuda.live
    assert backend.cuda.state["streams"] == 0


def test_phases_add_up_and_are_written(backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORRT_BACKEND_PROFILE", str(tmp_path))
    instance = backend.load(plan(), config())
    for _ in range(3):
        backend.run(instance, backend.request(x=rows(2)), backend.request(x=rows(1)))
    instance.finalize()
    (written,) = tmp_path.glob("m_0_0.*.json")
    summary = json.loads(written.read_text(encoding="ascii"))
    assert (summary["executions"], summary["requests_per_execution"], summary["rows_per_execution"]) == (3, 2.0, 3.0)
    assert {"gather_us", "copy_in_us", "compute_us", "copy_out_us", "respond_us", "outside_us"} <= set(summary)


def test_graph_sizes_follow_the_native_backend(backend: Backend) -> None:
    def sizes(**more: Any) -> list[int]:
        return [spec.batch_size for spec in backend.settings.default_graphs({"max_batch_size": 32, **more})]

    assert sizes() == [1, 2, 3, 4, 6, 8, 12, 16, 32]
    assert sizes(dynamic_batching={"preferred_batch_size": [8, "16"]}) == [1, 8, 16, 32]
    assert [spec.batch_size for spec in backend.settings.default_graphs({"max_batch_size": 4})] == [1, 2, 3, 4]


# One engine for several instances. The engine process is a real one, with the doubles in it.

SHARED = {"parameters": {"engine_process": {"string_value": "shared"}}}


def engine_pid(instance: Any) -> int:
    return int(instance._session._pid)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_instances_share_one_engine_process_that_ends_with_the_last(backend: Backend) -> None:
    first, second = (backend.load(plan(), config(**SHARED, **GRAPHS), name=name) for name in ("m_0_0", "m_0_1"))
    assert engine_pid(first) == engine_pid(second)
    # The instances themselves hold nothing on the GPU.
    assert not backend.cuda.live
    for instance in (first, second, first):
        for count in (1, 5, 8):
            answer = backend.run(instance, backend.request(x=rows(count)), backend.request(x=rows(2, 50)))
            np.testing.assert_array_equal(answer[0]["y"], rows(count) * 2 + 1)
            np.testing.assert_array_equal(answer[1]["y"], rows(2, 50) * 2 + 1)
    pid = engine_pid(first)
    first.finalize()
    assert alive(pid)
    np.testing.assert_array_equal(backend.run(second, backend.request(x=rows(3)))[0]["y"], rows(3) * 2 + 1)
    second.finalize()
    assert not alive(pid)


def test_an_engine_process_that_is_killed_is_replaced_and_the_request_answered(backend: Backend) -> None:
    first, second = (backend.load(plan(), config(**SHARED), name=name) for name in ("m_0_0", "m_0_1"))
    backend.run(first, backend.request(x=rows(4)))
    killed = engine_pid(first)
    os.kill(killed, signal.SIGKILL)
    for instance in (first, second):
        np.testing.assert_array_equal(backend.run(instance, backend.request(x=rows(4)))[0]["y"], rows(4) * 2 + 1)
    assert engine_pid(first) == engine_pid(second) != killed


def test_a_lost_gpu_context_fails_one_request_and_not_the_other_instance(backend: Backend) -> None:
    faults = {"parameters": {**SHARED["parameters"], "fault_injection": {"string_value": "on"}}}
    first, second = (backend.load(plan(), config(**faults), name=name) for name in ("m_0_0", "m_0_1"))
    failed = backend.run(first, backend.request(x=rows(2), parameters={"inject_cuda_error": True}))[0]
    assert "cudaErrorIllegalAddress (700)" in failed
    assert "the engine process ends" in failed
    for instance in (second, first):
        assert instance.is_ready()
        np.testing.assert_array_equal(backend.run(instance, backend.request(x=rows(2)))[0]["y"], rows(2) * 2 + 1)


def test_the_engine_process_s_refusals_are_those_of_an_own_engine(backend: Backend) -> None:
    with pytest.raises(backend.utils.TritonModelException, match="Serialized Engine Version: 239"):
        backend.load(plan(version=239), config(**SHARED))
    with pytest.raises(backend.utils.TritonModelException, match="expected configuration for output 'y'"):
        backend.load(plan(), {**config(**SHARED), "output": []})
    instance = backend.load(plan(), config(**SHARED))
    refused = backend.run(instance, backend.request(x=rows(2, width=5)))[0]
    assert "no optimization profile in use admits: 'x' [2,5]; allowed are profile 0: 'x' [1,4] to [8,4]" in refused


def test_shape_tensors_and_growing_buffers_through_the_engine_process(backend: Backend) -> None:
    document = {
        "function": "expand",
        "tensors": [
            tensor("x", [1, 2], input=True),
            tensor("shape", [2], "INT32", input=True, host=True),
            tensor("y", [-1, -1]),
        ],
    }
    settings = config(max_batch=0, **SHARED)
    settings["input"] = [
        {"name": "x", "data_type": "TYPE_FP32", "dims": [1, 2]},
        {"name": "shape", "data_type": "TYPE_INT32", "dims": [2], "is_shape_tensor": True},
    ]
    settings["output"] = [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1, -1]}]
    instance = backend.load(document, settings)
    x = np.array([[3, 4]], np.float32)
    for count in (1, 700, 2):
        answer = backend.run(instance, backend.request(x=x, shape=np.array([count, 2], np.int32)))[0]["y"]
        np.testing.assert_array_equal(answer, np.broadcast_to(x, (count, 2)))


def test_a_plan_without_profile_sharing_gives_every_further_instance_its_own_engine(backend: Backend) -> None:
    first, second = (backend.load(plan(sharing=False), config(**SHARED), name=name) for name in ("m_0_0", "m_0_1"))
    assert any("an engine of its own" in text for _, text in backend.utils.Logger.lines)
    for instance in (first, second):
        np.testing.assert_array_equal(backend.run(instance, backend.request(x=rows(2)))[0]["y"], rows(2) * 2 + 1)


def test_several_instances_on_one_gpu_share_by_default(backend: Backend) -> None:
    group = {"name": "m_0", "kind": "KIND_GPU", "count": 2, "gpus": [0]}
    shared = backend.load(plan(), config(instance_group=[group]))
    assert engine_pid(shared)
    with pytest.raises(backend.utils.TritonModelException, match="engine_process is 'both': use auto, own or shared"):
        backend.load(plan(), config(parameters={"engine_process": {"string_value": "both"}}))
