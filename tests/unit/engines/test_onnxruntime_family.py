"""The ONNX Runtime family: real builds of tiny models, and builders that misbehave."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimizer.engines._base import BuildRequest
from optimizer.engines.onnxruntime import OnnxRuntimeFamily
from optimizer.records.engine import BuildFailure, BuildFailureReason, Engine
from optimizer.records.model import Model
from optimizer.records.route import Layer, Route
from optimizer.repository.reader import read_model
from optimizer.triton.protobuf import parse_config

ROWS = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)


@pytest.fixture(scope="session")
def dense_onnx(tmp_path_factory: pytest.TempPathFactory, make_onnx: Callable[..., Path]) -> Path:
    """Two layers that basic optimizations shorten (MatMul and Add become Gemm) and quantization takes."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(1)
    weights = [
        numpy_helper.from_array(rng.normal(size=(8, 64)).astype(np.float32), "w1"),
        numpy_helper.from_array(rng.normal(size=64).astype(np.float32), "b1"),
        numpy_helper.from_array(rng.normal(size=(64, 4)).astype(np.float32), "w2"),
    ]
    nodes = [
        helper.make_node("MatMul", ["X", "w1"], ["m"]),
        helper.make_node("Add", ["m", "b1"], ["a"]),
        helper.make_node("Identity", ["a"], ["i"]),
        helper.make_node("Relu", ["i"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["Y"]),
    ]
    return make_onnx(
        tmp_path_factory.mktemp("dense") / "model.onnx",
        nodes,
        [("X", TensorProto.FLOAT, ["N", 8])],
        [("Y", TensorProto.FLOAT, ["N", 4])],
        weights,
    )


CONFIG = """
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ 8 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt" } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


def make_model(root: Path, onnx_file: Path, more: str = "", name: str = "model.onnx") -> Model:
    version = root / "repository" / "dense" / "1"
    version.mkdir(parents=True)
    (version / name).write_bytes(onnx_file.read_bytes())
    (version.parent / "labels.txt").write_text("a\nb\nc\nd\n", encoding="utf-8")
    (version.parent / "config.pbtxt").write_text(CONFIG + more, encoding="utf-8")
    return read_model(root / "repository", "dense")


def build(root: Path, model: Model, family: OnnxRuntimeFamily | None = None, **values: str) -> Engine | BuildFailure:
    directory = root / "engine"
    directory.mkdir()
    request = BuildRequest("e1", model, Route.of(values), directory, time_limit_s=120)
    return (family or OnnxRuntimeFamily(cores=2)).build(request)


def built(outcome: Engine | BuildFailure) -> Engine:
    assert isinstance(outcome, Engine), outcome
    return outcome


def answers(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"X": ROWS})[0]


def configured(model: Model, engine: Engine, **values: str) -> Any:
    return OnnxRuntimeFamily(cores=2).configure(parse_config(model.config_text), engine, Route.of(values))


def test_the_default_route_is_the_file_as_found(tmp_path: Path, dense_onnx: Path) -> None:
    model = make_model(tmp_path, dense_onnx)
    engine = built(build(tmp_path, model))
    assert dict(engine.files) == {"model.onnx": model.directory / "1" / "model.onnx"}
    assert engine.build_s == 0
    assert list((tmp_path / "engine").iterdir()) == []
    assert configured(model, engine) == parse_config(model.config_text)


@pytest.mark.parametrize("level", ["basic", "extended", "all"])
def test_the_optimized_graph_is_written_once_and_served_as_it_is(tmp_path: Path, dense_onnx: Path, level: str) -> None:
    as_found = "optimization { graph { level: 2 } }"
    model = make_model(tmp_path, dense_onnx, as_found)
    engine = built(build(tmp_path, model, graph_optimization=level))
    assert engine.details["operators"].get("Identity") is None
    assert sum(engine.details["operators"].values()) < 5
    np.testing.assert_allclose(answers(engine.files["model.onnx"]), answers(dense_onnx), rtol=1e-5)
    assert configured(model, engine).optimization.graph.level == 2
    assert engine.size_bytes == engine.files["model.onnx"].stat().st_size
    assert [bool(caveat) for caveat in engine.details["caveats"]] == ([] if level == "basic" else [True])
    json.dumps(dict(engine.details))


def test_disabling_optimizations_needs_no_new_file(tmp_path: Path, dense_onnx: Path) -> None:
    model = make_model(tmp_path, dense_onnx)
    engine = built(build(tmp_path, model, graph_optimization="disabled"))
    assert engine.files["model.onnx"] == model.directory / "1" / "model.onnx"
    config = configured(model, engine)
    assert config.optimization.graph.level == 2
    config.ClearField("optimization")
    assert config == parse_config(model.config_text)


def test_int8_weights(tmp_path: Path, dense_onnx: Path) -> None:
    model = make_model(tmp_path, dense_onnx)
    engine = built(build(tmp_path, model, quantization="int8_dynamic", graph_optimization="basic"))
    assert engine.details["quantized_operators"] > 0
    assert engine.details["served_level"] == "disabled"
    expected = answers(dense_onnx)
    got = answers(engine.files["model.onnx"])
    assert 0 < np.abs(got - expected).max() < 0.05 * np.abs(expected).max()
    assert {path.name for path in (tmp_path / "engine").iterdir()} == {"model.onnx", "build.log"}
    assert any("VNNI" in caveat for caveat in engine.details["caveats"])


def test_int8_alone_is_optimized_by_the_backend_as_before(tmp_path: Path, dense_onnx: Path) -> None:
    model = make_model(tmp_path, dense_onnx)
    engine = built(build(tmp_path, model, quantization="int8_dynamic"))
    assert configured(model, engine) == parse_config(model.config_text)


def test_a_model_without_anything_to_quantize_is_refused(tmp_path: Path, tiny_repository: Path) -> None:
    outcome = build(tmp_path, read_model(tiny_repository, "tiny"), quantization="int8_dynamic")
    assert isinstance(outcome, BuildFailure)
    assert outcome.reason is BuildFailureReason.REFUSED
    assert "no operator" in outcome.message


def test_an_old_opset_is_refused_for_quantization(tmp_path: Path, make_onnx: Callable[..., Path]) -> None:
    from onnx import TensorProto, helper, numpy_helper

    old = make_onnx(
        tmp_path / "old.onnx",
        [helper.make_node("MatMul", ["X", "w"], ["Y"])],
        [("X", TensorProto.FLOAT, ["N", 8])],
        [("Y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(np.ones((8, 4), np.float32), "w")],
        opset=10,
    )
    outcome = build(tmp_path, make_model(tmp_path, old), quantization="int8_dynamic")
    assert isinstance(outcome, BuildFailure)
    assert outcome.reason is BuildFailureReason.REFUSED
    assert outcome.message.startswith("opset 10")


def test_external_data_travels_with_the_model(tmp_path: Path, dense_onnx: Path) -> None:
    import onnx

    model = make_model(tmp_path, dense_onnx)
    file = model.directory / "1" / "model.onnx"
    onnx.save(onnx.load(dense_onnx), file, save_as_external_data=True, location="weights.bin", size_threshold=0)
    model = read_model(tmp_path / "repository", "dense")
    engine = built(OnnxRuntimeFamily().build(BuildRequest("e", model, Route(), tmp_path)))
    assert set(engine.files) == {"model.onnx", "weights.bin"}
    assert engine.size_bytes == sum(path.stat().st_size for path in engine.files.values())

    optimized = built(build(tmp_path, model, graph_optimization="extended", quantization="int8_dynamic"))
    assert next(iter(optimized.files)) == "model.onnx"
    served = tmp_path / "served"
    served.mkdir()
    for name, path in optimized.files.items():
        (served / name).write_bytes(path.read_bytes())
    np.testing.assert_allclose(answers(served / "model.onnx"), answers(dense_onnx), atol=1)

    (model.directory / "1" / "weights.bin").unlink()
    outcome = OnnxRuntimeFamily().build(BuildRequest("e", model, Route(), tmp_path))
    assert isinstance(outcome, BuildFailure)
    assert outcome.reason is BuildFailureReason.PARSE_ERROR
    assert "'weights.bin' is missing" in outcome.message


def test_a_model_in_a_directory(tmp_path: Path, dense_onnx: Path) -> None:
    version = tmp_path / "repository" / "dense" / "1" / "model.onnx"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(dense_onnx.read_bytes())
    (version.parent.parent / "labels.txt").write_text("a\n", encoding="utf-8")
    (version.parent.parent / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    model = read_model(tmp_path / "repository", "dense")
    assert dict(built(OnnxRuntimeFamily().build(BuildRequest("e", model, Route(), tmp_path))).files) == {
        "model.onnx": version
    }
    engine = built(build(tmp_path, model, graph_optimization="basic"))
    assert engine.files["model.onnx"].is_file()


def test_a_default_model_filename_is_kept(tmp_path: Path, dense_onnx: Path) -> None:
    model = make_model(tmp_path, dense_onnx, 'default_model_filename: "net.onnx"', name="net.onnx")
    engine = built(build(tmp_path, model, graph_optimization="basic"))
    assert set(engine.files) == {"net.onnx"}
    assert configured(model, engine).default_model_filename == "net.onnx"


def test_a_file_that_is_no_model(tmp_path: Path, dense_onnx: Path) -> None:
    model = make_model(tmp_path, dense_onnx)
    (model.directory / "1" / "model.onnx").write_bytes(b"\x08\x07 not a model")
    outcome = build(tmp_path, model, graph_optimization="basic")
    assert isinstance(outcome, BuildFailure)
    assert outcome.reason is BuildFailureReason.PARSE_ERROR


def test_an_operator_that_the_runtime_does_not_have(tmp_path: Path, dense_onnx: Path) -> None:
    import onnx

    model = make_model(tmp_path, dense_onnx)
    broken = onnx.load(dense_onnx)
    broken.graph.node[2].op_type = "Levitate"
    onnx.save(broken, model.directory / "1" / "model.onnx")
    outcome = build(tmp_path, model, graph_optimization="basic")
    assert isinstance(outcome, BuildFailure)
    assert outcome.reason is BuildFailureReason.UNSUPPORTED_OPERATOR
    assert "Levitate" in outcome.message
    assert "Levitate" in outcome.log_excerpt


@pytest.mark.parametrize(
    ("code", "reason", "says"),
    [
        ("import os; print('about to die', flush=True); os.abort()", BuildFailureReason.CRASH, "signal 6"),
        ("import os; os.kill(os.getpid(), 9)", BuildFailureReason.OUT_OF_MEMORY, "signal 9"),
        ("import sys; sys.exit(3)", BuildFailureReason.CRASH, "status 3"),
        ("pass", BuildFailureReason.RETURNED_NOTHING, "left no model"),
        ("import sys; open(sys.argv[2], 'w').write('{garbage')", BuildFailureReason.RETURNED_NOTHING, "left no model"),
        ("bytearray(1 << 34)", BuildFailureReason.OUT_OF_MEMORY, "within 2048 MiB"),
        ("import time; time.sleep(600)", BuildFailureReason.TIMEOUT, "not done after 2 s"),
    ],
)
def test_builders_that_misbehave(
    tmp_path: Path, dense_onnx: Path, code: str, reason: BuildFailureReason, says: str
) -> None:
    family = OnnxRuntimeFamily(worker=[sys.executable, "-c", code])
    directory = tmp_path / "engine"
    directory.mkdir()
    request = BuildRequest(
        "e1",
        make_model(tmp_path, dense_onnx),
        Route.of({"graph_optimization": "basic"}),
        directory,
        time_limit_s=2 if "sleep" in code else 60,
        memory_limit_bytes=2 << 30,
    )
    outcome = family.build(request)
    assert isinstance(outcome, BuildFailure)
    assert outcome.reason is reason
    assert says in outcome.message
    assert outcome.engine_id == "e1"
    if "about to die" in code:
        assert outcome.exit_signal == 6
        assert "about to die" in outcome.log_excerpt


def test_the_real_builder_within_too_little_memory(tmp_path: Path, dense_onnx: Path) -> None:
    directory = tmp_path / "engine"
    directory.mkdir()
    route = Route.of({"graph_optimization": "basic"})
    request = BuildRequest("e1", make_model(tmp_path, dense_onnx), route, directory, memory_limit_bytes=96 << 20)
    outcome = OnnxRuntimeFamily().build(request)
    assert isinstance(outcome, BuildFailure)
    assert outcome.reason is BuildFailureReason.OUT_OF_MEMORY


def test_unknown_values_are_refused_not_raised(tmp_path: Path, dense_onnx: Path) -> None:
    model = make_model(tmp_path, dense_onnx)
    for values in ({"graph_optimization": "most"}, {"quantization": "int4"}):
        (tmp_path / "engine").rmdir() if (tmp_path / "engine").exists() else None
        outcome = build(tmp_path, model, **values)
        assert isinstance(outcome, BuildFailure)
        assert outcome.reason is BuildFailureReason.REFUSED


def test_knobs_have_the_live_config_as_their_default(tmp_path: Path, dense_onnx: Path) -> None:
    more = (
        "optimization { graph { level: 1 } }\n"
        'parameters { key: "intra_op_thread_count" value: { string_value: "3" } }\n'
    )
    model = make_model(tmp_path, dense_onnx, more)
    knobs = {knob.name: knob for knob in OnnxRuntimeFamily(cores=4).knobs(model)}
    assert knobs["graph_optimization"].default == "extended"
    assert knobs["intra_op_threads"].default == "3"
    assert knobs["intra_op_threads"].values == ("0", "1", "2", "3", "4")
    assert knobs["intra_op_threads"].layer is Layer.SERVING
    assert knobs["quantization"].layer is Layer.PRECISION


def test_on_a_gpu_nothing_cpu_specific_is_written(tmp_path: Path, dense_onnx: Path) -> None:
    model = make_model(tmp_path, dense_onnx)
    text = model.config_text.replace("KIND_CPU", "KIND_GPU")
    (model.directory / "config.pbtxt").write_text(text, encoding="utf-8")
    model = read_model(tmp_path / "repository", "dense")
    family = OnnxRuntimeFamily(gpu=True, cores=2)
    assert [knob.name for knob in family.knobs(model)] == ["graph_optimization"]
    engine = built(build(tmp_path, model, family, graph_optimization="extended"))
    assert engine.files["model.onnx"] == model.directory / "1" / "model.onnx"
    assert family.configure(parse_config(text), engine, Route()).optimization.graph.level == 1


@pytest.mark.parametrize(
    ("found", "asked", "level"),
    [("", "extended", 1), ("", "basic", -1), ("", "disabled", 2), ("level: 1", "all", None), ("level: 2", "basic", -1)],
)
def test_levels_are_written_as_the_native_backend_reads_them(
    tmp_path: Path, dense_onnx: Path, found: str, asked: str, level: int | None
) -> None:
    engine = Engine("e", "onnxruntime", {"model.onnx": dense_onnx}, "", 0, 0, "", details={"served_level": asked})
    config = parse_config(CONFIG + (f"optimization {{ priority: PRIORITY_MAX graph {{ {found} }} }}" if found else ""))
    changed = OnnxRuntimeFamily().configure(config, engine, Route())
    if level is None:
        assert not changed.optimization.HasField("graph")
        assert changed.optimization.priority == config.optimization.priority != 0
    else:
        assert changed.optimization.graph.level == level


def test_threads_are_a_text_parameter(tmp_path: Path, dense_onnx: Path) -> None:
    model = make_model(tmp_path, dense_onnx, 'parameters { key: "mine" value: { string_value: "kept" } }')
    engine = built(build(tmp_path, model))
    config = configured(model, engine, intra_op_threads="2", instances="4")
    assert config.parameters["intra_op_thread_count"].string_value == "2"
    assert config.parameters["mine"].string_value == "kept"
    assert len(config.instance_group) == 1
    assert config.instance_group[0].count == 1


def test_configs_of_other_backends_become_proper_onnxruntime_configs(dense_onnx: Path) -> None:
    engine = Engine("e", "onnxruntime", {"model.onnx": dense_onnx}, "", 0, 0, "", details={"served_level": "all"})
    plan = CONFIG.replace("onnxruntime_onnx", "tensorrt_plan")
    plan += 'backend: "tensorrt" default_model_filename: "model.plan" runtime: "model.py"'
    changed = OnnxRuntimeFamily().configure(parse_config(plan), engine, Route())
    assert (changed.platform, changed.backend) == ("onnxruntime_onnx", "onnxruntime")
    assert changed.default_model_filename == "model.onnx"
    assert not changed.runtime
    bare = OnnxRuntimeFamily().configure(
        parse_config(CONFIG.replace('platform: "onnxruntime_onnx"', "")), engine, Route()
    )
    assert bare.backend == "onnxruntime"


def test_what_the_family_cannot_serve(tmp_path: Path, dense_onnx: Path) -> None:
    model = make_model(tmp_path, dense_onnx)
    family = OnnxRuntimeFamily()
    assert family.available() is None
    assert family.refuses(model) is None
    assert "no such ONNX file" in str(family.refuses(model, tmp_path / "none.onnx"))
    (model.directory / "1" / "model.onnx").unlink()
    assert "no version" in str(family.refuses(read_model(tmp_path / "repository", "dense")))
    assert set(family.facts()) == {"onnxruntime", "onnx"}
