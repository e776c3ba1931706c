"""The codec on every record class there is, filled by their own annotations, and on what JSON makes hard."""

import dataclasses
import importlib
import json
import math
import pkgutil
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optimizer.records
from optimizer.judge.decide import JudgeSettings
from optimizer.ledger import StudyHeader
from optimizer.records.candidate import Pair, Rejection, Stage
from optimizer.records.codec import CodecError, from_json, to_json
from optimizer.records.decision import Decision, Finalist, Interval, Verdict
from optimizer.records.engine import BuildFailure, BuildFailureReason, Engine
from optimizer.records.measurement import Measurement, ServerDelta, Workload
from optimizer.records.model import TensorSpec
from optimizer.records.route import Candidate, Route
from optimizer.records.samples import Sample


def record_classes():
    classes = [StudyHeader, JudgeSettings]
    for module in pkgutil.iter_modules(optimizer.records.__path__, "optimizer.records."):
        for item in vars(importlib.import_module(module.name)).values():
            if isinstance(item, type) and dataclasses.is_dataclass(item) and item.__module__ == module.name:
                classes.append(item)
    return classes


def values_of(kind: Any, full: bool) -> Any:
    """A value of the annotated type; ``full`` fills what is optional and what may be empty."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        members = [member for member in arguments if member is not type(None)]
        return values_of(members[0], full) if full or type(None) not in arguments else None
    if kind in (Any, object):
        return {"nested": [1, 2.5, None, "text", {"deep": True}]} if full else "text"
    if origin is np.ndarray or kind is np.ndarray:
        return np.arange(6, dtype=np.float32).reshape(2, 3)
    if origin is not None:
        if issubclass(origin, Mapping):
            key, item = arguments
            return {values_of(key, full): values_of(item, full)} if full else {}
        if origin is tuple and arguments[-1] is not Ellipsis:
            return tuple(values_of(argument, full) for argument in arguments)
        items = [values_of(arguments[0], full)] if full else []
        return frozenset(items) if issubclass(origin, (frozenset, typing.AbstractSet)) else tuple(items)
    if issubclass(kind, Enum):
        return list(kind)[-1]
    if dataclasses.is_dataclass(kind):
        return instance_of(kind, full)
    return {str: "text µ\n", int: 3, float: 0.1, bool: True, Path: Path("a/b"), bytes: b"\0\xff"}[kind]


def instance_of(cls: type, full: bool) -> Any:
    hints = typing.get_type_hints(cls)
    return cls(
        **{
            field.name: values_of(hints[field.name], full)
            for field in dataclasses.fields(cls)
            if field.init and (full or field.default is field.default_factory is dataclasses.MISSING)
        }
    )


def same(one: Any, other: Any) -> bool:
    """Equality that looks into arrays and says what type is equal to what."""
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one)
        )
    if isinstance(one, Mapping):
        return isinstance(other, Mapping) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    if isinstance(one, Sequence) and not isinstance(one, str):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("full", [True, False], ids=["full", "bare"])
@pytest.mark.parametrize("cls", record_classes(), ids=lambda cls: cls.__name__)
def test_every_record_comes_back_through_text(cls, full):
    record = instance_of(cls, full)
    text = json.dumps(to_json(record), allow_nan=False)
    assert same(from_json(cls, json.loads(text)), record)


def test_all_record_modules_are_looked_at():
    names = {cls.__name__ for cls in record_classes()}
    assert {"Engine", "Pair", "Decision", "Measurement", "Model", "Parity", "Sample", "Constraint"} <= names


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308, 0.1])
def test_every_float_survives(number):
    interval = Interval(number, 0.0, 1.0, 0.95, 3)
    text = json.dumps(to_json(interval), allow_nan=False)
    back = from_json(Interval, json.loads(text)).ratio
    assert np.float64(back).tobytes() == np.float64(number).tobytes() or (math.isnan(number) and math.isnan(back))


def test_a_float_that_is_a_whole_number_stays_a_float():
    assert isinstance(from_json(Interval, {**to_json(Interval(1.0, 1.0, 1.0, 0.95, 3)), "ratio": 1}).ratio, float)


def test_a_union_of_float_and_text_keeps_them_apart():
    decision = Decision(
        Verdict.KEEP, None, "as-found", "stays", break_even={"days": math.inf, "sentence": "inf", "hours": 2.0}
    )
    back = from_json(Decision, json.loads(json.dumps(to_json(decision), allow_nan=False)))
    assert back.break_even == {"days": math.inf, "sentence": "inf", "hours": 2.0}
    assert isinstance(back.break_even["hours"], float)


def test_integer_keys_are_integers_again():
    delta = ServerDelta(10, 4, 0, 1.0, 2.0, 3.0, 4.0, {1: 2, 4: 2})
    assert from_json(ServerDelta, json.loads(json.dumps(to_json(delta)))).batch_executions == {1: 2, 4: 2}


@pytest.mark.parametrize(
    "array",
    [
        np.array([[1.5, np.nan], [np.inf, -0.0]], dtype=np.float16),
        np.array([2**63 - 1, -(2**63)], dtype=np.int64),
        np.array([], dtype=np.float32).reshape(0, 4),
        np.array(7, dtype=np.uint8),
        np.array([True, False]),
        np.arange(6, dtype=">i4").reshape(2, 3)[:, ::2],
        np.array([[b"a\0", b""], ["µ".encode(), b"\xff"]], dtype=object),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_come_back_bit_by_bit(array):
    back = from_json(Sample, json.loads(json.dumps(to_json(Sample("s", {"x": array}))))).inputs["x"]
    assert back.shape == array.shape
    assert back.dtype == array.dtype.newbyteorder("=")
    assert back.tolist() == array.tolist() or np.array_equal(back, array, equal_nan=True)
    back[...] = back  # writable, as a fresh array is


def test_numpy_scalars_become_numbers():
    assert to_json({"a": np.float32(0.5), "b": np.int64(3)}) == {"a": 0.5, "b": 3}


def test_bytes_in_untyped_places_come_back():
    engine = Engine("e", "f", {}, "0", 1, 0.0, "b", details={"blob": b"\0\1", "bad": math.nan, "list": [1, None]})
    back = from_json(Engine, json.loads(json.dumps(to_json(engine), allow_nan=False))).details
    assert back["blob"] == b"\0\1"
    assert math.isnan(back["bad"])
    assert back["list"] == [1, None]


PAIR = to_json(Pair("c", "r", "race", 0, 0.1, None, 1.0, 1.0))


@pytest.mark.parametrize(
    ("cls", "data", "complaint"),
    [
        (Pair, {**PAIR, "colour": "red"}, "Pair: Pair has no field colour"),
        (Pair, {key: value for key, value in PAIR.items() if key != "index"}, "the field index is missing"),
        (Pair, {**PAIR, "index": 1.5}, "Pair.index: expected an integer, found 1.5"),
        (Pair, {**PAIR, "index": True}, "Pair.index: expected an integer, found True"),
        (Pair, {**PAIR, "usable": 1}, "Pair.usable: expected true or false"),
        (Pair, {**PAIR, "log_ratio": "0.1"}, "Pair.log_ratio: expected a number, found '0.1'"),
        (Pair, {**PAIR, "log_ratio": True}, "Pair.log_ratio: expected a number"),
        (Pair, {**PAIR, "log_ratio": {"$float": "huge"}}, "Pair.log_ratio: expected a number"),
        (Pair, {**PAIR, "p99_log_ratio": "x"}, "Pair.p99_log_ratio: expected"),
        (Pair, [], "Pair: expected an object"),
        (Rejection, {"candidate_id": "c", "stage": "lunch", "code": "x", "message": ""}, "not one of build, check"),
        (TensorSpec, {"name": "x", "datatype": "FP32", "dims": 4}, "TensorSpec.dims: expected a list"),
        (TensorSpec, {"name": "x", "datatype": "FP32", "dims": [4, "y"]}, r"TensorSpec.dims\[1\]: expected an integer"),
        (Route, {"assignments": [["a", "b", "c"]]}, r"assignments\[0\]: expected a list of 2"),
        (Engine, {"engine_id": "e", "files": [], "family": "f"}, "Engine.files: expected an object"),
        (Sample, {"id": "s", "inputs": {"x": {"$array": {"dtype": "<f4", "shape": [2], "data": "AA=="}}}}, "inputs.x"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(cls, data, complaint):
    with pytest.raises(CodecError, match=complaint):
        from_json(cls, data)


def test_a_field_that_came_later_may_be_missing():
    data = {key: value for key, value in PAIR.items() if key not in ("note", "usable", "candidate_p99_us")}
    assert from_json(Pair, data) == Pair("c", "r", "race", 0, 0.1, None, 1.0, 1.0)


@pytest.mark.parametrize("value", [object(), {1.5: "x"}, {"$float": "nan"}, {1: "a", "1": "b"}, np.array([object()])])
def test_what_has_no_form_is_refused(value):
    with pytest.raises(CodecError):
        to_json(Engine("e", "f", {}, "0", 1, 0.0, "b", details={"x": value}))


def test_a_failure_and_an_engine_are_told_apart():
    failure = BuildFailure("e", BuildFailureReason.TIMEOUT, "late")
    with pytest.raises(CodecError):
        from_json(Engine, to_json(failure))
    union = Engine | BuildFailure
    assert from_json(union, to_json(failure)) == failure


def test_nested_records_come_back_whole():
    gain = Interval(1.1, 1.05, 1.2, 0.95, 12)
    decision = Decision(
        Verdict.WINNER,
        "c",
        "-a=on",
        "wins",
        finalists=(Finalist("c", "-a=on", gain, None, gain, accepted=True, reason="gain"),),
        excluded={"d": "validate: NaN"},
    )
    assert from_json(Decision, json.loads(json.dumps(to_json(decision)))) == decision


def test_ids_are_the_same_after_coming_back():
    candidate = Candidate("m", "hash", "onnxruntime", Route.of({"b": "2", "a": "1"}), Route.of({"a": "1"}))
    back = from_json(Candidate, json.loads(json.dumps(to_json(candidate))))
    assert (back.id, back.engine_id, back.label) == (candidate.id, candidate.engine_id, candidate.label)


@given(
    st.builds(
        Measurement,
        candidate_id=st.text(),
        workload=st.builds(Workload, duration_s=st.floats(allow_nan=False)),
        started_at=st.floats(allow_nan=False),
        duration_s=st.floats(allow_nan=False),
        requests=st.integers(),
        inferences=st.integers(),
        failures=st.dictionaries(st.text(), st.integers()),
        throughput=st.floats(allow_nan=False),
        latency_mean_us=st.none() | st.floats(allow_nan=False),
        percentiles_us=st.dictionaries(st.text(), st.floats(allow_nan=False)),
    )
)
def test_any_measurement_comes_back(measurement):
    assert from_json(Measurement, json.loads(json.dumps(to_json(measurement), allow_nan=False))) == measurement


def test_an_enum_is_its_value():
    assert to_json(Stage.LOAD) == "load"
    assert from_json(Stage, "load") is Stage.LOAD
