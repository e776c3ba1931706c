"""The native config and the checks of an engine against it, as values."""

from __future__ import annotations

import pytest

from optimizer.engines.tensorrt.checks import check_engine
from optimizer.engines.tensorrt.configuration import configure
from optimizer.triton.protobuf import parse_config

AS_FOUND = """\
name: "m"
platform: "onnxruntime_onnx"
backend: "onnxruntime"
runtime: "model.py"
default_model_filename: "model.onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 10 ] label_filename: "labels.txt" } ]
instance_group [ { kind: KIND_CPU count: 3 } ]
dynamic_batching { preferred_batch_size: [ 6 ] max_queue_delay_microseconds: 100 }
version_policy { all {} }
cc_model_filenames { key: "9.0" value: "sm90.onnx" }
optimization {
  priority: PRIORITY_MAX
  graph { level: 1 }
  execution_accelerators { gpu_execution_accelerator [ { name: "tensorrt" } ] }
}
parameters { key: "intra_op_thread_count" value { string_value: "4" } }
parameters { key: "session.use_env_allocators" value { string_value: "1" } }
parameters { key: "mine" value { string_value: "kept" } }
model_warmup [ { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 3, 224, 224 ] zero_data: true } } } ]
"""  # noqa: E501


def tensor(name, mode, shape, datatype="FP32", ranges=(), **more):
    return {
        "name": name, "mode": mode, "datatype": datatype, "shape": list(shape), "shape_tensor": False,
        "format": "LINEAR", "profiles": [list(map(list, item)) for item in ranges], **more,
    }  # fmt: skip


def engine(*extra, most=8, x=None, y=None, profiles=1):
    ranges = [((1, 3, 224, 224), (most, 3, 224, 224), (most, 3, 224, 224))] * profiles
    return {
        "profiles": profiles,
        "tensors": [
            x or tensor("x", "input", (-1, 3, 224, 224), ranges=ranges),
            y or tensor("y", "output", (-1, 10)),
            *extra,
        ],
    }


def native(document=None, text=AS_FOUND, gpus=(0,), graphs=None):
    return configure(parse_config(text), document or engine(), gpus=gpus, graphs=graphs)


def problems(document, text=AS_FOUND):
    return [(item.code, item.message) for item in check_engine(document, native(document, text))]


def test_what_belongs_to_the_old_backend_goes():
    config = native()

    assert (config.backend, config.platform, config.default_model_filename) == (
        "tensorrt",
        "tensorrt_plan",
        "model.plan",
    )
    assert config.runtime == ""
    assert not config.cc_model_filenames
    assert sorted(config.parameters) == ["mine"]
    assert not config.optimization.HasField("execution_accelerators")
    assert not config.optimization.HasField("graph")


def test_what_clients_and_users_rely_on_stays():
    found, config = parse_config(AS_FOUND), native()

    for field in ("name", "max_batch_size", "input", "output", "dynamic_batching", "model_warmup", "version_policy"):
        assert getattr(config, field) == getattr(found, field), field
    assert config.optimization.priority == found.optimization.priority
    assert config.instance_group[0].count == 3
    assert found == parse_config(AS_FOUND)


def test_gpus_are_pinned_unless_the_config_names_some():
    group = native(gpus=(1, 2)).instance_group[0]
    assert (list(group.gpus), group.KIND_GPU) == ([1, 2], group.kind)

    named = native(text=AS_FOUND.replace("kind: KIND_CPU", "kind: KIND_GPU gpus: [ 3 ]"), gpus=(1,))
    assert list(named.instance_group[0].gpus) == [3]


def test_every_engine_output_is_listed():
    config = native(engine(tensor("hidden", "output", (-1, 7), "FP16")))

    assert [output.name for output in config.output] == ["y", "hidden"]
    assert list(config.output[1].dims) == [7]
    assert check_engine(engine(tensor("hidden", "output", (-1, 7), "FP16")), config) == []


def test_profiles_are_named_only_when_there_are_several():
    assert not native().instance_group[0].profile
    assert list(native(engine(profiles=2)).instance_group[0].profile) == ["0", "1"]


def test_cuda_graphs_come_with_the_batches_that_the_engine_takes():
    cuda = native(graphs=True).optimization.cuda

    assert cuda.graphs
    assert [spec.batch_size for spec in cuda.graph_spec] == [1, 2, 4, 6, 8]
    assert list(cuda.graph_spec[0].input["x"].dim) == [3, 224, 224]


def test_cuda_graphs_stay_off_with_shape_tensors():
    shaping = tensor("s", "input", (2,), "INT32")
    shaping["shape_tensor"] = True
    config = native(engine(shaping), graphs=True)

    assert not config.optimization.cuda.graphs
    assert not config.optimization.cuda.graph_spec


def test_a_config_that_says_graphs_keeps_them_and_another_gets_none():
    wanted = AS_FOUND.replace("priority: PRIORITY_MAX", "cuda { graphs: true }")

    assert native(text=wanted).optimization.cuda.graphs
    assert not native(text=wanted, graphs=False).optimization.HasField("cuda")
    assert not native().optimization.HasField("cuda")


def test_a_matching_engine_has_no_problem():
    assert problems(engine()) == []


@pytest.mark.parametrize(
    ("document", "code", "words"),
    [
        (
            engine(x=tensor("x", "input", (-1, 3, 224, 224), "INT64")),
            "datatype",
            "unexpected datatype TYPE_INT64 for inference input 'x', expecting TYPE_FP32",
        ),
        (engine(y=tensor("y", "output", (-1, 10), "FP8")), "datatype", "invalid datatype TYPE_FP8"),
        (
            engine(x=tensor("x", "input", (-1, 224, 224))),
            "dims",
            "the model expects 3 dimensions (shape [-1, 224, 224]) but the model configuration specifies 4 dimensions",
        ),
        (engine(y=tensor("y", "output", (-1, 11))), "dims", "dimension 0 of the model is 11"),
        (engine(x=tensor("image", "input", (-1, 3, 224, 224))), "inputs", "unexpected inference input 'x'"),
        (engine(y=tensor("z", "output", (-1, 10))), "outputs", "unexpected inference output 'y'"),
        (engine(tensor("more", "input", (-1, 1))), "inputs", "expected configuration for input 'more'"),
        (engine(most=4), "batch", "max-batch 8 but TensorRT engine only supports max-batch 4"),
        (engine(x=tensor("x", "input", (4, 3, 224, 224))), "batch", "only supports max-batch 4"),
        (engine(x=tensor("x", "input", (8, 3, 224, 224))), "batch", "fixed batch of 8"),
        (
            engine(
                x=tensor("x", "input", (-1, 3, -1, 224), ranges=[((1, 3, 32, 224), (8, 3, 64, 224), (8, 3, 96, 224))])
            ),
            "profile",
            "failed to find any Optimization Profile among [0]",
        ),
    ],
)
def test_a_plan_that_triton_would_refuse_is_told_apart(document, code, words):
    found = problems(document)

    assert code in {item[0] for item in found}
    assert any(words in item[1] for item in found if item[0] == code)


def test_a_profile_that_is_not_there():
    config = native()
    config.instance_group[0].profile.append("1")

    assert [item.code for item in check_engine(engine(), config)] == ["profile"]


def test_without_a_profile_list_only_profile_zero_counts():
    document = engine(profiles=2)
    document["tensors"][0]["profiles"][0][2][0] = 1
    config = native(document)
    assert check_engine(document, config) == []

    del config.instance_group[0].profile[:]
    assert [item.code for item in check_engine(document, config)] == ["batch"]


def test_a_model_without_a_batch():
    text = AS_FOUND.replace("max_batch_size: 8", "max_batch_size: 0").replace("dynamic_batching", "#")
    text = text.replace("# {", "#")
    document = {"profiles": 1, "tensors": [tensor("x", "input", (3, 224, 224)), tensor("y", "output", (10,))]}

    assert problems(document, text) == []
    cuda = native(document, text, graphs=True).optimization.cuda
    assert [spec.batch_size for spec in cuda.graph_spec] == [0]
