"""Routes through the family, over a stand-in with a tuner and one with weak typing."""

from __future__ import annotations

import dataclasses
import json

import pytest
from tensorrt_entries import CONFIG, STAND_INS, family, tiny_onnx, write_entry

from optimizer.engines.tensorrt import TensorRTFamily
from optimizer.engines.tensorrt.checks import same_engine
from optimizer.records.engine import BuildFailure, Engine
from optimizer.records.engine import BuildFailureReason as Reason
from optimizer.records.route import Route
from optimizer.triton.protobuf import parse_config


def test_an_engine_is_described_by_itself(build, entry):
    engine = build("fake_tensorrt", entry)

    assert isinstance(engine, Engine)
    assert engine.builder == "TensorRT 11.1.0-fake"
    assert engine.device_memory_bytes == 4096
    assert engine.files["model.plan"].stat().st_size == engine.size_bytes
    assert engine.details["source"] == "engine"
    x, y = engine.details["tensors"]
    assert (x["datatype"], x["shape"], x["profiles"]) == ("FP32", [-1, 16], [[[1, 16], [8, 16], [8, 16]]])
    assert (y["name"], y["mode"], y["shape"]) == ("y", "output", [-1, 4])
    json.dumps(engine.details)


def test_a_build_route_is_read_back(build, entry):
    taken = build("fake_tensorrt", entry, {"s2hgemm": "off"})
    lost = build("fake_tensorrt", entry, {"s2hgemm": "off", "no_such_knob": "on"})

    assert isinstance(taken, Engine)
    assert taken.details["taken"]["build_route"] == "-s2hgemm=off"
    assert isinstance(lost, BuildFailure)
    assert lost.reason is Reason.NOT_AVAILABLE
    assert "did not take -no_such_knob=on" in lost.message


def test_the_tuner_and_its_environment_are_in_the_fingerprint(monkeypatch):
    monkeypatch.setenv("TRT_BYPASS_BUILD_ROUTE_WHITELIST", "1")
    facts = TensorRTFamily(module="fake_tensorrt", python_path=str(STAND_INS)).facts()

    assert facts["tuner"] == "2.19.45"
    assert facts["env.TRT_BYPASS_BUILD_ROUTE_WHITELIST"] == "1"


def test_engines_that_are_really_the_same_are_recognised(build, entry):
    default = build("fake_tensorrt", entry)
    workspace = build("fake_tensorrt", entry, {"workspace": "256"})
    other = build("fake_tensorrt", entry, {"s2hgemm": "off"})
    batch = build("fake_tensorrt", entry, {"opt_batch": "2"})

    assert default.sha256 != workspace.sha256
    assert same_engine(default, workspace)
    assert not same_engine(default, other)
    assert not same_engine(default, batch)


def test_builder_knobs_are_set_and_read_back(build, entry):
    settings = {
        "optimization_level": "5",
        "tiling_level": "fast",
        "l2_limit": "1048576",
        "aux_streams": "2",
        "max_tactics": "8",
        "tactic_sources": "without_jit_convolutions",
        "sparsity": "on",
        "hardware_compatibility": "ampere_plus",
        "version_compatible": "on",
        "workspace": "256",
    }
    engine = build("fake_tensorrt", entry, settings)

    assert isinstance(engine, Engine)
    assert engine.details["taken"]["builder"] == settings


@pytest.mark.parametrize(
    ("knob", "value", "words"),
    [
        ("optimization_level", "high", "takes an integer"),
        ("tiling_level", "huge", "none, fast"),
        ("tactic_sources", "without_cudnn", "edge_mask_convolutions"),
        ("sparsity", "yes", "on or off"),
        ("precision", "fp4", "no rewriting|takes types from the network"),
    ],
)
def test_a_wrong_value_names_knob_and_choices(build, entry, knob, value, words):
    failure = build("fake_tensorrt", entry, {knob: value})

    assert isinstance(failure, BuildFailure)
    assert failure.reason is Reason.NOT_AVAILABLE
    assert f"{knob}={value}" in failure.message
    assert any(word in failure.message for word in words.split("|"))


def test_weak_typing_uses_flags_and_strong_typing_rewrites(build, entry):
    weak = build("fake_weak", entry, {"precision": "fp16", "keep_fp32": "none"})
    strong = build("fake_tensorrt", entry, {"precision": "fp16"})

    assert isinstance(weak, Engine), weak
    assert weak.details["taken"]["flags"] == {"fp16": True}
    assert isinstance(strong, Engine), strong
    assert strong.details["taken"]["flags"] == {}
    # Inputs and outputs keep their types, whatever happens in between.
    assert {tensor["datatype"] for tensor in strong.details["tensors"]} == {"FP32"}


def test_knobs_follow_the_builder(entry):
    strong = {knob.name: knob for knob in family().knobs(entry)}
    weak = {knob.name: knob for knob in family("fake_weak").knobs(entry)}

    assert strong["precision"].values == ("tf32", "fp32", "fp16", "bf16")
    assert weak["precision"].values == ("tf32", "fp32", "fp16")
    assert "sparsity" in strong
    assert "sparsity" not in weak
    assert strong["opt_batch"].values == ("1", "2", "4", "8")
    assert strong["opt_batch"].default == "8"
    assert all(knob.default in knob.values for knob in strong.values())


def test_int64_is_refused_where_it_would_become_int32(tmp_path):
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Cast", ["ids"], ["y"], name="cast", to=TensorProto.FLOAT)],
        "ids",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
    )
    config = CONFIG.replace('"x" data_type: TYPE_FP32 dims: [ 16 ]', '"ids" data_type: TYPE_INT64 dims: [ 4 ]')
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    entry = write_entry(tmp_path / "repository", model, config)

    assert family().refuses(entry) is None
    assert "INT32" in (family("fake_weak").refuses(entry) or "")


def test_outputs_that_the_service_does_not_have_leave_the_engine(build, tmp_path):
    entry = write_entry(tmp_path / "repository", tiny_onnx(extra_output=True))
    engine = build("fake_tensorrt", entry)

    assert engine.details["removed_outputs"] == ["hidden"]
    assert [tensor["name"] for tensor in engine.details["tensors"]] == ["x", "y"]


def test_a_fixed_batch_is_refused_with_the_input_named(tmp_path):
    entry = write_entry(tmp_path / "repository", tiny_onnx(batch=4))

    assert "input x has a fixed first dimension of 4" in (family().refuses(entry) or "")


def test_the_profile_reaches_a_larger_serving_batch(build, entry):
    engine = build("fake_tensorrt", entry, {"max_batch_size": "32"})

    assert engine.details["tensors"][0]["profiles"][0][2] == [32, 16]


def test_the_timing_cache_is_shared_and_a_broken_one_is_set_aside(build, entry, tmp_path):
    caches = tmp_path / "caches"
    caches.mkdir()
    first = build("fake_tensorrt", entry, cache_directory=caches)
    again = build("fake_tensorrt", entry, {"opt_batch": "2"}, cache_directory=caches)
    (file,) = caches.glob("timing-*.cache")
    content = file.read_bytes()
    file.write_bytes(b"of another release")
    broken = build("fake_tensorrt", entry, cache_directory=caches)

    assert first.details["timing_cache"].startswith("new")
    assert again.details["timing_cache"].startswith("loaded")
    assert "set aside" in broken.details["timing_cache"]
    assert file.read_bytes() == content
    assert [path.read_bytes() for path in caches.glob("*.incompatible-0")] == [b"of another release"]


def test_other_flags_have_another_timing_cache(build, entry, tmp_path):
    caches = tmp_path / "caches"
    caches.mkdir()
    build("fake_tensorrt", entry, cache_directory=caches)
    build("fake_tensorrt", entry, {"sparsity": "on"}, cache_directory=caches)

    assert len(list(caches.glob("timing-*.cache"))) == 2


def test_two_profiles_get_their_places_in_the_config(build, entry):
    engine = build("fake_tensorrt", entry, {"profiles": "batch_split"})
    config = family().configure(parse_config(entry.effective_config_text), engine, Route())

    assert [shape[1][0] for shape in engine.details["tensors"][0]["profiles"]] == [1, 8]
    assert list(config.instance_group[0].profile) == ["0", "1"]


def test_a_plan_that_does_not_fit_the_config_is_stopped_with_tritons_error(build, entry):
    """The config changed after the model was read: what Triton would say at load comes from the build."""
    text = entry.effective_config_text.replace("dims: [ 4 ]", "dims: [ 5 ]")
    assert text != entry.effective_config_text
    failure = build("fake_tensorrt", dataclasses.replace(entry, effective_config_text=text))

    assert isinstance(failure, BuildFailure)
    assert failure.reason is Reason.INVALID_ENGINE
    assert "tensor 'y'" in failure.message
