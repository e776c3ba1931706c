"""Synthetic samples, splitting, hard cases, what samples support, suggested tolerances, kept references."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.accuracy.hard_cases import (
    extremes,
    lowest_margin,
    margin,
    odd_batches,
    tag_hard_cases,
    what_samples_support,
)
from optimizer.accuracy.inputs import check_disjoint, split
from optimizer.accuracy.kept_references import load_references, save_references
from optimizer.accuracy.suggestion import losses_of, round_up, suggest_tolerance
from optimizer.accuracy.synthetic import ShapeRange, parse_int_range, parse_shape, synthetic_samples
from optimizer.accuracy.tensors import round_to_bf16
from optimizer.accuracy.tolerances import check_tolerances, parse_tolerances
from optimizer.accuracy.validator import Answer, validate
from optimizer.errors import InputError
from optimizer.records.model import TRITON_TO_NUMPY, Model, TensorSpec
from optimizer.records.parity import Parity
from optimizer.records.samples import Sample, SampleSet

Build = Callable[..., SampleSet]
BuildModel = Callable[..., Model]

RANGES = {"image": ShapeRange((3, 2), (3, 4), (3, 9))}


# Synthetic


def test_random_samples_that_no_machine_could_hold_are_refused(model: Model) -> None:
    huge = replace(model, inputs=(TensorSpec("X", "FP32", (100_000, 100_000)),))
    with pytest.raises(InputError, match="at most 4 GB"):
        synthetic_samples(huge, 4, 0)


def test_synthetic_samples_are_a_function_of_seed_and_index(model: Model) -> None:
    long = synthetic_samples(model, 20, 7, shapes=RANGES)
    short = synthetic_samples(model, 12, 7, shapes=RANGES)
    other = synthetic_samples(model, 12, 8, shapes=RANGES)
    assert [s.content_hash for s in short.samples] == [s.content_hash for s in long.samples[:12]]
    assert not {s.content_hash for s in short.samples if not s.tags} & {s.content_hash for s in other.samples}
    assert long.synthetic
    assert long.origin == "synthetic (seed 7)"


def test_synthetic_samples_cover_shapes_batches_and_extremes(model: Model) -> None:
    samples = synthetic_samples(model, 40, 0, shapes=RANGES).samples
    widths = {sample.inputs["image"].shape[2] for sample in samples}
    assert {2, 4, 9} <= widths
    assert all(2 <= width <= 9 for width in widths)
    tags = {tag for sample in samples for tag in sample.tags}
    assert tags == {"edge", "zeros", "extreme", "smallest", "largest", "odd_batch"}
    odd = [sample for sample in samples if "odd_batch" in sample.tags]
    assert {sample.batch for sample in odd} <= {3, 5, 7}
    zeros = next(sample for sample in samples if "zeros" in sample.tags)
    assert not zeros.inputs["image"].any()
    extreme = next(sample for sample in samples if "extreme" in sample.tags)
    assert set(np.unique(np.abs(extreme.inputs["image"]))) == {255.0}
    assert all(sample.inputs["tokens"].min() >= 0 and sample.inputs["tokens"].max() <= 99 for sample in samples)


def test_inputs_that_share_a_free_length_get_the_same_one(build_model: BuildModel) -> None:
    model = build_model([TensorSpec("ids", "INT64", (-1,)), TensorSpec("mask", "INT64", (-1,))], [])
    both = ShapeRange((4,), (16,), (128,))
    for sample in synthetic_samples(model, 30, 0, shapes={"ids": both, "mask": both}).samples:
        assert sample.inputs["ids"].shape == sample.inputs["mask"].shape


@pytest.mark.parametrize("datatype", sorted(TRITON_TO_NUMPY))
def test_every_datatype_can_be_made(build_model: BuildModel, datatype: str) -> None:
    model = build_model([TensorSpec("x", datatype, (2, 3))], [])
    for sample in synthetic_samples(model, 12, 0).samples:
        array = sample.inputs["x"]
        assert array.dtype == TRITON_TO_NUMPY[datatype]
        assert array.shape[1:] == (2, 3)
        if datatype == "BF16":
            assert np.array_equal(array, round_to_bf16(array))


def test_integers_stay_in_their_range(build_model: BuildModel) -> None:
    model = build_model([TensorSpec("x", "INT32", (50,))], [])
    samples = synthetic_samples(model, 8, 0, int_ranges={"x": (5, 7)}).samples
    values = np.concatenate([sample.inputs["x"].ravel() for sample in samples])
    assert set(values.tolist()) == {5, 6, 7}


def test_free_dimensions_need_a_range(model: Model) -> None:
    with pytest.raises(InputError, match=r"(?s)input 'image' has free dimensions.*--shape image=3xMIN:3xMAX"):
        synthetic_samples(model, 4, 0)
    for wrong in (ShapeRange((3,), (3,), (3,)), ShapeRange((2, 4), (2, 4), (2, 4))):
        with pytest.raises(InputError, match=r"expected dims \[3, -1\]"):
            synthetic_samples(model, 4, 0, shapes={"image": wrong})
    with pytest.raises(InputError, match="has no input 'imgae'"):
        synthetic_samples(model, 4, 0, shapes={**RANGES, "imgae": RANGES["image"]})
    with pytest.raises(InputError, match="'image' is FP32, not an integer"):
        synthetic_samples(model, 4, 0, shapes=RANGES, int_ranges={"image": (0, 1)})


def test_shape_and_range_texts() -> None:
    assert parse_shape("x=3x32x32") == ("x", ShapeRange((3, 32, 32), (3, 32, 32), (3, 32, 32)))
    assert parse_shape("a=b=2:10") == ("a=b", ShapeRange((2,), (6,), (10,)))
    assert parse_shape("x=1:3:9")[1] == ShapeRange((1,), (3,), (9,))
    assert parse_shape("x=")[1] == ShapeRange((), (), ())
    assert parse_int_range("ids=-1:30521") == ("ids", (-1, 30521))
    for wrong in ("x", "=3", "x=3x", "x=-1", "x=1:2:3:4", "x=1x2:3", "x=9:3", "x=5:3:9"):
        with pytest.raises(InputError, match="--shape"):
            parse_shape(wrong)
    for wrong in ("ids", "ids=3", "ids=3:1", "ids=a:b"):
        with pytest.raises(InputError, match="--int-range"):
            parse_int_range(wrong)


@given(st.floats(0, 1))
def test_a_range_stays_between_its_ends(fraction: float) -> None:
    (size,) = ShapeRange((3,), (5,), (64,)).at(fraction)
    assert 3 <= size <= 64


# Splitting


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("ab")), min_size=2, max_size=60), st.integers(0, 5),
       st.sampled_from([0.1, 0.25, 0.5, 0.9]))  # fmt: skip
def test_split_is_disjoint_complete_and_repeatable(content: list[tuple[int, str]], seed: int, fraction: float) -> None:
    samples = SampleSet(
        "all",
        tuple(
            Sample(f"s{index}", {"x": np.array([[value]], np.int32)}, tags=frozenset({tag}))
            for index, (value, tag) in enumerate(content)
        ),
        "test",
    )
    if len({value for value, _ in content}) < 2:
        with pytest.raises(InputError, match="would not be disjoint"):
            split(samples, fraction, seed)
        return
    tune, held_out = split(samples, fraction, seed)
    check_disjoint(tune, held_out)
    assert len(tune) > 0 < len(held_out)
    assert sorted(s.id for s in (*tune.samples, *held_out.samples)) == sorted(s.id for s in samples.samples)
    assert [s.id for s in split(samples, fraction, seed)[0].samples] == [s.id for s in tune.samples]
    assert (tune.name, held_out.name) == ("tune", "held_out")


def test_every_tag_is_divided_in_proportion(build_set: Build) -> None:
    samples = build_set([[0.0]] * 120, [["rare"] if index < 20 else ["common"] for index in range(120)])
    _, held_out = split(samples, 0.25, 3)
    assert sum("rare" in sample.tags for sample in held_out.samples) == 5
    assert len(held_out) == 30


def test_many_small_strata_still_give_the_fraction(build_set: Build) -> None:
    samples = build_set([[0.0]] * 100, [[f"t{index}"] for index in range(100)])
    assert len(split(samples, 0.3, 0)[1]) == 30


def test_another_seed_is_another_split(build_set: Build) -> None:
    samples = build_set([[0.0]] * 60)
    assert [s.id for s in split(samples, 0.5, 1)[1].samples] != [s.id for s in split(samples, 0.5, 2)[1].samples]


def test_equal_inputs_in_two_sets_are_named(build_set: Build) -> None:
    tune, other = build_set([[0.0], [1.0]]), replace(build_set([[5.0]]), name="calibration")
    with pytest.raises(
        InputError, match=r"sample s0 of set 'calibration' has the same inputs as sample s0 of set 'tune'"
    ):
        check_disjoint(tune, other)


# Hard cases


def test_lowest_margins_come_first(build_set: Build) -> None:
    samples = build_set([np.array([[0.9, 0.1, 0.0]]), np.array([[0.4, 0.5, 0.1]]), np.array([[0.34, 0.33, 0.33]])])
    assert lowest_margin(samples, "y", 2) == (2, 1)
    assert margin(np.array([[0.5, 0.5], [1.0, 0.0]])) == 0.0
    assert margin(np.array([1.0])) == np.inf
    with pytest.raises(InputError, match="no expected values for output 'z'"):
        lowest_margin(samples, "z", 1)


def test_hard_extreme_and_odd_samples_are_tagged() -> None:
    samples = SampleSet(
        "t",
        tuple(
            Sample(f"s{i}", {"x": np.full((batch, 2), peak, np.float32)}, {"y": np.array([[0.5, low]] * batch, "f4")})
            for i, (batch, peak, low) in enumerate([(1, 1, 0.1), (1, 90, 0.1), (3, 1, 0.1), (2, 1, 0.49), (4, 1, 0.1)])
        ),
        "test",
    )
    tagged = tag_hard_cases(samples, fraction=0.2)
    assert [sorted(sample.tags) for sample in tagged.samples] == [[], ["extreme"], ["odd_batch"], ["hard"], []]
    assert extremes(samples, 5) == (1,)
    assert odd_batches(samples) == (2,)


@pytest.mark.parametrize(
    ("count", "misses", "floor", "text"),
    [
        (299, 0, None, "299 samples with 0 disagreements support ≥ 99.003% agreement at 95% confidence"),
        (1, 0, None, "1 sample with 0 disagreements supports ≥ 5% agreement at 95% confidence"),
        (2995, 0, 0.999, "2995 samples with 0 disagreements support ≥ 99.9% agreement at 95% confidence"),
        (100, 0, 0.99, "100 samples with 0 disagreements support ≥ 97.048% agreement at 95% confidence; "
                       "99% takes 299 with none"),
        (100, 1, 0.99, "100 samples with 1 disagreement support ≥ 95.344% agreement at 95% confidence; "
                       "99% takes 473 with at most 1"),
        (0, 0, None, "no sample was compared: nothing is supported"),
    ],
)  # fmt: skip
def test_what_samples_support(count: int, misses: int, floor: float | None, text: str) -> None:
    assert what_samples_support(count, misses, floor=floor) == text


# Suggested tolerances


def test_a_suggestion_admits_the_reference_and_the_fp16_candidate(build_set: Build) -> None:
    expected = [np.array([[1.0, 2.0, 3.0]], np.float32)] * 4
    samples = build_set(expected)
    datatypes = {"y": "FP32"}

    def off_by(amount: float) -> Parity:
        given = [Answer(i, {"y": array + np.float32(amount)}, datatypes) for i, array in enumerate(expected)]
        return validate("c", samples, given, (), datatypes)

    again, fp16 = off_by(1e-6), off_by(2e-3)
    suggestion = suggest_tolerance(losses_of(again), losses_of(fp16), datatypes)
    outputs = [TensorSpec("y", "FP32", (3,))]
    check_tolerances(suggestion.tolerances, outputs)
    assert parse_tolerances(suggestion.texts) == suggestion.tolerances
    for parity in (again, fp16):
        losses = losses_of(parity)
        for tolerance in suggestion.tolerances:
            assert losses[f"y:{tolerance.metric}"] <= tolerance.threshold
    assert suggestion.texts == ("y:rel_l2<=0.002", "y:lInf<=0.005")
    assert "2 times the FP16 candidate's loss of 0.002" in suggestion.explanation[1]
    alone = suggest_tolerance(losses_of(again), None, datatypes)
    assert alone.tolerances[0].threshold < suggestion.tolerances[0].threshold
    assert "no FP16 candidate stood behind this" in alone.explanation[-1]


def test_integers_and_texts_that_never_change_are_exact() -> None:
    suggestion = suggest_tolerance({"label:lInf": 0.0, "text:exact": 0.0}, None, {"label": "INT64", "text": "BYTES"})
    assert suggestion.texts == ("label:exact<=0.0", "text:exact<=0.0")
    changed = suggest_tolerance({"label:lInf": 3.0}, None, {"label": "INT64"})
    assert changed.tolerances == ()
    assert "state how often it may differ" in changed.explanation[0]


@given(st.floats(1e-30, 1e30))
def test_rounding_up_never_goes_below_and_not_far_above(value: float) -> None:
    assert value <= round_up(value) <= value * 2.5 * (1 + 1e-9)


# Kept references


def test_references_are_kept_with_hash_and_origin(tmp_path: Path, build_set: Build) -> None:
    texts = np.array([[b"", b"\x00\xff"], [b"abc", "ü".encode()]], dtype=object)
    samples = build_set([np.array([[np.nan, 1.5]], np.float32), texts, np.array([[2**63 - 1]])])
    path = tmp_path / "references.npz"
    digest = save_references(path, samples)
    bare = replace(samples, references="", samples=tuple(replace(s, expected=None) for s in samples.samples))
    loaded = load_references(path, bare)
    assert loaded.references == "golden"
    for one, other in zip(loaded.samples, samples.samples, strict=True):
        assert np.array_equal((one.expected or {})["y"], (other.expected or {})["y"],
                              equal_nan=(other.expected or {})["y"].dtype.kind == "f")  # fmt: skip
    assert digest in (tmp_path / "references.json").read_text()
    with pytest.raises(InputError, match="belongs to other samples"):
        load_references(path, replace(bare, samples=bare.samples[:2]))
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(InputError, match="is not the file with sha256"):
        load_references(path, bare)
    (tmp_path / "references.json").write_text("{}")
    with pytest.raises(InputError, match="does not describe kept references"):
        load_references(path, bare)
    with pytest.raises(ValueError, match="has no expected outputs"):
        save_references(path, bare)
