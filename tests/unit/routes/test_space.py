"""The joint space: exact sizes, complete enumeration, constraints, pins, neighbours and shortlists."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.errors import InputError
from optimizer.records.model import Model
from optimizer.records.route import Knob, KnobClass, Layer, Route
from optimizer.routes.expansion import expand
from optimizer.routes.knobs import published_table, searchable
from optimizer.routes.serving import apply_serving
from optimizer.routes.space import (
    Constraint,
    Space,
    default_space,
    expression_for,
    joint_constraints,
    permitted,
    pruning_constraints,
    space_of,
)
from optimizer.triton.protobuf import parse_config
from tests.unit.routes.conftest import model_from

CONFIG = """
platform: "onnxruntime_onnx"
max_batch_size: 16
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


@dataclass(frozen=True)
class Family:
    own: tuple[Knob, ...]
    name: str = "onnxruntime"

    def knobs(self, model: Model) -> tuple[Knob, ...]:
        return self.own


ONNXRUNTIME = Family(
    (
        Knob("graph_optimization", Layer.BUILDER, ("all", "extended", "basic", "disabled"), "all"),
        Knob("quantization", Layer.PRECISION, ("none", "int8_dynamic"), "none", KnobClass.NUMERIC),
        Knob("intra_op_threads", Layer.SERVING, ("0", "1", "2"), "0"),
    )
)
TENSORRT = Family(
    (
        Knob("precision", Layer.PRECISION, ("tf32", "fp32", "fp16", "bf16"), "tf32", KnobClass.NUMERIC),
        Knob("keep_fp32", Layer.PRECISION, ("overflow", "none"), "overflow", KnobClass.NUMERIC),
        Knob("optimization_level", Layer.BUILDER, tuple("012345"), "3"),
        Knob("workspace", Layer.BUILDER, ("auto", "1", "2"), "auto"),
        Knob("opt_batch", Layer.PROFILE, ("1", "2", "4", "8", "16"), "16"),
        Knob("broken", Layer.COMPILER, ("on", "off"), "on", KnobClass.UNSAFE),
        Knob("conv", Layer.COMPILER, ("on", "off"), "on"),
    ),
    "tensorrt",
)


def letters(*specs: str) -> tuple[Knob, ...]:
    """``"abc"``: knob a with values a0 … of which the first is the default; one value per further letter."""
    return tuple(Knob(spec[0], Layer.SERVING, tuple(spec), spec[0]) for spec in specs)


def default(family: Family = ONNXRUNTIME, **more: Any) -> Space:
    settings: dict[str, Any] = {"gpu": False, "cores": 2, **more}
    return default_space(model_from(CONFIG), family, **settings)[0]


def test_the_default_cpu_space_is_small_and_spans_layers() -> None:
    space, why = default_space(model_from(CONFIG), ONNXRUNTIME, gpu=False, cores=2)
    routes = list(space.candidates())
    assert routes[0] == Route()
    assert 12 <= len(routes) == len(set(routes)) == space.size < 1000
    assert {knob.layer for knob in space.knobs} == {Layer.BUILDER, Layer.PRECISION, Layer.SERVING}
    assert f"{space.size} routes over precision (quantization), builder (graph_optimization)" in why


def test_every_candidate_can_be_applied() -> None:
    config = parse_config(CONFIG)
    for route in default().candidates():
        apply_serving(config, route)


def test_single_changes_come_before_pairs() -> None:
    lengths = [len(route.assignments) for route in default().candidates()]
    assert lengths == sorted(lengths)


def test_layers_and_classes_select_knobs() -> None:
    assert {knob.layer for knob in default(layers=["serving"]).knobs} == {Layer.SERVING}
    exact, why = default_space(model_from(CONFIG), ONNXRUNTIME, gpu=False, cores=2, numeric=False)
    assert "quantization" not in [knob.name for knob in exact.knobs]
    assert why.endswith("without a tolerance, not quantization")
    gpu = default_space(model_from(CONFIG), TENSORRT, gpu=True, cores=16)[0]
    knobs = {knob.name: knob for knob in gpu.knobs}
    assert "workspace" not in knobs
    assert "broken" not in knobs
    assert knobs["optimization_level"].values == ("3", "5")
    assert knobs["opt_batch"].values == ("1", "4", "16")
    assert "cuda_graphs" in knobs
    none, why = default_space(model_from(CONFIG), ONNXRUNTIME, gpu=False, cores=2, layers=["compiler"])
    assert list(none.candidates()) == [Route()]
    assert "no knob" in why


def test_instances_are_bound_by_memory_and_cores_but_what_is_there_stays() -> None:
    space = default(cores=8, engine_memory_bytes=400 << 20, memory_limit_bytes=1000 << 20)
    assert space.why_not(Route.of({"instances": "2"})) is None
    assert (
        space.why_not(Route.of({"instances": "4", "intra_op_threads": "1"}))
        == "400 MiB an instance do not fit 1000 MiB"
    )
    many = default_space(
        model_from(CONFIG.replace("count: 1", "count: 6")),
        ONNXRUNTIME,
        gpu=False,
        cores=2,
        engine_memory_bytes=400 << 20,
        memory_limit_bytes=1000 << 20,
    )[0]
    # As found, both rules are broken already: that is no reason to refuse other changes.
    assert many.why_not(Route.of({"quantization": "int8_dynamic"})) is None
    assert many.size == sum(1 for _ in many.everything())


def test_precision_constraints() -> None:
    space = default_space(model_from(CONFIG), TENSORRT, gpu=True, cores=16)[0]
    assert space.why_not(Route.of({"keep_fp32": "none"})) is not None
    assert space.why_not(Route.of({"keep_fp32": "none", "precision": "fp16"})) is None


def test_neighbours_are_one_change_away_or_two_where_only_two_go_together() -> None:
    space = default()
    near = set(space.neighbours(Route()))
    assert Route.of({"instances": "2"}) in near
    assert Route.of({"queue_delay_us": "1000"}) not in near
    assert Route.of({"dynamic_batching": "on", "queue_delay_us": "1000"}) in near
    assert Route() not in near
    there = Route.of({"dynamic_batching": "on", "queue_delay_us": "1000"})
    assert Route.of({"dynamic_batching": "on"}) in set(space.neighbours(there))
    assert all(space.why_not(route) is None for route in space.neighbours(there))


def test_canonical_routes_leave_defaults_out() -> None:
    space = default()
    assert (
        space.canonical(Route.of({"instances": "1", "quantization": "int8_dynamic"})).text
        == "-quantization=int8_dynamic"
    )
    for values, says in (
        ({"colour": "red"}, "no such knob"),
        ({"instances": "7"}, "'7' is not a value"),
        ({"queue_delay_us": "1000"}, "needs dynamic batching"),
    ):
        with pytest.raises(InputError, match=says):
            space.canonical(Route.of(values))


def test_build_and_serving_parts() -> None:
    space = default()
    route = Route.of({"instances": "2", "graph_optimization": "basic", "intra_op_threads": "1"})
    assert space.build_part(route).text == "-graph_optimization=basic"
    assert space.serving_part(route).text == "-instances=2 -intra_op_threads=1"


def test_a_space_of_astronomical_size_is_counted_and_visited_lazily() -> None:
    space = Space(searchable(published_table()))
    assert space.size > 10**50
    first = list(itertools.islice(space.candidates(), 300))
    assert len(set(first)) == 300
    assert first[0] == Route()
    shortlist = space.shortlist(100)
    assert len(shortlist) == len(set(shortlist)) == 100


def test_a_shortlist_spends_builds_sparingly_and_spreads_serving_settings() -> None:
    space, why = default_space(model_from(CONFIG), TENSORRT, gpu=True, cores=16, limit=60)
    routes = list(space.candidates())
    assert routes == list(space.candidates())
    assert len(routes) == len(set(routes)) == 60
    assert "of which 60 are tried" in why
    singles = [route for route in routes if len(route.assignments) == 1]
    engines = {space.build_part(route) for route in routes}
    assert {space.build_part(route) for route in singles} <= engines
    assert len(engines) <= 20
    assert all(space.why_not(route) is None for route in routes)
    assert max(len(route.assignments) for route in routes) > 3


def test_a_small_space_is_not_cut() -> None:
    space = Space(letters("ab", "cd"), limit=4)
    assert len(list(space.candidates())) == space.size == 4
    assert len(list(Space(letters("ab", "cd"), limit=3).candidates())) == 3
    assert Space(letters("ab")).shortlist(0) == []


def test_knobs_must_be_distinct_and_bounded() -> None:
    with pytest.raises(ValueError, match="twice"):
        Space(letters("ab", "ac"))
    with pytest.raises(ValueError, match="without values"):
        Space((Knob("n", Layer.SERVING, (), "0"),))
    with pytest.raises(ValueError, match="pinned"):
        Space(letters("ab"), pinned=Route.of({"z": "1"}))


def test_an_expression_makes_a_space_with_its_pins_in_every_route_but_the_default() -> None:
    space, why = space_of(
        "-quantization=int8_dynamic -instances=[2|6]", model_from(CONFIG), ONNXRUNTIME, gpu=False, cores=2
    )
    assert [route.text for route in space.candidates()] == [
        "",
        "-quantization=int8_dynamic",
        "-instances=2 -quantization=int8_dynamic",
        "-instances=6 -quantization=int8_dynamic",
    ]
    assert space.size == 4
    assert why.startswith("4 routes from the expression")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("-queue_delay_us=500", "a queue delay needs dynamic batching"),
        ("-max_batch_size=[8|32]", "8 is lower than today's 16"),
        ("-cuda_graphs=on", "cuda_graphs is not for this model: no GPU"),
        ("-instanses=2", "unknown knob"),
        ("-instances=[1|1]", "there twice"),
        ("-instances=[0|2]", "at least 1"),
        ("-instances=-3", "at least 1"),
        ("-instances=[2|100000]", r"--routes: instances: 100000 is more than 64 .*\n.* up to 64"),
        ("-dynamic_batching=on -queue_delay_us=[0|99999999999]", "takes an integer"),
        ("-dynamic_batching=on -queue_delay_us=1000001", r"queue_delay_us: 1000001 is more than 1000000 µs"),
        ("-max_batch_size=[16|65537]", r"max_batch_size: 65537 is more than 65536 rows"),
        ("-intra_op_threads=100000", r"--routes: intra_op_threads: 100000 is more than 256 .*\n.* up to 256"),
        ("-intra_op_threads=[-1|1]", "at least 0"),
    ],
)
def test_expressions_that_make_no_sense_are_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        space_of(text, model_from(CONFIG), ONNXRUNTIME, gpu=False, cores=2)


def test_named_values_are_not_pruned() -> None:
    space, _ = space_of("-instances=[16]", model_from(CONFIG), ONNXRUNTIME, gpu=False, cores=2)
    assert Route.of({"instances": "16"}) in list(space.candidates())


def test_todays_count_of_instances_can_be_named_however_large() -> None:
    text = CONFIG.replace("count: 1 ", "count: 100 ")
    assert text != CONFIG
    space, _ = space_of("-instances=[64|100]", model_from(text), ONNXRUNTIME, gpu=False, cores=2)
    assert Route.of({"instances": "64"}) in list(space.candidates())
    with pytest.raises(InputError, match="up to 100"):
        space_of("-instances=[64|101]", model_from(text), ONNXRUNTIME, gpu=False, cores=2)


def test_an_expansion_over_layers_drops_what_cannot_be_served() -> None:
    model = model_from(CONFIG)
    text = "-dynamic_batching=[off|on] -queue_delay_us=[0|500]"
    expression = expression_for(text, model, ONNXRUNTIME, gpu=False, cores=2)
    space, _ = space_of(text, model, ONNXRUNTIME, gpu=False, cores=2)
    assert [route.text for route in permitted(expand(expression, "full"), space)] == [
        "",
        "-dynamic_batching=on",
        "-dynamic_batching=on -queue_delay_us=500",
    ]


def test_unsafe_knobs_can_be_named() -> None:
    space, why = space_of("-broken=off -conv=[on|off]", model_from(CONFIG), TENSORRT, gpu=True, cores=4)
    assert why.endswith("broken may give wrong results")
    assert Route.of({"broken": "off", "conv": "off"}) in list(space.candidates())


def test_compiler_knobs_join_the_space_after_the_serving_ones() -> None:
    model, table = model_from(CONFIG), published_table()
    space, _ = default_space(model, TENSORRT, gpu=True, cores=16, compiler=table, limit=200)
    layers = [knob.layer for knob in space.knobs if knob.name not in {"conv"}]
    assert layers == sorted(
        layers, key=[Layer.PRECISION, Layer.BUILDER, Layer.PROFILE, Layer.SERVING, Layer.COMPILER].index
    )
    assert not {knob.name for knob in space.knobs} & {"kgen:lower_gelu", "kgen:topk_algo"}
    assert len(list(space.candidates())) == 200
    text = "-kgen:topk_algo=[1|2] -kgen:tiling=0 -instances=[1|2]"
    named, why = space_of(text, model, TENSORRT, gpu=True, cores=16, compiler=table)
    assert why == "7 routes from the expression, the default included"
    assert Route.of({"kgen:topk_algo": "2", "kgen:tiling": "0", "instances": "2"}) in list(named.candidates())


@st.composite
def small_spaces(draw: st.DrawFn) -> Space:
    names = "abcde"[: draw(st.integers(1, 5))]
    knobs = tuple(
        Knob(
            name, draw(st.sampled_from([Layer.BUILDER, Layer.SERVING])), ("0", "1", "2")[: draw(st.integers(1, 3))], "0"
        )
        for name in names
    )
    constraints = tuple(
        Constraint(
            (one, two), f"{one} and {two}", lambda v, one=one, two=two, sum_=sum_: int(v[one]) + int(v[two]) <= sum_
        )
        for one, two, sum_ in draw(
            st.lists(st.tuples(st.sampled_from("abcdeh"), st.sampled_from("abcdeh"), st.integers(0, 3)), max_size=4)
        )
        if one != two
    )
    pins = Route.of((knob.name, "1") for knob in knobs if len(knob.values) > 1 and draw(st.integers(0, 3)) == 0)
    return Space(knobs, constraints, pins, held=(("h", "0"),))


@given(small_spaces())
def test_size_enumeration_and_constraints_agree(space: Space) -> None:
    """Against brute force over every assignment."""
    routes = list(space.everything())
    brute = {Route()}
    for values in itertools.product(*(knob.values for knob in space.knobs)):
        chosen = dict(zip((knob.name for knob in space.knobs), values, strict=True))
        if all(chosen[name] == pin for name, pin in space.pinned.assignments):
            route = Route.of((name, value) for name, value in chosen.items() if value != "0")
            if space.why_not(route) is None:
                brute.add(route)
    assert set(routes) == brute
    assert len(routes) == len(brute) == space.size
    assert set(space.shortlist(1000)) == brute
    assert set(space.shortlist(5)) <= brute
    for route in routes:
        assert space.canonical(route) == route
        assert set(space.neighbours(route)) <= brute


def test_constraints_name_existing_serving_knobs() -> None:
    model = model_from(CONFIG)
    known = {knob.name for family in (ONNXRUNTIME, TENSORRT) for knob in default(family, gpu=True, cores=8).knobs}
    known |= {"profiles", "intra_op_threads", "max_batch_size"}
    for constraint in (*joint_constraints(), *pruning_constraints(gpu=False, cores=2)):
        assert set(constraint.knobs) <= known, model.name
