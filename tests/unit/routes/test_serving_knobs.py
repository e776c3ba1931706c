"""Triton's own knobs: defaults are what is there, values are sensible, and applying them changes nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.errors import InputError
from optimizer.records.model import Model, ModelFormat
from optimizer.records.route import Knob, Route
from optimizer.routes.serving import (
    apply_serving,
    nameable_serving_knobs,
    serving_caveats,
    serving_exclusions,
    serving_knobs,
)
from optimizer.triton.protobuf import parse_config
from tests.unit.routes.conftest import model_from

IO = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" } ]
"""
PLAIN = f'platform: "onnxruntime_onnx"\nmax_batch_size: 8\n{IO}'


def by_name(knobs: tuple[Knob, ...]) -> dict[str, Knob]:
    return {knob.name: knob for knob in knobs}


def offered(model: Model, *, gpu: bool = False, cores: int = 4, family: str = "") -> dict[str, Knob]:
    return by_name(serving_knobs(model, gpu=gpu, cores=cores, family=family))


def applied(text: str, **values: str) -> Any:
    return apply_serving(parse_config(text), Route.of(values))


def test_defaults_are_what_the_config_says() -> None:
    text = PLAIN + (
        "instance_group [ { kind: KIND_CPU count: 3 } ]\n"
        "dynamic_batching { max_queue_delay_microseconds: 250 preferred_batch_size: [ 4, 2 ] }\n"
    )
    knobs = offered(model_from(text))
    assert {name: knob.default for name, knob in knobs.items()} == {
        "instances": "3",
        "dynamic_batching": "on",
        "queue_delay_us": "250",
        "preferred_batch_sizes": "2,4",
    }
    assert all(knob.default in knob.values for knob in knobs.values())
    assert knobs["queue_delay_us"].values == ("0", "250", "1000", "5000")
    assert knobs["instances"].values == ("1", "2", "3", "4")


def test_triton_runs_two_instances_of_onnx_runtime_on_a_cpu_unless_told() -> None:
    assert offered(model_from(PLAIN))["instances"].default == "2"
    assert offered(model_from(PLAIN), gpu=True)["instances"].default == "1"
    assert offered(model_from(PLAIN + "instance_group [ { kind: KIND_CPU } ]"), gpu=True)["instances"].default == "2"
    assert offered(model_from(f'backend: "python"\nmax_batch_size: 8\n{IO}'))["instances"].default == "1"


def test_no_more_cpu_instances_than_cores_are_offered() -> None:
    one = PLAIN + "instance_group [ { count: 1 } ]"
    assert offered(model_from(one), cores=2)["instances"].values == ("1", "2")
    assert offered(model_from(one), cores=64)["instances"].values == ("1", "2", "4", "8")
    assert "instances" not in offered(model_from(one), cores=1)
    assert "only sensible value" in serving_exclusions(model_from(one), gpu=False, cores=1)["instances"]


@pytest.mark.parametrize(
    ("more", "knobs", "says"),
    [
        ("max_batch_size: 0", {"instances"}, "max_batch_size is 0"),
        ("max_batch_size: 8 sequence_batching { }", {"instances"}, "sequence batching"),
        ("max_batch_size: 1", {"instances", "max_batch_size"}, "max_batch_size is 1"),
    ],
)
def test_batching_is_offered_where_it_makes_sense(more: str, knobs: set[str], says: str) -> None:
    model = model_from(f'platform: "onnxruntime_onnx"\n{more}\n{IO}')
    assert set(offered(model)) == knobs
    assert says in serving_exclusions(model, gpu=False, cores=4)["dynamic_batching"]


def test_an_ensemble_has_no_serving_knobs() -> None:
    model = model_from('platform: "ensemble"\nmax_batch_size: 8\nensemble_scheduling { step [ { model_name: "a" } ] }')
    assert serving_knobs(model, gpu=False, cores=4) == ()
    assert "members" in serving_exclusions(model, gpu=False, cores=4)["instances"]


def test_a_batcher_with_features_is_not_turned_off() -> None:
    text = PLAIN + "dynamic_batching { priority_levels: 2 default_priority_level: 1 }"
    assert "dynamic_batching" not in offered(model_from(text))
    assert "queue_delay_us" in offered(model_from(text))
    assert "priority_levels" in serving_exclusions(model_from(text), gpu=False, cores=4)["dynamic_batching"]


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ("{ count: 1 kind: KIND_GPU gpus: [0] }, { count: 2 kind: KIND_GPU gpus: [1] }", "different counts"),
        ("{ count: 1 passive: true }", "passive"),
        ("{ count: 1 rate_limiter { priority: 1 } }", "rate limiter"),
    ],
)
def test_instance_groups_that_one_count_would_change(groups: str, says: str) -> None:
    model = model_from(PLAIN + f"instance_group [ {groups} ]")
    assert "instances" not in offered(model, gpu=True)
    assert says in serving_exclusions(model, gpu=True, cores=4)["instances"]


def test_max_batch_size_is_never_lowered() -> None:
    knob = offered(model_from(PLAIN), gpu=True)["max_batch_size"]
    assert knob.values == ("8", "16", "32")
    assert "max_batch_size" not in offered(model_from(PLAIN), gpu=False)
    assert offered(model_from(PLAIN.replace("8", "2")), gpu=False)["max_batch_size"].values == ("2", "4", "8")
    with pytest.raises(InputError, match="lower than today's 8"):
        applied(PLAIN, max_batch_size="4")
    with pytest.raises(InputError, match="does not batch"):
        applied('platform: "onnxruntime_onnx"', max_batch_size="4")


def test_a_tensorrt_engine_bounds_the_batch() -> None:
    assert "max_batch_size" not in offered(model_from(PLAIN), gpu=True, family="tensorrt")
    plan = model_from(f'platform: "tensorrt_plan"\nmax_batch_size: 8\n{IO}', file_format=ModelFormat.PLAN)
    assert "profile" in serving_exclusions(plan, gpu=True, cores=4)["max_batch_size"]


def test_cuda_graphs_are_for_fixed_shapes_on_the_tensorrt_backend() -> None:
    assert offered(model_from(PLAIN), gpu=True, family="tensorrt")["cuda_graphs"].values == ("off", "on")
    on = PLAIN + "optimization { cuda { graphs: true } }"
    assert offered(model_from(on), gpu=True, family="tensorrt")["cuda_graphs"].default == "on"
    free = PLAIN.replace("dims: [ 4 ]", "dims: [ -1 ]")
    shape = PLAIN.replace("dims: [ 4 ]", "dims: [ 4 ] is_shape_tensor: true")
    for text, gpu, family, says in (
        (PLAIN, False, "tensorrt", "no GPU"),
        (PLAIN, True, "onnxruntime", "only the tensorrt backend"),
        (free, True, "tensorrt", "free dimensions"),
        (shape, True, "tensorrt", "shape tensors"),
    ):
        reasons = serving_exclusions(model_from(text), gpu=gpu, cores=4, family=family)
        assert says in reasons["cuda_graphs"]


def test_turning_batching_off_is_not_offered_where_a_server_turns_it_on_again() -> None:
    text = PLAIN + "dynamic_batching { }"
    assert "dynamic_batching" in offered(model_from(text))
    assert "dynamic_batching" not in offered(model_from(text), gpu=True, family="tensorrt")
    plan = f'backend: "tensorrt"\nmax_batch_size: 8\n{IO}'
    assert "auto-completion" in serving_caveats(parse_config(plan))[0]
    assert serving_caveats(parse_config(plan + "dynamic_batching { }")) == ()
    assert serving_caveats(parse_config(PLAIN)) == ()


def test_expressions_may_name_any_number_and_single_valued_knobs() -> None:
    knobs, reasons = nameable_serving_knobs(model_from(PLAIN), gpu=False, cores=1)
    named = by_name(knobs)
    assert named["instances"].values == named["max_batch_size"].values == named["queue_delay_us"].values == ()
    assert named["max_batch_size"].default == "8"
    assert set(reasons) == {"cuda_graphs"}


def test_instances_keep_kinds_and_gpus() -> None:
    text = PLAIN + "instance_group [ { kind: KIND_GPU gpus: [ 1, 2 ] count: 1 profile: [ '0' ] } ]"
    changed = applied(text, instances="4")
    (group,) = changed.instance_group
    assert (group.count, list(group.gpus), list(group.profile)) == (4, [1, 2], ["0"])
    two = PLAIN + "instance_group [ { kind: KIND_GPU gpus: [0] count: 2 }, { kind: KIND_GPU gpus: [1] count: 2 } ]"
    assert [group.count for group in applied(two, instances="3").instance_group] == [3, 3]
    (made,) = applied(PLAIN, instances="2").instance_group
    assert (made.kind, made.count) == (0, 2)
    with pytest.raises(InputError, match="different counts"):
        applied(PLAIN + "instance_group [ { count: 1 }, { count: 2 } ]", instances="3")


def test_batching_values() -> None:
    on = applied(PLAIN, dynamic_batching="on", queue_delay_us="500", preferred_batch_sizes="2,4")
    assert on.dynamic_batching.max_queue_delay_microseconds == 500
    assert list(on.dynamic_batching.preferred_batch_size) == [2, 4]
    empty = applied(PLAIN, dynamic_batching="on")
    assert empty.HasField("dynamic_batching")
    text = (
        PLAIN
        + "dynamic_batching { max_queue_delay_microseconds: 250 preferred_batch_size: [ 4 ] preserve_ordering: true }"
    )
    kept = applied(text, preferred_batch_sizes="none", queue_delay_us="0")
    assert kept.dynamic_batching.preserve_ordering
    assert not kept.dynamic_batching.preferred_batch_size
    assert not applied(text, dynamic_batching="off").HasField("dynamic_batching")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"queue_delay_us": "500"}, "no effect without dynamic batching"),
        ({"dynamic_batching": "on", "preferred_batch_sizes": "16"}, "larger than max_batch_size 8"),
        ({"dynamic_batching": "on", "preferred_batch_sizes": "4,"}, "whole number"),
        ({"dynamic_batching": "maybe"}, "neither on nor off"),
        ({"instances": "0"}, "at least 1"),
        ({"instances": "-1"}, "whole number"),
        ({"instances": "²"}, "whole number"),
        ({"queue_delay_us": "99999999999", "dynamic_batching": "on"}, "whole number"),
    ],
)
def test_values_that_triton_would_refuse(values: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        applied(PLAIN, **values)
    assert caught.value.field in values


def test_the_original_is_not_changed_and_other_layers_are_ignored() -> None:
    config = parse_config(PLAIN)
    before = config.SerializeToString(deterministic=True)
    changed = apply_serving(config, Route.of({"precision": "fp16", "instances": "3"}))
    assert config.SerializeToString(deterministic=True) == before
    changed.ClearField("instance_group")
    assert changed.SerializeToString(deterministic=True) == before


CONFIGS = [
    PLAIN,
    PLAIN + "instance_group [ { kind: KIND_CPU count: 3 } ]",
    PLAIN + "dynamic_batching { max_queue_delay_microseconds: 7 preferred_batch_size: [ 8 ] preserve_ordering: true }",
    PLAIN + "sequence_batching { }",
    PLAIN + "optimization { cuda { graphs: true } priority: PRIORITY_MAX }",
]


@given(st.data(), st.sampled_from(CONFIGS), st.booleans())
def test_a_route_back_to_the_defaults_changes_nothing(data: st.DataObject, text: str, gpu: bool) -> None:
    """Applying every default spelt out gives what is served today, whatever Triton fills in."""
    model = model_from(text)
    knobs = serving_knobs(model, gpu=gpu, cores=4, family=data.draw(st.sampled_from(["", "tensorrt"])))
    needless = {"queue_delay_us", "preferred_batch_sizes"} if not model.dynamic_batching else set()
    defaults = Route.of((knob.name, knob.default) for knob in knobs if knob.name not in needless)
    config = parse_config(text)
    changed = apply_serving(config, defaults)
    if not config.instance_group:
        changed.ClearField("instance_group")
    if not config.HasField("optimization"):
        changed.ClearField("optimization")
    assert changed == config
