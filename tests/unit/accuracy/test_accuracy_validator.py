"""Defects come before metrics; a loss equal to the threshold passes; nothing is skipped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optimizer.accuracy.tolerances import parse_tolerances
from optimizer.accuracy.validator import Answer, FailedAnswer, validate
from optimizer.errors import InputError
from optimizer.records.codec import from_json, to_json
from optimizer.records.parity import Parity
from optimizer.records.samples import SampleSet

FP32 = {"y": "FP32"}
Build = Callable[..., SampleSet]


def answers(arrays: Sequence[Any], datatype: str = "FP32") -> list[Answer]:
    return [Answer(index, {"y": np.asarray(array)}, {"y": datatype}) for index, array in enumerate(arrays)]


def judge(samples: SampleSet, given: Any, *tolerances: str, datatypes: dict[str, str] | None = None) -> Parity:
    return validate("c", samples, given, parse_tolerances(tolerances), datatypes or FP32)


@pytest.fixture
def expected() -> list[Any]:
    return [np.array([[index, index + 1.0, index - 1.0]], np.float32) for index in range(10)]


def test_equal_answers_pass_with_threshold_zero(build_set: Build, expected: list[Any]) -> None:
    parity = judge(build_set(expected), answers(expected), "l0<=0", "l1<=0", "l2<=0", "lInf<=0", "cos<=0", "exact>=1")
    assert parity.passed
    assert parity.samples == 10
    assert [output.loss for output in parity.outputs] == [0.0] * 6
    assert parity.reason == ""


def test_a_loss_equal_to_the_threshold_passes_and_one_above_fails(build_set: Build, expected: list[Any]) -> None:
    given = answers(expected)
    given[7] = Answer(7, {"y": expected[7] + np.float32(0.5)}, FP32, "position 2 of a batch of 8")
    assert judge(build_set(expected), given, "lInf<=0.5").passed
    parity = judge(build_set(expected), given, "lInf<=0.4999")
    assert not parity.passed
    # The loss is the tolerance that would have been needed.
    assert parity.outputs[0].loss == 0.5
    assert parity.outputs[0].worst_sample == "sample s7, position 2 of a batch of 8"
    assert parity.reason == ("output y: lInf loss 0.5 exceeds 0.4999 (worst: sample s7, position 2 of a batch of 8)")


@pytest.mark.parametrize(
    ("answer", "defect"),
    [
        (Answer(3, {}, {}), "missing_output: output y: the response does not have it"),
        (Answer(3, {"y": np.zeros((1, 3), np.float32), "z": np.zeros(1)}, FP32), "unexpected_output: output z"),
        (Answer(3, {"y": np.zeros((1, 3), "f2")}, {"y": "FP16"}), "wrong_datatype: output y: expected FP32, got FP16"),
        (Answer(3, {"y": np.zeros((1, 3), "f8")}, FP32), "wrong_datatype: output y: expected FP32, got float64"),
        (Answer(3, {"y": np.zeros((1, 3), "f4")}, {"y": "BF16"}), "wrong_datatype: output y: expected FP32, got BF16"),
        (Answer(3, {"y": np.zeros((1, 4), np.float32)}, FP32), "wrong_shape: output y: expected [1, 3], got [1, 4]"),
        (Answer(3, {"y": np.zeros((3,), np.float32)}, FP32), "wrong_shape: output y: expected [1, 3], got [3]"),
        (Answer(3, {"y": np.array([[3, np.nan, 2]], "f4")}, FP32), "non_finite: output y: nan where 4.0 is expected"),
        (Answer(3, {"y": np.array([[3, 4, np.inf]], "f4")}, FP32), "non_finite: output y: inf where 2.0 is expected"),
        (FailedAnswer(3, "UNAVAILABLE: gone"), "failed_request: UNAVAILABLE: gone"),
    ],
)  # fmt: skip
def test_a_defect_rejects_whatever_the_tolerance(
    build_set: Build, expected: list[Any], answer: Any, defect: str
) -> None:
    given: list[Any] = answers(expected)
    given[3] = answer
    for tolerances in (["lInf<=1e9", "top1>=0.01"], []):
        parity = judge(build_set(expected), given, *tolerances)
        assert not parity.passed
        assert parity.reason.startswith(defect)
        assert "sample s3" in parity.reason


def test_one_nan_in_ten_thousand_values_is_found(build_set: Build) -> None:
    expected = [np.ones((1, 10_000), np.float32)]
    actual = expected[0].copy()
    actual[0, 1234] = np.nan
    parity = judge(build_set(expected), answers([actual]), "l1<=1")
    assert parity.defects == (
        "non_finite: output y: nan where 1.0 is expected, at [0, 1234], 1 of 10000 values (sample s0)",
    )


def test_the_references_own_nan_and_infinity_are_not_defects(build_set: Build) -> None:
    expected = [np.array([[np.nan, np.inf, 1.0]], np.float32)]
    assert judge(build_set(expected), answers([expected[0].copy()]), "lInf<=0").passed


def test_a_sample_that_is_never_answered_is_a_defect(build_set: Build, expected: list[Any]) -> None:
    parity = judge(build_set(expected), answers(expected)[:8], "lInf<=1")
    assert parity.defects == ("no_answer: no answer came (sample s8; 2 answers in all)",)
    assert parity.samples == 8
    assert judge(build_set(expected), [], "lInf<=1").defects != ()


def test_many_answers_are_looked_at_one_by_one(build_set: Build, expected: list[Any]) -> None:
    alive = 0
    most = 0

    def stream() -> Iterator[Answer]:
        nonlocal alive, most
        for turn in range(300):
            array = np.array(expected[turn % 10])
            alive += 1
            most = max(most, alive)
            yield Answer(turn % 10, {"y": array}, FP32)
            alive -= 1

    parity = judge(build_set(expected), stream(), "lInf<=0")
    assert parity.passed
    assert parity.outputs[0].units == 300
    assert most == 1


def test_without_tolerance_losses_are_shown_and_nothing_is_judged(build_set: Build, expected: list[Any]) -> None:
    parity = judge(build_set(expected), answers([array + np.float32(100) for array in expected]))
    assert parity.passed
    assert not parity.tolerance_given
    losses = {output.metric: output.loss for output in parity.outputs}
    assert losses["lInf"] == 100.0
    assert losses["l0"] == 1.0
    assert all(output.threshold is None for output in parity.outputs)


def test_agreement_is_counted_over_all_rows(build_set: Build) -> None:
    expected = [np.eye(3, dtype=np.float32)[[0, 1, 2, 0]] for _ in range(50)]
    flipped = [array.copy() for array in expected]
    flipped[20][2] = [1.0, 0.0, 0.0]
    parity = judge(build_set(expected), answers(flipped), "top1>=0.995")
    assert parity.passed
    only = parity.outputs[0]
    assert (only.misses, only.units, only.loss) == (1, 200, 0.005)
    assert only.bound == pytest.approx(0.0235, abs=2e-4)
    assert only.worst_sample == "sample s20"
    bounded = judge(build_set(expected), answers(flipped), "top1>=0.995@0.95")
    assert not bounded.passed
    assert "loss 0.005 (1 of 200) supports no better than 0.02349" in bounded.reason
    assert judge(build_set(expected), answers(flipped), "top1>=0.97@0.95").passed
    assert "(1 of 200) exceeds 0.004" in judge(build_set(expected), answers(flipped), "top1>=0.996").reason


def test_asking_again_is_no_further_evidence(build_set: Build) -> None:
    expected = [np.eye(2, dtype=np.float32)[[index % 2]] for index in range(10)]
    flipped = [*answers(expected)[:1], Answer(1, {"y": expected[0]}, FP32, "position 1 of a batch of 3")]
    given = [*answers(expected), *answers(expected), *flipped, *answers(expected)]
    parity = judge(build_set(expected), given, "top1>=0.9")
    # The one wrong answer among many right ones to the same sample counts, and the sample counts once.
    assert (parity.outputs[0].misses, parity.outputs[0].units) == (1, 10)
    assert parity.passed
    assert parity.outputs[0].worst_sample == "sample s1, position 1 of a batch of 3"


def test_half_a_percent_of_flips_fails_a_floor_of_99_9(build_set: Build) -> None:
    expected = [np.eye(2, dtype=np.float32)[[index % 2]] for index in range(3000)]
    flipped = [array[:, ::-1] if index % 200 == 0 else array for index, array in enumerate(expected)]
    assert not judge(build_set(expected), answers(flipped), "top1>=0.999").passed
    assert judge(build_set(expected), answers(expected), "top1>=0.999@0.95").passed


def test_a_floor_holds_for_the_samples_of_its_tag(build_set: Build, expected: list[Any]) -> None:
    tags = [["hard"] if index < 2 else ["easy"] for index in range(10)]
    samples = build_set(expected, tags)
    given = answers(expected)
    given[0] = Answer(0, {"y": np.roll(expected[0], 1)}, FP32)
    parity = judge(samples, given, "top1>=0.9", "top1(tag=hard)>=0.9")
    assert [output.passed for output in parity.outputs] == [True, False]
    assert parity.outputs[1].metric == "top1(tag=hard)"
    assert parity.per_tag["hard"]["y:top1"] == 0.5
    assert parity.per_tag["easy"]["y:top1"] == 0.0


def test_a_floor_on_a_tag_that_no_sample_has_does_not_pass_unseen(build_set: Build, expected: list[Any]) -> None:
    parity = judge(build_set(expected), answers(expected), "lInf<=0", "top1(tag=rare)>=0.9")
    assert not parity.passed
    assert parity.reason == "output y: top1(tag=rare) has no sample to stand on"


def test_a_numeric_tolerance_for_every_output_compares_texts_exactly(build_set: Build) -> None:
    expected = [np.array([[b"one", b"two"]], dtype=object)]
    texts = {"y": "BYTES"}
    assert judge(build_set(expected), answers(expected, "BYTES"), "lInf<=1e9", datatypes=texts).passed
    wrong = [np.array([[b"one", b"twO"]], dtype=object)]
    parity = judge(build_set(expected), answers(wrong, "BYTES"), "lInf<=1e9", datatypes=texts)
    assert not parity.passed
    assert parity.outputs[0].metric == "exact"


def test_bf16_that_is_off_by_five_percent_fails(build_set: Build) -> None:
    expected = [np.array([[1.0, 2.0, -4.0]], np.float32)]
    off = [np.array([[1.0546875, 2.109375, -4.21875]], np.float32)]
    parity = judge(build_set(expected), answers(off, "BF16"), "rel_l2<=0.02", datatypes={"y": "BF16"})
    assert not parity.passed
    assert parity.outputs[0].loss == pytest.approx(0.0547, abs=1e-4)


@pytest.mark.parametrize(
    ("datatype", "dtype"),
    [("BOOL", "?"), ("UINT8", "u1"), ("UINT16", "u2"), ("UINT32", "u4"), ("UINT64", "u8"), ("INT8", "i1"),
     ("INT16", "i2"), ("INT32", "i4"), ("INT64", "i8"), ("FP16", "f2"), ("FP32", "f4"), ("FP64", "f8"),
     ("BF16", "f4")],
)  # fmt: skip
def test_every_datatype_is_compared(build_set: Build, datatype: str, dtype: str) -> None:
    expected = [np.array([[0, 1, 1]], dtype)]
    wrong = [np.array([[0, 1, 0]], dtype)]
    for tolerance in ("lInf<=0.5", "l0<=0", "l1<=0.1", "l2<=0.1", "cos<=0.01", "exact>=1"):
        good = judge(build_set(expected), answers(expected, datatype), tolerance, datatypes={"y": datatype})
        assert good.passed, tolerance
        bad = judge(build_set(expected), answers(wrong, datatype), tolerance, datatypes={"y": datatype})
        assert not bad.passed, tolerance


def test_the_record_survives_json_even_with_an_infinite_loss(build_set: Build) -> None:
    expected = [np.zeros((1, 3), np.float32)]
    parity = judge(build_set(expected), answers([np.ones((1, 3), np.float32)]), "rel_l2<=1")
    assert not parity.passed
    text = json.dumps(to_json(parity), allow_nan=False)
    assert from_json(Parity, json.loads(text)) == parity


def test_an_output_without_tolerance_and_a_sample_without_reference_are_refused(
    build_set: Build, expected: list[Any]
) -> None:
    with pytest.raises(InputError, match="output 'y' has no tolerance"):
        judge(build_set(expected), answers(expected), "z:lInf<=1")
    samples = build_set(expected)
    bare = replace(samples, samples=(*samples.samples, replace(samples.samples[0], id="bare", expected=None)))
    with pytest.raises(InputError, match="sample bare has no expected outputs"):
        judge(bare, answers(expected), "lInf<=1")
