"""Metrics against an independent implementation in exact fractions, on random and adversarial arrays."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from optimizer.accuracy.comparison import Comparison
from optimizer.accuracy.metrics import (
    PERFECT_PSNR_DB,
    best_agrees,
    edit_distance,
    find_metric,
    measure,
    samples_needed,
    sequences,
    upper_bound,
)
from optimizer.errors import InputError

NUMERIC = ["<f2", "<f4", "<f8", "<i1", "<i2", "<i4", "<i8", "<u1", "<u2", "<u4", "<u8", "?"]


def loss(name: str, actual: Any, expected: Any, **options: float | str) -> float:
    return measure(find_metric(name), Comparison(np.asarray(actual), np.asarray(expected)), options).loss


def exact_values(array: np.ndarray[Any, Any]) -> list[Fraction]:
    return [
        Fraction(value) if isinstance(value, float) else Fraction(int(value)) for value in array.reshape(-1).tolist()
    ]


@st.composite
def pairs(draw: st.DrawFn, finite: bool = True) -> tuple[Any, Any]:
    dtype = np.dtype(draw(st.sampled_from(NUMERIC)))
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5))
    elements: Any = None
    if dtype.kind == "f":
        elements = hnp.from_dtype(dtype, allow_nan=not finite, allow_infinity=not finite)
    first = draw(hnp.arrays(dtype, shape, elements=elements))
    # A near pair is the usual case, an unrelated one the adversarial one.
    if draw(st.booleans()):
        return first, draw(hnp.arrays(dtype, shape, elements=elements))
    second = first.copy()
    flat = second.reshape(-1)
    flat[draw(st.integers(0, flat.size - 1))] = draw(hnp.arrays(dtype, (), elements=elements))[()]
    return first, second


def close(value: float, exact: Fraction, relative: float = 1e-12) -> bool:
    try:
        reference = float(exact)
    except OverflowError:
        return value == math.inf or value > sys.float_info.max * 0.999
    if exact > 0 and reference < sys.float_info.min:
        return 0.0 < value <= sys.float_info.min * 2
    return value == pytest.approx(reference, rel=relative, abs=0.0)


@given(pairs())
def test_pointwise_metrics_equal_exact_fractions(pair: tuple[Any, Any]) -> None:
    actual, expected = pair
    differences = [abs(a - r) for a, r in zip(exact_values(actual), exact_values(expected), strict=True)]
    count = len(differences)
    largest = max(differences)
    if largest < Fraction(sys.float_info.max):
        assert close(loss("lInf", actual, expected), largest)
        assert close(loss("l1", actual, expected), sum(differences, Fraction(0)) / count)
        assert close(loss("l2", actual, expected), sum((d * d for d in differences), Fraction(0)) / count)
    else:
        assert loss("lInf", actual, expected) >= sys.float_info.max


@given(pairs())
def test_a_loss_is_zero_only_for_equal_arrays_and_never_negative(pair: tuple[Any, Any]) -> None:
    actual, expected = pair
    equal = exact_values(actual) == exact_values(expected)
    for name in ("l1", "l2", "lInf", "rel_l2", "exact"):
        assert (loss(name, actual, expected) == 0.0) is equal, name
    assert 0.0 <= loss("cos", actual, expected) <= 2.0
    assert 0.0 <= loss("l0", actual, expected) <= 1.0


@given(pairs(finite=False))
def test_foreign_nan_and_infinity_never_pass(pair: tuple[Any, Any]) -> None:
    actual, expected = pair
    foreign = False
    for a, r in zip(actual.reshape(-1).tolist(), expected.reshape(-1).tolist(), strict=True):
        if isinstance(a, float) and not (math.isfinite(a) and math.isfinite(r)):
            foreign |= not ((math.isnan(a) and math.isnan(r)) or a == r)
    assert bool(Comparison(actual, expected).foreign_non_finite.any()) is foreign
    if foreign:
        for name in ("l1", "l2", "lInf", "cos", "rel_l2", "psnr"):
            assert loss(name, actual, expected) == math.inf, name
        assert loss("l0", actual, expected) > 0.0
        assert loss("exact", actual, expected) > 0.0


@given(pairs())
def test_cosine_and_relative_l2_equal_exact_fractions(pair: tuple[Any, Any]) -> None:
    actual, expected = pair
    a, r = exact_values(actual), exact_values(expected)
    aa, rr = sum((v * v for v in a), Fraction(0)), sum((v * v for v in r), Fraction(0))
    if aa == 0 or rr == 0:
        assert loss("cos", actual, expected) == (0.0 if aa == rr else 1.0)
        assert loss("rel_l2", actual, expected) == (0.0 if a == r else math.inf if rr == 0 else 1.0)
        return
    # cos² is rational; the angle follows from its square root to 40 digits.
    dot = sum((x * y for x, y in zip(a, r, strict=True)), Fraction(0))
    scale = 10**40
    root = Fraction(math.isqrt(int(dot * dot * scale * scale / (aa * rr))), scale)
    exact = float(1 - root if dot >= 0 else 1 + root)
    assert loss("cos", actual, expected) == pytest.approx(exact, rel=1e-9, abs=1e-15)
    squared = sum(((x - y) ** 2 for x, y in zip(a, r, strict=True)), Fraction(0)) / rr
    measured = loss("rel_l2", actual, expected)
    if squared and math.isfinite(Comparison(actual, expected).largest) and 1e-300 < measured < 1e300:
        assert float(Fraction(measured) ** 2 / squared) == pytest.approx(1.0, rel=1e-9)


def test_cosine_has_no_noise_where_one_minus_cosine_has() -> None:
    values = np.full(1000, 0.1, np.float32)
    assert loss("cos", values, values) == 0.0
    assert loss("cos", values, -values) == pytest.approx(2.0, rel=1e-14)
    nudged = np.array([1.0, 1e-6])
    assert loss("cos", nudged, np.array([1.0, 0.0])) == pytest.approx(5e-13, rel=1e-6)
    assert loss("cos", np.array([1e-200, 0.0]), np.array([1e200, 0.0])) == 0.0


def test_64_bit_integers_differ_where_float64_rounds_them_together() -> None:
    big = np.array([2**63 - 1], np.int64)
    assert loss("lInf", big, big - 1) == 1.0
    assert loss("lInf", np.array([-(2**63)]), big) >= 2**64 - 1
    assert loss("l1", np.array([2**64 - 1, 0], np.uint64), np.array([0, 2**64 - 1], np.uint64)) == float(2**64 - 1)
    assert loss("exact", np.array([2**53 + 1]), np.array([2**53])) == 1.0


def test_l0_counts_what_trtexec_counts() -> None:
    expected = np.array([1.0, 1.0, 0.0, 0.0])
    # The limit is 1e-5 + 1e-5·|r|: 2e-5 around 1, 1e-5 around 0.
    actual = np.array([1.0 + 1.9e-5, 1.0 + 2.1e-5, 0.9e-5, 1.1e-5])
    assert loss("l0", actual, expected) == 0.5
    assert loss("l0", actual, expected, atol=1e-4) == 0.0
    assert loss("l0", np.array([np.nan, 1.0]), np.array([0.0, 1.0])) == 0.5


def test_psnr_by_hand() -> None:
    expected = np.array([0.0, 1.0, 0.5, 0.5])
    assert loss("psnr", expected + 0.01, expected) == pytest.approx(-40.0)
    assert loss("psnr", expected + 0.01, expected, peak=255) == pytest.approx(-20 * math.log10(255 / 0.01))
    assert loss("psnr", expected, expected) == -PERFECT_PSNR_DB
    assert loss("psnr", np.array([1e300, 0.0]), np.array([0.0, 1e-300])) > 0.0


def test_same_nan_and_infinity_are_equal() -> None:
    both = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    for name in ("l0", "l1", "l2", "lInf", "cos", "rel_l2", "exact"):
        assert loss(name, both, both.copy()) == 0.0, name
    assert loss("lInf", np.array([np.inf]), np.array([-np.inf])) == math.inf


def test_scalars_and_empty_outputs() -> None:
    assert loss("lInf", np.float32(2.0), np.float32(1.5)) == 0.5
    assert loss("exact", np.int32(2), np.int32(3)) == 1.0
    for name in ("l0", "l1", "l2", "lInf", "cos", "rel_l2", "psnr", "exact", "top1", "argmax", "edit"):
        assert loss(name, np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32)) == 0.0, name


def test_texts_are_equal_or_not() -> None:
    left = np.array([[b"cat"], [b"dog"]], dtype=object)
    right = np.array([["cat"], [b"dot"]], dtype=object)
    assert loss("exact", left, right) == 0.5
    assert loss("edit", left, right) == pytest.approx(1 / 3)
    assert loss("sequence", left, right) == 0.5


# Classes


@given(
    hnp.arrays(np.int8, (4, 5), elements=st.integers(-3, 3)),
    hnp.arrays(np.int8, (4, 5), elements=st.integers(-3, 3)),
    st.integers(1, 5),
)
def test_top_k_equals_its_definition_with_ties(actual: Any, expected: Any, k: int) -> None:
    wanted = []
    for got, want in zip(actual.tolist(), expected.tolist(), strict=True):
        ranking = sorted(range(5), key=lambda i, got=got: (-got[i], i))
        wanted.append(any(want[i] == max(want) for i in ranking[:k]))
    assert best_agrees(actual.astype(np.float32), expected.astype(np.float32), k).tolist() == wanted
    assert best_agrees(actual, expected, k).tolist() == wanted
    assert loss(f"top{k}", actual, expected) == wanted.count(False) / 4


def test_a_constant_output_does_not_agree_with_everything() -> None:
    expected = np.eye(4, dtype=np.float32)
    assert loss("top1", np.zeros((4, 4), np.float32), expected) == 0.75


def test_nan_ranks_last() -> None:
    actual = np.array([[np.nan, 0.1, 0.2]], np.float32)
    assert loss("top1", actual, np.array([[0.0, 0.1, 0.9]], np.float32)) == 0.0
    assert loss("top1", actual, np.array([[0.9, 0.1, 0.2]], np.float32)) == 1.0
    assert loss("top1", np.full((1, 3), np.nan), np.array([[0.9, 0.1, 0.2]])) == 1.0


def test_a_row_agrees_when_all_its_positions_do() -> None:
    # Two rows of a segmentation: [batch, classes, pixels].
    expected = np.zeros((2, 3, 4), np.float32)
    expected[:, 1, :] = 1.0
    actual = expected.copy()
    actual[1, 2, 3] = 2.0
    score = measure(find_metric("top1"), Comparison(actual, expected), {"axis": 1})
    assert (score.misses, score.units) == (1, 2)
    positions = measure(find_metric("argmax"), Comparison(actual, expected), {"axis": 1})
    assert (positions.misses, positions.units) == (1, 8)


def test_an_axis_outside_the_output_is_the_users_mistake() -> None:
    with pytest.raises(InputError, match="axis 2 is outside"):
        loss("top1", np.zeros((2, 3)), np.zeros((2, 3)), axis=2)


# Sequences


def levenshtein(left: str, right: str) -> int:
    if not left or not right:
        return len(left) + len(right)
    return min(
        levenshtein(left[1:], right) + 1,
        levenshtein(left, right[1:]) + 1,
        levenshtein(left[1:], right[1:]) + (left[0] != right[0]),
    )


@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_edit_distance_equals_its_recursive_definition(left: str, right: str) -> None:
    assert edit_distance(tuple(left), tuple(right)) == levenshtein(left, right)


def test_classes_decode_to_tokens_with_and_without_blanks() -> None:
    steps = np.eye(3, dtype=np.float32)[[[0, 1, 1, 0, 1, 2]]]
    assert sequences(steps, {}) == [(0, 1, 1, 0, 1, 2)]
    assert sequences(steps, {"blank": 0}) == [(1, 1, 2)]
    assert sequences(np.array([[5, 6], [7, 8]]), {}) == [(5, 6), (7, 8)]


# The user's own


def test_a_python_function_is_a_metric(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "def half(actual, expected):\n    return abs(actual - expected).max() / 2\n"
        "def nan(actual, expected):\n    return float('nan')\n"
        "def text(actual, expected):\n    return 'much'\n"
    )
    assert loss(f"python:{path}:half", np.array([3.0]), np.array([1.0])) == 1.0
    assert loss(f"python:{path}:nan", np.array([3.0]), np.array([1.0])) == math.inf
    with pytest.raises(InputError, match="returned 'much', not a number"):
        loss(f"python:{path}:text", np.array([3.0]), np.array([1.0]))
    with pytest.raises(InputError, match="has no function 'absent'"):
        find_metric(f"python:{path}:absent")
    with pytest.raises(InputError, match="no such file"):
        find_metric("python:/nowhere.py:f")
    (tmp_path / "broken.py").write_text("def f(:\n")
    with pytest.raises(InputError, match="cannot be imported: SyntaxError"):
        find_metric(f"python:{tmp_path / 'broken.py'}:f")


def test_an_unknown_metric_names_the_choices() -> None:
    with pytest.raises(InputError, match=r"(?s)no metric is called 'linf'.*lInf.*topK"):
        find_metric("linf")


# Bounds


@pytest.mark.parametrize(("floor", "needed"), [(0.99, 299), (0.995, 598), (0.999, 2995)])
def test_samples_that_a_floor_needs(floor: float, needed: int) -> None:
    assert samples_needed(floor) == needed
    assert upper_bound(0, needed) <= 1 - floor < upper_bound(0, needed - 1)


@given(st.integers(1, 40), st.data())
def test_the_bound_is_clopper_and_pearsons(units: int, data: st.DataObject) -> None:
    misses = data.draw(st.integers(0, units - 1))
    bound = upper_bound(misses, units)
    # At the bound, seeing this few misses or fewer has probability 5%: summed exactly from its definition.
    rate = Fraction(bound)
    probability = sum(math.comb(units, k) * rate**k * (1 - rate) ** (units - k) for k in range(misses + 1))
    assert float(probability) == pytest.approx(0.05, rel=1e-6)


def test_the_bound_without_evidence_is_one() -> None:
    assert upper_bound(0, 0) == 1.0
    assert upper_bound(5, 5) == 1.0
