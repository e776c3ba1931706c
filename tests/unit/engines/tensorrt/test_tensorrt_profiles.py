"""Optimization profiles as values."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.engines.tensorrt.profiles import (
    ProfileRefusal,
    clusters,
    default_opt_batch,
    opt_batch_values,
    parse_ranges,
    parse_values,
    plan_profiles,
)
from optimizer.engines.tensorrt.source import OnnxSource, OnnxTensor, separate_dimensions
from optimizer.records.model import Model, TensorSpec


def model(*specs, max_batch_size=8):
    return Model(
        name="m", directory=Path("/m"), config_path=None, config_text="", effective_config_text="", platform="",
        backend="", max_batch_size=max_batch_size, inputs=specs, outputs=(), versions=(), version_policy="",
        default_model_filename="",
    )  # fmt: skip


def source(**tensors):
    return OnnxSource(
        path=Path("/m.onnx"),
        inputs=tuple(OnnxTensor(name, "FP32", dims) for name, dims in tensors.items()),
        outputs=(),
        quantized=(),
        operators=frozenset(),
        size_bytes=0,
    )


def spec(name, *dims, reshape=None):
    return TensorSpec(name, "FP32", dims, reshape)


def test_the_batch_runs_from_one_to_what_the_service_takes():
    plan = plan_profiles(model(spec("x", 3, 224, 224)), source(x=(-1, 3, 224, 224)), opt_batch=4)

    assert plan.profiles == ({"x": ((1, 3, 224, 224), (4, 3, 224, 224), (8, 3, 224, 224))},)
    assert plan.from_workload == ()


def test_the_config_fixes_what_the_onnx_leaves_free():
    plan = plan_profiles(model(spec("x", 3, 224, 224)), source(x=(-1, 3, -1, -1)), opt_batch=8)

    assert plan.profiles[0]["x"][0] == (1, 3, 224, 224)


def test_no_free_dimension_needs_no_profile():
    assert plan_profiles(model(spec("x", 4), max_batch_size=0), source(x=(4,)), opt_batch=1).profiles == ()


def test_a_free_dimension_without_a_range_is_refused_with_its_name():
    with pytest.raises(ProfileRefusal, match=r"input x .* dimension 1.*range\.x\.1=min:opt:max"):
        plan_profiles(model(spec("x", 3, -1)), source(x=(-1, 3, -1)), opt_batch=1)


def test_the_workload_gives_the_range_and_that_is_told():
    plan = plan_profiles(
        model(spec("x", 3, -1)),
        source(x=(-1, 3, -1)),
        opt_batch=2,
        shapes=[{"x": (1, 3, size)} for size in (96, 32, 64)],
    )

    assert plan.profiles == ({"x": ((1, 3, 32), (2, 3, 64), (8, 3, 96))},)
    assert plan.from_workload == ("x[1]",)


def test_the_users_range_wins_over_the_workload():
    plan = plan_profiles(
        model(spec("x", -1)),
        source(x=(-1, -1)),
        opt_batch=1,
        ranges=parse_ranges({"range.x.0": "16:64:512"}),
        shapes=[{"x": (1, 32)}],
    )

    assert plan.profiles == ({"x": ((1, 16), (1, 64), (8, 512))},)
    assert plan.from_workload == ()


@pytest.mark.parametrize("text", ["", "a:b", "4:2", "0:1:2", "1:2:3:4"])
def test_a_bad_range_names_its_option(text):
    with pytest.raises(ProfileRefusal, match=r"range\.x\.0"):
        parse_ranges({"range.x.0": text})


def test_values_of_shape_tensors():
    assert parse_values({"values.to": "1,1:3,4:12,12", "other": "x"}) == {"to": [[1, 1], [3, 4], [12, 12]]}


@pytest.mark.parametrize("text", ["1:2", "1,2:3:4,5", "a:b:c", "1,12:3,4:12,1"])
def test_bad_values_name_their_option(text):
    with pytest.raises(ProfileRefusal, match=r"values\.to"):
        parse_values({"values.to": text})


def test_batch_split_makes_one_profile_for_single_requests():
    plan = plan_profiles(model(spec("x", 4)), source(x=(-1, 4)), opt_batch=8, mode="batch_split")

    assert [item["x"] for item in plan.profiles] == [((1, 4), (1, 4), (1, 4)), ((1, 4), (8, 4), (8, 4))]


def test_clusters_differ_in_opt_and_all_accept_everything():
    shapes = [{"x": (1, size)} for size in (16, 20, 24, 500, 600)]
    plan = plan_profiles(model(spec("x", -1)), source(x=(-1, -1)), opt_batch=8, mode="shape_clusters", shapes=shapes)

    assert [item["x"] for item in plan.profiles] == [((1, 16), (8, 20), (8, 600)), ((1, 16), (8, 500), (8, 600))]


def test_reshape_is_what_the_engine_sees():
    plan = plan_profiles(model(spec("x", 1, reshape=())), source(x=(-1,)), opt_batch=1)

    assert plan.profiles[0]["x"] == ((1,), (1,), (8,))


def test_a_fixed_size_that_the_onnx_contradicts_is_refused():
    with pytest.raises(ProfileRefusal, match="the config says 5, the ONNX model 4"):
        plan_profiles(model(spec("x", 5)), source(x=(-1, 4)), opt_batch=1)


def test_another_rank_is_refused():
    with pytest.raises(ProfileRefusal, match=r"1 dims and a batch, the ONNX model has 3 dimensions"):
        plan_profiles(model(spec("x", 4)), source(x=(-1, 1, 4)), opt_batch=1)


@pytest.mark.parametrize("opt", [0, 9])
def test_an_opt_batch_out_of_range_is_refused(opt):
    with pytest.raises(ProfileRefusal, match="between 1 and max_batch_size 8"):
        plan_profiles(model(spec("x", 4)), source(x=(-1, 4)), opt_batch=opt)


def test_opt_batches():
    assert opt_batch_values(model(max_batch_size=12), preferred=[6, 99]) == (1, 2, 4, 6, 8, 12)
    assert default_opt_batch(model(max_batch_size=12), preferred=[4, 6, 99]) == 6
    assert default_opt_batch(model(max_batch_size=12)) == 12
    assert default_opt_batch(model(max_batch_size=0)) == 1


sizes = st.lists(st.integers(1, 5000), min_size=1, max_size=30)


@given(sizes, st.integers(1, 64))
def test_every_observed_shape_fits_every_cluster(observed, batch):
    shapes = [{"x": (1, size)} for size in observed]
    plan = plan_profiles(
        model(spec("x", -1), max_batch_size=64),
        source(x=(-1, -1)),
        opt_batch=batch,
        mode="shape_clusters",
        shapes=shapes,
    )

    assert 1 <= len(plan.profiles) <= 4
    for item in plan.profiles:
        low, best, high = item["x"]
        assert all(a <= b <= c for a, b, c in zip(low, best, high, strict=True))
        assert low[0] == 1
        assert high[0] == 64
        assert all(low[1] <= size <= high[1] for size in observed)


@given(sizes, st.randoms())
def test_clusters_do_not_depend_on_the_order(observed, random):
    shapes = [{"x": (1, size)} for size in observed]
    shuffled = list(shapes)
    random.shuffle(shuffled)

    assert clusters(shapes, batched=True) == clusters(shuffled, batched=True)
    assert sum(map(len, clusters(shapes, batched=True))) == len(shapes)


def named(*symbols, dims):
    tensor = OnnxTensor("x", "FP32", dims, symbols)
    return OnnxSource(Path("/m.onnx"), (tensor,), (), (), frozenset(), 0)


def test_placeholder_names_get_names_of_their_own():
    renamed = separate_dimensions(named("n", "", "?", "?", dims=(-1, 3, -1, -1)), [])

    assert renamed == {"x": {2: "x_axis_2", 3: "x_axis_3"}}


def test_a_name_that_requests_contradict_is_taken_apart():
    square = named("n", "s", "s", dims=(-1, -1, -1))

    assert separate_dimensions(square, [{"x": (1, 8, 8)}]) == {}
    assert separate_dimensions(square, [{"x": (1, 8, 9)}]) == {"x": {1: "x_axis_1", 2: "x_axis_2"}}
