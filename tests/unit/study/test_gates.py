"""The accuracy gates by values: answers in, verdict out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from optimizer.accuracy.tolerances import parse_tolerances
from optimizer.gates import MOST_KEPT, MOST_REQUEST_BYTES, MOST_ROWS, Gate
from optimizer.records.model import Model, TensorSpec
from optimizer.records.samples import Arrays, Sample, SampleSet

MODEL = Model(
    "m", Path("/none"), None, "", "", "", "python", 8, (TensorSpec("X", "FP32", (3,)),),
    (TensorSpec("Y", "FP32", (3,)),), (), "latest(1)", "",
)  # fmt: skip
EYE = 4 * np.eye(3, dtype=np.float32)


def samples(count: int = 30) -> SampleSet:
    """Classes 0, 1, 2, 0, …; the answer is the input."""
    rows = [EYE[number % 3 : number % 3 + 1] + np.float32(number / 100) for number in range(count)]
    return SampleSet("tune", tuple(Sample(f"s{i}", {"X": row}, {"Y": row}) for i, row in enumerate(rows)), "test")


def gate(*tolerances: str, count: int = 30) -> Gate:
    return Gate(samples(count), parse_tolerances(tolerances), {"Y": "FP32"})


def honest(inputs: Arrays) -> tuple[Arrays, Mapping[str, str]]:
    return {"Y": inputs["X"].copy()}, {"Y": "FP32"}


def test_every_batch_size_is_asked_for_and_an_honest_model_passes():
    one = gate("lInf<=1e-3")
    plan = one.batch_plan(MODEL, 8, ())
    assert {len(request) for request in plan} == set(range(1, 9))
    parity = one.check_batches("c", plan, honest)
    assert parity.passed
    assert parity.sample_set == "batches"


def test_a_batch_size_that_only_the_candidate_has_is_asked_for():
    assert max(len(request) for request in gate("lInf<=1").batch_plan(MODEL, 12, (10,))) == 12


def test_requests_of_a_huge_max_batch_size_stay_of_a_size_that_can_be_sent():
    plan = gate("lInf<=1").batch_plan(MODEL, 2**31 - 1, ())
    assert max(len(request) for request in plan) == MOST_ROWS
    wide = Sample("wide", {"X": np.zeros((1, 20_000_000), np.float32)}, {"Y": np.zeros((1, 3), np.float32)})
    other = replace(wide, id="other", expected={"Y": np.ones((1, 3), np.float32)})
    plan = Gate(SampleSet("tune", (wide, other), "test"), (), {"Y": "FP32"}).batch_plan(MODEL, 64, (32,))
    assert max(len(request) for request in plan) == MOST_REQUEST_BYTES // 80_000_000


def test_rows_swapped_in_batches_fail_with_their_position():
    def swaps(inputs: Arrays) -> tuple[Arrays, Mapping[str, str]]:
        rows = inputs["X"].copy()
        if len(rows) >= 3:
            rows[[0, 1]] = rows[[1, 0]]
        return {"Y": rows}, {"Y": "FP32"}

    one = gate("lInf<=1e-3")
    parity = one.check_batches("c", one.batch_plan(MODEL, 8, ()), swaps)
    assert not parity.passed
    assert "of a batch of" in parity.reason


def test_no_batches_are_planned_where_no_two_answers_differ():
    equal = samples()
    first = equal.samples[0]
    same = replace(equal, samples=tuple(replace(first, id=str(i)) for i in range(4)))
    assert Gate(same, (), {"Y": "FP32"}).batch_plan(MODEL, 8, ()) == ()


def flips(count: int):
    """Misses the class of the first ``count`` samples it is asked about, however often."""
    missed = dict.fromkeys(range(count))

    def infer(inputs: Arrays) -> tuple[Arrays, Mapping[str, str]]:
        rows = inputs["X"].copy()
        for row in rows:
            number = round(float(row.min()) * 100)
            if number in missed:
                row[:] = np.roll(row, 1)
        return {"Y": rows}, {"Y": "FP32"}

    return infer


def test_a_tolerated_miss_among_a_few_batched_rows_is_no_reason():
    """One of 100 samples may miss; among the 8 that are asked for in batches it would be 12%."""
    one = gate("top1>=0.99", count=100)
    plan = one.batch_plan(MODEL, 8, ())
    assert 0 in one.apart
    assert one.check_batches("c", plan, flips(1)).passed
    assert not one.check_batches("c", plan, flips(100)).passed


def response(index: int, array: np.ndarray) -> tuple[int, bytes]:
    from tritonclient.grpc import service_pb2

    message = service_pb2.ModelInferResponse()
    output = message.outputs.add(name="Y", datatype="FP32", shape=array.shape)
    assert output.name == "Y"
    message.raw_output_contents.append(array.astype(np.float32).tobytes())
    return index, message.SerializeToString()


def test_answers_under_load_are_held_against_their_own_samples():
    one = gate("rel_l2<=100", "top1(tag=hard)>=0.5", "top1>=0.2@0.9")
    rows = [sample.inputs["X"] for sample in one.samples.samples]
    right = [response(index, rows[index]) for index in range(8)]
    assert one.check_load("c", right).passed
    other = one.apart[1]
    wrong = one.check_load("c", [*right, response(one.apart[0], rows[other])])
    assert wrong.reason.startswith("misplaced: ")
    assert not one.check_load("c", []).passed


def test_the_answers_kept_are_bounded_in_number_and_bytes():
    assert gate().kept_responses == MOST_KEPT
    large = np.zeros((1, 1_000_000), np.float32)
    big = SampleSet("tune", (Sample("s", {"X": large}, {"Y": large}),), "test")
    assert Gate(big, (), {"Y": "FP32"}).kept_responses == 4
