"""Answers against expected ones, by values."""

import numpy as np
import pytest

from optimizer.accuracy.tolerances import parse_tolerances
from optimizer.canary.answers import Comparer, contents
from optimizer.records.samples import Sample


def answer(values, model="baseline", datatype="FP32", name="Y"):
    from tritonclient.grpc import service_pb2

    array = np.asarray(values, np.float32)
    response = service_pb2.ModelInferResponse(model_name=model, model_version="1")
    response.outputs.add(name=name, datatype=datatype).shape.extend(array.shape)
    response.raw_output_contents.append(array.tobytes())
    return response.SerializeToString()


def comparer(*tolerances, expected=None):
    inputs = {"X": np.zeros((1, 3), np.float32)}
    samples = [Sample(f"s{index}", inputs, None if expected is None else {"Y": expected}) for index in range(2)]
    return Comparer(samples, {"Y": "FP32"}, parse_tolerances(tolerances or ["lInf<=0.01"]))


def compared(given, reference, *tolerances, expected=None):
    subject = comparer(*tolerances, expected=expected)
    subject.add(0, given, reference)
    return subject.take()


def test_who_answers_makes_no_difference():
    assert contents(answer([1], "a")) == contents(answer([1], "b"))
    result = compared(answer([[1, 2, 3]], "candidate"), answer([[1, 2, 3]]))
    assert (result.comparisons, result.mismatches, result.non_finite, result.distinct) == (1, 0, 0, 1)


@pytest.mark.parametrize(("value", "mismatches"), [(3.009, 0), (3.011, 1)])
def test_within_the_tolerance_or_not(value, mismatches):
    assert compared(answer([[1, 2, value]]), answer([[1, 2, 3]])).mismatches == mismatches


def test_a_nan_that_only_the_candidate_has():
    result = compared(answer([[1, np.nan, 3]]), answer([[1, 2, 3]]))
    assert (result.mismatches, result.non_finite) == (0, 1)
    assert "s0" in result.first
    both = compared(answer([[1, np.nan, 3]]), answer([[1, np.nan, 3]]))
    assert (both.mismatches, both.non_finite) == (0, 0)


@pytest.mark.parametrize(
    "other", [answer([[1, 2]]), answer([[1, 2, 3]], name="Z"), answer([[1, 2, 3]], datatype="INT32")]
)
def test_defects_are_mismatches(other):
    assert compared(other, answer([[1, 2, 3]])).mismatches == 1


def test_golden_outputs_come_before_the_baselines_answer():
    golden = np.array([[1, 2, 3]], np.float32)
    assert compared(answer([[9, 2, 3]]), answer([[9, 2, 3]]), expected=golden).mismatches == 1


def test_metrics_that_count_are_counted():
    subject = comparer("top1>=0.5")
    subject.add(0, answer([[1, 2, 3]]), answer([[1, 2, 3]]))
    subject.add(1, answer([[3, 2, 1]]), answer([[1, 2, 3]]))
    result = subject.take()
    assert (result.mismatches, list(result.counted.values())) == (0, [(1, 2)])


def test_take_begins_anew_but_remembers_the_inputs():
    subject = comparer()
    subject.add(0, answer([[5, 2, 3]]), answer([[1, 2, 3]]))
    assert subject.take().mismatches == 1
    subject.add(1, answer([[1, 2, 3]]), answer([[1, 2, 3]]))
    second = subject.take()
    assert (second.comparisons, second.mismatches, second.first, second.distinct) == (1, 0, "", 2)
