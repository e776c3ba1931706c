"""Expected outputs and the check of the reference itself. ONNX Runtime is the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimizer.accuracy.onnxruntime_reference import onnxruntime_reference
from optimizer.accuracy.references import check_finite, with_references
from optimizer.accuracy.tolerances import parse_tolerances
from optimizer.accuracy.validator import Answer, FailedAnswer
from optimizer.errors import InputError, ReferenceFailure
from optimizer.records.model import Array, Model, TensorSpec
from optimizer.records.samples import Sample, SampleSet

FP32 = {"Y": "FP32"}


@pytest.fixture
def tiny(build_model: Callable[..., Model]) -> Model:
    """Y = 2 X + 1, FP32 [4], batched up to 8."""
    return build_model([TensorSpec("X", "FP32", (4,))], [TensorSpec("Y", "FP32", (4,))], 8)


def bare(count: int = 12, name: str = "tune") -> SampleSet:
    generator = np.random.default_rng(0)
    return SampleSet(
        name,
        tuple(
            Sample(f"{name}{i}", {"X": generator.standard_normal((1 + (i == 5), 4)).astype(np.float32)})
            for i in range(count)
        ),
        "test",
    )


class Server:
    """Answers sets as a served model would; ``fault`` changes (output, input, number of the request)."""

    def __init__(self, fault: Callable[[Array, Array, int], Any] = lambda y, _x, _n: y) -> None:
        self.fault = fault
        self.requests = 0

    def __call__(self, samples: SampleSet) -> Iterator[Answer | FailedAnswer]:
        for index, sample in enumerate(samples.samples):
            self.requests += 1
            x = np.asarray(sample.inputs["X"])
            y = self.fault(2 * x + 1, x, self.requests)
            yield Answer(index, {"Y": y}, FP32) if isinstance(y, np.ndarray) else FailedAnswer(index, str(y))


def outputs(samples: SampleSet) -> list[Array]:
    return [(sample.expected or {})["Y"] for sample in samples.samples]


def test_as_found_answers_become_the_reference(tiny: Model) -> None:
    sets = (bare(), bare(5, "held_out"))
    tune, held_out = with_references(sets, tiny, answers=Server())
    for samples in (tune, held_out):
        assert samples.references == "as-found"
        for sample, output in zip(samples.samples, outputs(samples), strict=True):
            assert np.array_equal(output, 2 * sample.inputs["X"] + 1)
    assert tune.details["noise"] == {f"Y:{metric}": 0.0 for metric in ("l0", "l1", "l2", "lInf", "cos", "rel_l2")}
    assert tune.details["notes"] == []


def test_golden_outputs_win_and_the_model_as_found_is_held_against_them(tiny: Model) -> None:
    (golden,) = with_references([bare()], tiny, answers=Server())
    golden = replace(golden, references="golden")
    (again,) = with_references([golden], tiny, answers=Server(lambda y, _x, _n: y + np.float32(0.01)))
    assert again.references == "golden"
    assert np.array_equal(outputs(again)[0], outputs(golden)[0])
    assert "differs from the golden outputs by Y:lInf 0.01" in str(again.details["notes"])
    with pytest.raises(ReferenceFailure, match=r"disagrees with the golden outputs: output Y: lInf loss 0.01"):
        with_references([golden], tiny, answers=Server(lambda y, _x, _n: y + np.float32(0.01)),
                        tolerances=parse_tolerances(["lInf<=1e-3"]))  # fmt: skip


def unstable(y: Array, _x: Array, request: int) -> Array:
    return y * np.float32(1 + 0.2 * (request % 2))


def batch_dependent(y: Array, _x: Array, _request: int) -> Array:
    return y + np.float32(0.5) * (len(y) == 3)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (unstable, "asked again in another order, does not repeat its answers: output Y: rel_l2 loss 0."),
        (batch_dependent, "asked in batches, does not repeat its answers"),
        (lambda y, _x, _n: np.where(y > 2, np.nan, y).astype(np.float32), "of sample .* has NaN in"),
        (lambda y, _x, n: y if n < 4 else "INTERNAL: boom", "cannot answer sample tune3: INTERNAL: boom"),
    ],
    ids=["unstable", "batch-dependent", "not finite", "fails"],
)
def test_a_reference_that_cannot_be_trusted_stops_the_study(tiny: Model, fault: Any, message: str) -> None:
    with pytest.raises(ReferenceFailure, match=message) as caught:
        with_references([bare()], tiny, answers=Server(fault))
    assert caught.value.exit_code == 4


def test_noise_within_the_tolerance_is_reported_and_beyond_it_stops(tiny: Model) -> None:
    def noisy(y: Array, _x: Array, request: int) -> Array:
        return y + np.float32(1e-3) * (request % 3)

    (samples,) = with_references([bare()], tiny, answers=Server(noisy), tolerances=parse_tolerances(["lInf<=0.01"]))
    assert 0 < samples.details["noise"]["Y:lInf"] <= 0.0021  # type: ignore[index]
    with pytest.raises(ReferenceFailure, match="does not repeat its answers"):
        with_references([bare()], tiny, answers=Server(noisy), tolerances=parse_tolerances(["lInf<=1e-4"]))


def test_a_missing_output_and_a_wrong_datatype_stop_too(tiny: Model) -> None:
    def without(samples: SampleSet) -> Iterator[Answer]:
        return (Answer(index, {}, {}) for index in range(len(samples)))

    with pytest.raises(ReferenceFailure, match="does not return output 'Y'"):
        with_references([bare()], tiny, answers=without)

    def half(samples: SampleSet) -> Iterator[Answer]:
        return (Answer(index, {"Y": np.zeros((1, 4), "f2")}, {"Y": "FP16"}) for index in range(len(samples)))

    with pytest.raises(ReferenceFailure, match="returns output 'Y' as FP16, its config says FP32"):
        with_references([bare()], tiny, answers=half)
    with pytest.raises(ReferenceFailure, match="answered 0 of 12 samples"):
        with_references([bare()], tiny, answers=lambda _samples: iter(()))


def test_infinities_are_noted(build_set: Callable[[Sequence[Any]], SampleSet]) -> None:
    (finding,) = check_finite(build_set([np.array([[-np.inf, 1.0]]), np.array([[0.0, 1.0]])]))
    assert not finding.fatal
    assert "infinities in 1 of 2 samples" in finding.message


def test_an_origin_that_is_not_there_is_the_users_mistake(tiny: Model) -> None:
    for kind, problem in (
        ("golden", "has no expected outputs"), ("as-found", "is not served here"), ("onnxruntime-fp32", "as ONNX"),
        ("auto", "as ONNX"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=problem):
            with_references([bare()], tiny, kind=kind)


# ONNX Runtime


def test_onnxruntime_in_fp32(tiny: Model, tiny_onnx: Path) -> None:
    (samples,) = with_references([bare()], tiny, onnx=tiny_onnx)
    assert samples.references == "onnxruntime-fp32"
    for sample, output in zip(samples.samples, outputs(samples), strict=True):
        assert np.array_equal(output, 2 * sample.inputs["X"] + 1)
    (checked,) = with_references([bare()], tiny, kind="onnxruntime-fp32", onnx=tiny_onnx, answers=Server())
    assert checked.references == "onnxruntime-fp32"
    twice = Server(lambda y, _x, _n: y * np.float32(2))
    tolerances = parse_tolerances(["rel_l2<=1e-6"])
    with pytest.raises(ReferenceFailure, match="disagrees with the onnxruntime-fp32 outputs"):
        with_references([bare()], tiny, kind="onnxruntime-fp32", onnx=tiny_onnx, answers=twice, tolerances=tolerances)


def test_onnxruntime_undoes_reshape(build_model: Callable[..., Model], tiny_onnx: Path) -> None:
    model = build_model(
        [TensorSpec("X", "FP32", (2, 2), reshape=(4,))], [TensorSpec("Y", "FP32", (4, 1), reshape=(4,))], 8
    )
    samples = SampleSet("t", (Sample("s", {"X": np.arange(8, dtype=np.float32).reshape(2, 2, 2)}),), "test")
    (output,) = onnxruntime_reference(tiny_onnx, model, samples)
    assert output["Y"].shape == (2, 4, 1)
    assert output["Y"].ravel().tolist() == [1, 3, 5, 7, 9, 11, 13, 15]


def test_onnxruntime_takes_texts(
    build_model: Callable[..., Model], make_onnx: Callable[..., Path], tmp_path: Path
) -> None:
    from onnx import TensorProto, helper

    path = make_onnx(
        tmp_path / "text.onnx", [helper.make_node("Identity", ["T"], ["U"])],
        [("T", TensorProto.STRING, ["N", 2])], [("U", TensorProto.STRING, ["N", 2])],
    )  # fmt: skip
    model = build_model([TensorSpec("T", "BYTES", (2,))], [TensorSpec("U", "BYTES", (2,))])
    texts = np.array([["ä".encode(), b""]], dtype=object)
    (output,) = onnxruntime_reference(path, model, SampleSet("t", (Sample("s", {"T": texts}),), "test"))
    assert output["U"].tolist() == texts.tolist()
    not_utf8 = SampleSet("t", (Sample("s", {"T": np.array([[b"a", b"\xff"]], dtype=object)}),), "test")
    with pytest.raises(ReferenceFailure, match="cannot compute sample s"):
        onnxruntime_reference(path, model, not_utf8)


def test_what_onnxruntime_cannot_do_says_why(
    tiny: Model, build_model: Callable[..., Model], tiny_onnx: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    with pytest.raises(InputError, match="ONNX Runtime cannot load it"):
        onnxruntime_reference(broken, tiny, bare())
    other = build_model([TensorSpec("X", "FP32", (4,))], [TensorSpec("Z", "FP32", (4,))])
    with pytest.raises(InputError, match=r"(?s)has no tensor 'Z'.*its tensors: X, Y"):
        onnxruntime_reference(tiny_onnx, other, bare())
    wrong = SampleSet("t", (Sample("s", {"X": np.zeros((1, 5), np.float32)}),), "test")
    with pytest.raises(ReferenceFailure, match="cannot compute sample s"):
        onnxruntime_reference(tiny_onnx, tiny, wrong)
