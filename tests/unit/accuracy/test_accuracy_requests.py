"""Requests that bring batching faults to light; misplaced answers under load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from optimizer.accuracy.requests import ask, batch_sizes, discriminating, distance, merge, plan_requests, separate
from optimizer.accuracy.tolerances import parse_tolerances
from optimizer.accuracy.under_load import answers_of, check_under_load
from optimizer.accuracy.validator import Answer, validate
from optimizer.errors import EnvironmentFailure
from optimizer.records.model import Model, TensorSpec
from optimizer.records.samples import Arrays, SampleSet

Build = Callable[..., SampleSet]
FP32 = {"y": "FP32"}


@pytest.fixture
def squares(build_set: Build) -> SampleSet:
    """Input index, output (index, index²)."""
    return build_set([np.array([[index, index**2]], np.float32) for index in range(30)])


@pytest.fixture
def batched(build_model: Callable[..., Model]) -> Model:
    return build_model([TensorSpec("x", "FP32", (1,))], [TensorSpec("y", "FP32", (2,))], 8)


def honest(inputs: Arrays) -> tuple[Arrays, Mapping[str, str]]:
    x = np.asarray(inputs["x"])
    return {"y": np.concatenate([x, x**2], axis=1)}, FP32


def test_distance_is_relative_to_the_larger_one() -> None:
    one, two = {"y": np.array([1.0, 0.0])}, {"y": np.array([2.0, 0.0])}
    assert distance(one, one) == 0.0
    assert distance(one, two) == distance(two, one) == 0.5
    assert distance(one, {"y": np.array([1.0])}) == np.inf
    assert distance({"y": np.array([1e-300])}, {"y": np.array([-1e-300])}) == 2.0
    assert distance({"y": np.array([b"a", b"b"], object)}, {"y": np.array([b"a", b"c"], object)}) == 0.5


def test_discriminating_samples_are_far_apart_and_never_equal(build_set: Build) -> None:
    samples = build_set([np.array([[value]], np.float32) for value in (1, 1.0001, -5, 1, 9, -5)])
    chosen = discriminating(samples, 6)
    # Without exact repetitions: 1, 1.0001, −5 and 9.
    assert len(chosen) == 4
    assert set(chosen[:3]) == {0, 2, 4}


def test_every_batch_size_is_asked_for_and_every_position_has_two_rows(batched: Model, squares: SampleSet) -> None:
    plan = plan_requests(squares, batched)
    assert {len(request) for request in plan} == set(range(1, 9))
    for size in range(2, 9):
        requests = [request for request in plan if len(request) == size]
        for position in range(size):
            assert len({request[position] for request in requests}) >= 2
        for request in requests:
            assert all(left != right for left, right in pairwise(request))
    assert {index for request in plan for index in request} == set(range(30))
    singles = [request[0] for request in plan if len(request) == 1]
    assert singles[0] != singles[1]


def test_large_batches_are_asked_for_at_the_corners() -> None:
    assert batch_sizes(4) == (1, 2, 3, 4)
    sizes = batch_sizes(128, preferred=[48])
    assert {1, 3, 8, 31, 32, 33, 47, 48, 49, 127, 128} <= set(sizes)
    assert len(sizes) < 40
    assert max(sizes) == 128


def test_a_model_that_does_not_batch_is_asked_one_by_one(build_model: Callable[..., Model], squares: SampleSet) -> None:
    single = build_model([TensorSpec("x", "FP32", (1, 1))], [TensorSpec("y", "FP32", (1, 2))], 0)
    assert {len(request) for request in plan_requests(squares, single)} == {1}


def test_merged_requests_come_apart_again(squares: SampleSet) -> None:
    merged = merge(squares, (3, 1, 2))
    assert merged.inputs["x"][:, 0].tolist() == [3, 1, 2]
    parts = separate(merged.expected or {}, [1, 1, 1])
    for index, part in zip((3, 1, 2), parts, strict=True):
        assert np.array_equal(part["y"], (squares.samples[index].expected or {})["y"])
    # Nothing is cut out of an output that lost rows: everyone sees its wrong shape.
    assert [part["y"].shape for part in separate({"y": np.zeros((2, 2))}, [1, 1, 1])] == [(2, 2)] * 3


def swaps_two_rows(inputs: Arrays) -> tuple[Arrays, Mapping[str, str]]:
    y = honest(inputs)[0]["y"].copy()
    if len(y) >= 3:
        y[[0, 1]] = y[[1, 0]]
    return {"y": y}, FP32


def wrong_at_eight(inputs: Arrays) -> tuple[Arrays, Mapping[str, str]]:
    y = honest(inputs)[0]["y"]
    return {"y": y * 1.5 if len(y) == 8 else y}, FP32


def drops_a_row(inputs: Arrays) -> tuple[Arrays, Mapping[str, str]]:
    y = honest(inputs)[0]["y"]
    return {"y": y[:-1] if len(y) == 5 else y}, FP32


def fails_at_four(inputs: Arrays) -> tuple[Arrays, Mapping[str, str]]:
    if len(inputs["x"]) == 4:
        raise EnvironmentFailure("out of memory")
    return honest(inputs)


class Stale:
    """Every second answer is the one before."""

    def __init__(self) -> None:
        self.turn = 0
        self.last: Arrays = {}

    def __call__(self, inputs: Arrays) -> tuple[Arrays, Mapping[str, str]]:
        self.turn += 1
        if self.turn % 2 == 0 and self.last["y"].shape[0] == len(inputs["x"]):
            return self.last, FP32
        self.last, _ = honest(inputs)
        return self.last, FP32


@pytest.mark.parametrize(
    ("infer", "reason"),
    [
        (honest, ""),
        (swaps_two_rows, "of a batch of 3"),
        (wrong_at_eight, "of a batch of 8"),
        (drops_a_row, "wrong_shape: output y: expected [1, 2], got [4, 2]"),
        (fails_at_four, "failed_request: out of memory"),
        (Stale(), "lInf loss"),
    ],
    ids=["honest", "swaps", "batch 8", "drops", "fails", "stale"],
)
def test_the_plan_finds_the_fault(batched: Model, squares: SampleSet, infer: Any, reason: str) -> None:
    answers = ask(squares, plan_requests(squares, batched), infer)
    parity = validate("c", squares, answers, parse_tolerances(["lInf<=1e-3"]), FP32)
    assert parity.passed is (reason == "")
    if reason == "of a batch of 3":
        # The worst is somewhere else, but the smallest batch that fails is 3.
        pair = [request for request in plan_requests(squares, batched) if len(request) <= 2]
        assert validate(
            "c", squares, ask(squares, pair, infer), parse_tolerances(["lInf<=1e-3"]), FP32, complete=False
        ).passed
    else:
        assert reason in parity.reason


# Under load


def test_a_swapped_row_is_found_whatever_the_tolerance(squares: SampleSet) -> None:
    order = list(discriminating(squares))
    noisy = [Answer(i, {"y": (squares.samples[i].expected or {})["y"] * np.float32(1.01)}, FP32) for i in order]
    parity = check_under_load("c", squares, noisy, parse_tolerances(["rel_l2<=1e6"]), FP32)
    assert parity.passed, parity.reason
    swapped = list(noisy)
    swapped[2] = Answer(order[2], noisy[3].outputs, FP32)
    parity = check_under_load("c", squares, swapped, parse_tolerances(["rel_l2<=1e6"]), FP32)
    assert parity.reason == (f"misplaced: the answer to sample s{order[2]} is that of sample s{order[3]}")


def test_no_answer_under_load_is_a_defect(squares: SampleSet) -> None:
    assert not check_under_load("c", squares, [], parse_tolerances(["lInf<=1"]), FP32).passed


def test_kept_responses_are_read(squares: SampleSet) -> None:
    from tritonclient.grpc import service_pb2

    response = service_pb2.ModelInferResponse()
    output = response.outputs.add(name="y", datatype="FP32", shape=[1, 2])
    response.raw_output_contents.append(np.array([4, 16], np.float32).tobytes())
    good = (4, response.SerializeToString())
    response.raw_output_contents[0] = b""
    empty = (5, response.SerializeToString())
    assert output.name == "y"
    parity = check_under_load("c", squares, answers_of([good]), parse_tolerances(["lInf<=0"]), FP32)
    assert parity.passed
    assert parity.samples == 1
    parity = check_under_load("c", squares, answers_of([good, empty]), parse_tolerances(["lInf<=0"]), FP32)
    assert parity.reason.startswith("failed_request: a response does not fill its shape")
