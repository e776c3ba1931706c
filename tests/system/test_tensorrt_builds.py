"""Real builds with TensorRT-RTX, which needs no GPU: real models, real knobs, real refusals.

What these plans compute is not checked here: nothing on a CPU can run them, and Triton does not load RTX plans.
"""

from __future__ import annotations

import numpy as np
import pytest

from examples.models import write_repository_entry
from optimizer.engines._base import BuildRequest
from optimizer.engines.tensorrt import TensorRTFamily
from optimizer.engines.tensorrt.checks import check_engine
from optimizer.errors import EnvironmentFailure
from optimizer.records.deployment import Deployment
from optimizer.records.engine import BuildFailure, Engine
from optimizer.records.engine import BuildFailureReason as Reason
from optimizer.records.route import Route
from optimizer.repository.reader import read_model
from optimizer.triton.protobuf import parse_config, print_config

pytestmark = pytest.mark.system

SHAPES = {
    "magika": [{"bytes": (1, 2048)}],
    "ocr_direction": [{"x": (1, 3, 48, 192)}],
    "ocr_detection": [{"x": (1, 3, 320, 320)}, {"x": (1, 3, 640, 480)}],
    "ocr_recognition": [{"x": (1, 3, 48, 320)}, {"x": (1, 3, 48, 960)}],
    "voice_activity": [{"input": (1, 512), "state": (2, 1, 128), "sr": ()}],
}


@pytest.fixture(scope="module")
def family():
    family = TensorRTFamily(module="tensorrt_rtx_bindings")
    missing = family.available()
    if missing:
        pytest.skip(missing)
    return family


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")

    def read(name):
        if not (repository / name).exists():
            try:
                write_repository_entry(name, repository)
            except EnvironmentFailure as error:
                pytest.skip(str(error))
        return read_model(repository, name)

    return read


@pytest.fixture
def build(family, tmp_path):
    def build(model, **route):
        directory = tmp_path / f"engine-{len(list(tmp_path.iterdir()))}"
        directory.mkdir()
        return family.build(
            BuildRequest(
                engine_id="e",
                model=model,
                route=Route.of(route),
                directory=directory,
                shapes=SHAPES.get(model.name, ()),
                cache_directory=tmp_path,
                time_limit_s=240,
                memory_limit_bytes=8 << 30,
            )
        )

    return build


def shape(engine, name, profile=0):
    return next(t["profiles"][profile] for t in engine.details["tensors"] if t["name"] == name)


@pytest.mark.parametrize(
    ("name", "route"),
    [
        ("magika", {}),
        ("magika", {"precision": "fp16", "opt_batch": "4"}),
        ("magika", {"precision": "bf16"}),
        ("magika", {"optimization_level": "1", "tactic_sources": "none", "workspace": "256", "sparsity": "on"}),
        ("ocr_direction", {"profiles": "batch_split"}),
        ("ocr_detection", {"precision": "fp32"}),
        ("ocr_recognition", {"precision": "fp16"}),
    ],
)
def test_real_models_build(family, read, build, name, route):
    model = read(name)
    engine = build(model, **route)

    assert isinstance(engine, Engine), f"{engine.message}\n{engine.log_excerpt}"
    assert engine.builder.startswith("TensorRT-RTX 1.")
    assert engine.files["model.plan"].read_bytes()[:4] == b"vtrt"
    assert not list(engine.files["model.plan"].parent.glob("*.onnx"))
    config = family.configure(parse_config(model.effective_config_text), engine, Route())
    assert check_engine(engine.details, config) == []
    assert shape(engine, model.inputs[0].name)[0][0] == 1
    assert shape(engine, model.inputs[0].name, -1)[2][0] == model.max_batch_size
    profiles = 2 if route.get("profiles") else 1
    assert list(config.instance_group[0].profile) == ([str(n) for n in range(profiles)] if profiles > 1 else [])


def test_a_transformer_block_builds_in_every_precision(build, tmp_path, make_onnx):
    model = write_transformer(tmp_path, make_onnx)
    sizes = {}
    for precision in ("tf32", "fp16", "bf16"):
        engine = build(model, precision=precision)
        assert isinstance(engine, Engine), f"{engine.message}\n{engine.log_excerpt}"
        sizes[precision] = engine.size_bytes
    assert sizes["fp16"] < sizes["tf32"]
    assert sizes["bf16"] < sizes["tf32"]


def test_the_recurrent_model_fails_with_tensorrts_reason(read, build):
    """Its batch is not the first dimension, so it is served with max_batch_size 0; an RTX build of it then fails inside
    TensorRT (If nodes around the sample rate). The failure is typed and says where."""
    failure = build(read("voice_activity"))

    assert isinstance(failure, BuildFailure)
    assert failure.reason is Reason.RETURNED_NOTHING
    assert "graphScope" in failure.message


def test_the_recurrent_model_is_refused_with_a_batch(family, read, tmp_path):
    model = read("voice_activity")
    config = model.config_text.replace("max_batch_size: 0", "max_batch_size: 4")
    directory = tmp_path / "repository" / "voice_activity"
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.onnx").write_bytes(model.live_version.file.read_bytes())
    (directory / "config.pbtxt").write_text(config.replace("dims: [ 2, -1, 128 ]", "dims: [ -1, 128 ]"))

    assert "input state has a fixed first dimension of 2" in family.refuses(
        read_model(directory.parent, "voice_activity")
    )


@pytest.mark.parametrize(
    ("route", "words"),
    [
        ({"hardware_compatibility": "ampere_plus"}, "keeps hardware_compatibility_level at"),
        ({"s2hgemm": "off"}, "has no build routes"),
        ({"tactic_sources": "without_cudnn"}, "edge_mask_convolutions"),
    ],
)
def test_what_rtx_does_not_have_is_not_available(family, read, build, route, words):
    failure = build(read("magika"), **route)

    assert isinstance(failure, BuildFailure)
    assert failure.reason is Reason.NOT_AVAILABLE
    assert words in failure.message
    assert not set(route) & {knob.name for knob in family.knobs(read("magika"))} - {"tactic_sources"}


def test_parse_errors_name_node_and_operator(build, tmp_path, make_onnx):
    from onnx import TensorProto, helper

    model = write_entry(
        tmp_path,
        make_onnx,
        [helper.make_node("Unique", ["x"], ["u"], name="sieve"), helper.make_node("Cast", ["u"], ["y"], to=1)],
        [("x", TensorProto.FLOAT, [4])],
        [("y", TensorProto.FLOAT, ["m"])],
    )
    failure = build(model)

    assert isinstance(failure, BuildFailure)
    assert failure.reason is Reason.UNSUPPORTED_OPERATOR
    assert "node sieve (Unique)" in failure.message


def test_an_input_whose_values_are_a_shape_needs_their_range(family, build, tmp_path, make_onnx):
    from onnx import TensorProto, helper

    model = write_entry(
        tmp_path,
        make_onnx,
        [helper.make_node("Reshape", ["x", "to"], ["y"], name="reshape")],
        [("x", TensorProto.FLOAT, [12]), ("to", TensorProto.INT64, [2])],
        [("y", TensorProto.FLOAT, ["a", "b"])],
    )
    refused = build(model)
    ranged = TensorRTFamily(module="tensorrt_rtx_bindings", options={"values.to": "1,1:3,4:12,12"})
    directory = tmp_path / "ranged"
    directory.mkdir()
    engine = ranged.build(BuildRequest(engine_id="e", model=model, route=Route(), directory=directory))

    assert isinstance(refused, BuildFailure)
    assert refused.reason is Reason.REFUSED
    assert "give their range as values.to" in refused.message
    assert isinstance(engine, Engine), f"{engine.message}\n{engine.log_excerpt}"
    config = ranged.configure(parse_config(model.effective_config_text), engine, Route())
    assert [tensor.is_shape_tensor for tensor in config.input] == [False, True]
    assert check_engine(engine.details, config) == []


def test_the_embedded_server_accepts_the_native_config(family, read, build, embedded_sandbox):
    """The server's core validates every field before it looks for the GPU, and before the backend opens the plan."""
    model = read("magika")
    engine = build(model, profiles="batch_split")
    config = family.configure(parse_config(model.effective_config_text), engine, Route.of({"cuda_graphs": "on"}))
    files = {"1/model.plan": engine.files["model.plan"]}

    def load(message):
        failure = embedded_sandbox.load(Deployment("rtx_magika", print_config(message), files))
        embedded_sandbox.unload("rtx_magika")
        return failure.message if failure else ""

    pinned = load(config)
    assert "gpu id 0" in pinned
    del config.instance_group[:]
    config.instance_group.add(kind="KIND_CPU", count=1)
    assert "No module named 'tensorrt'" in load(config)


def write_entry(tmp_path, make_onnx, nodes, inputs, outputs, weights=(), max_batch_size=0):
    def entries(tensors):
        names = {1: "TYPE_FP32", 7: "TYPE_INT64"}
        for name, kind, dims in tensors:
            sizes = [size if isinstance(size, int) else -1 for size in (dims[1:] if max_batch_size else dims)]
            yield f'{{ name: "{name}" data_type: {names[kind]} dims: {sizes} }}'

    directory = tmp_path / "repository" / "generated"
    (directory / "1").mkdir(parents=True)
    make_onnx(directory / "1" / "model.onnx", nodes, inputs, outputs, weights)
    (directory / "config.pbtxt").write_text(
        f'platform: "onnxruntime_onnx"\nmax_batch_size: {max_batch_size}\n'
        f"input [ {', '.join(entries(inputs))} ]\noutput [ {', '.join(entries(outputs))} ]\n"
    )
    return read_model(directory.parent, "generated")


def write_transformer(tmp_path, make_onnx):
    """One pre-norm encoder block, width 64, four heads, sequence 32; LayerNorm and Softmax stay FP32 by default."""
    from onnx import TensorProto, helper, numpy_helper

    width, heads, length = 64, 4, 32
    random = np.random.default_rng(7)
    weights = [
        numpy_helper.from_array(random.normal(0, 0.1, shape).astype(np.float32), name)
        for name, shape in (
            ("qkv", (width, 3 * width)), ("out", (width, width)), ("up", (width, 4 * width)),
            ("down", (4 * width, width)), ("gain", (width,)), ("bias", (width,)), ("scale", ()),
        )
    ]  # fmt: skip
    integers = {"split": [0, length, 3, heads, width // heads], "join": [0, length, width], "two": [2]}
    weights += [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in integers.items()]
    node = helper.make_node
    nodes = [
        node("LayerNormalization", ["x", "gain", "bias"], ["n1"], name="norm1"),
        node("MatMul", ["n1", "qkv"], ["p"], name="project"),
        node("Reshape", ["p", "split"], ["s"], name="heads"),
        node("Split", ["s"], ["q1", "k1", "v1"], name="parts", axis=2, num_outputs=3),
        *(node("Squeeze", [f"{part}1", "two"], [f"{part}2"], name=f"squeeze_{part}") for part in "qkv"),
        node("Transpose", ["q2"], ["q"], name="tq", perm=[0, 2, 1, 3]),
        node("Transpose", ["k2"], ["k"], name="tk", perm=[0, 2, 3, 1]),
        node("Transpose", ["v2"], ["v"], name="tv", perm=[0, 2, 1, 3]),
        node("MatMul", ["q", "k"], ["qk"], name="scores"),
        node("Mul", ["qk", "scale"], ["scaled"], name="scaling"),
        node("Softmax", ["scaled"], ["a"], name="softmax", axis=-1),
        node("MatMul", ["a", "v"], ["av"], name="mix"),
        node("Transpose", ["av"], ["back"], name="tb", perm=[0, 2, 1, 3]),
        node("Reshape", ["back", "join"], ["joined"], name="join_heads"),
        node("MatMul", ["joined", "out"], ["o"], name="output"),
        node("Add", ["x", "o"], ["r1"], name="residual1"),
        node("LayerNormalization", ["r1", "gain", "bias"], ["n2"], name="norm2"),
        node("MatMul", ["n2", "up"], ["u"], name="up_projection"),
        node("Gelu", ["u"], ["g"], name="gelu"),
        node("MatMul", ["g", "down"], ["d"], name="down_projection"),
        node("Add", ["r1", "d"], ["y"], name="residual2"),
    ]
    tensors = (("x", TensorProto.FLOAT, ["n", length, width]), ("y", TensorProto.FLOAT, ["n", length, width]))
    return write_entry(
        tmp_path,
        lambda *args: make_onnx(*args, opset=20),
        nodes,
        tensors[:1],
        tensors[1:],
        weights,
        max_batch_size=8,
    )
