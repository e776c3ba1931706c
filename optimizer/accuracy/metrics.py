"""How far an output is from the expected one: every metric as a *loss*, where smaller is better and 0 is perfect.

====================  ===========================================================================================
``l0``                fraction of elements with |a − r| > atol + rtol·|r| (options ``atol``, ``rtol``, 1e-5 each)
``l1``                mean |a − r|
``l2``                mean (a − r)²
``lInf``              max |a − r|
``cos``               1 − cosine of the angle between a and r, over the whole tensor
``rel_l2``            ‖a − r‖ / ‖r‖
``psnr``              −PSNR in dB, PSNR = 10·log10(peak² / mean (a − r)²); ``peak`` defaults to the range of r;
                      a perfect match is −1000
``topK``              (``top1``, ``top5`` …) fraction of rows whose expected best class is not among the K best
``argmax``            fraction of positions whose best class differs (``axis``, −1 by default)
``exact``             fraction of rows with any element that is not equal
``sequence``          fraction of rows whose sequences differ (see :func:`sequences`)
``edit``              largest edit distance between two sequences, divided by the longer one's length
``python:F.py:NAME``  the value of your function ``NAME(actual, expected)``
====================  ===========================================================================================

The first five are those of TensorRT's trtexec, with what it misses put right: NaN and infinities never pass, equal
vectors have cos loss 0 without rounding noise, nothing overflows. A *row* is an index of the first
axis (the batch); an output of one axis is one row. Pure; NumPy and the records, SciPy where a bound is computed.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path

import numpy as np

from optimizer.accuracy.comparison import SMALLEST, Comparison, as_bytes, norm
from optimizer.errors import InputError
from optimizer.records.model import Array

Options = Mapping[str, float | str]

TRTEXEC_ATOL = 1e-5
TRTEXEC_RTOL = 1e-5
PERFECT_PSNR_DB = 1000.0
"""Stands for an infinite PSNR, which JSON cannot hold; float64 data cannot reach it otherwise within a tensor."""


class Aggregation(str, Enum):
    WORST = "worst"
    """The loss of a set is its worst sample's."""
    POOLED = "pooled"
    """The loss of a set is misses / positions over all samples; positions of one row depend on each other: no bound."""
    ROWS = "rows"
    """The loss of a set is misses / rows; rows are independent: it has an exact binomial bound."""


@dataclass(frozen=True)
class Score:
    """One metric on one sample. ``misses`` of ``units`` for counting metrics, else ``units`` is 0."""

    loss: float
    misses: int = 0
    units: int = 0


@dataclass(frozen=True)
class Metric:
    """``floor`` turns a stated floor (``>=``) into a threshold of the loss; ``None``: the metric has no such form."""

    name: str
    aggregation: Aggregation
    function: Callable[[Comparison, Options], Score]
    options: frozenset[str] = frozenset()
    text: bool = False
    """Defined for BYTES."""
    classes: bool = False
    """Needs an axis of classes."""
    floor: Callable[[float], float] | None = None


def find_metric(name: str) -> Metric:
    """Raises :class:`InputError` with the choices."""
    if name in METRICS:
        return METRICS[name]
    if match := re.fullmatch(r"top([1-9][0-9]*)", name):
        return _top_k_metric(int(match[1]))
    if match := re.fullmatch(r"python:(.+):([A-Za-z_][A-Za-z0-9_]*)", name):
        return _user_metric(match[1], match[2])
    raise InputError(
        f"no metric is called {name!r}",
        field="tolerance",
        remedy=f"choose one of {', '.join(METRICS)}, topK (top1, top5 …), python:FILE.py:FUNCTION",
    )


def measure(metric: Metric, comparison: Comparison, options: Options) -> Score:
    """Shapes must be equal. An empty output has loss 0."""
    if comparison.actual.size == 0:
        return Score(0.0)
    return metric.function(comparison, options)


# Pointwise


def _l0(comparison: Comparison, options: Options) -> Score:
    atol, rtol = float(options.get("atol", TRTEXEC_ATOL)), float(options.get("rtol", TRTEXEC_RTOL))
    if comparison.is_text:
        return Score(float(np.mean(~comparison.equal)))
    # An infinity that both have would make the limit infinite and hide nothing: the difference there is 0 anyway.
    reference = np.abs(np.nan_to_num(comparison.expected.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0))
    with np.errstate(over="ignore"):
        misses = int(np.count_nonzero(comparison.absolute > atol + rtol * reference))
    return Score(misses / comparison.actual.size)


def _cosine(comparison: Comparison, _: Options) -> Score:
    if bool(comparison.foreign_non_finite.any()):
        return Score(math.inf)
    actual, expected = comparison.finite_values
    (a_norm, a_exponent), (r_norm, r_exponent) = norm(actual), norm(expected)
    if a_norm == 0.0 or r_norm == 0.0:
        # The angle with a zero vector is undefined: equal if both are zero, unrelated (a right angle) if one is.
        return Score(0.0 if a_norm == r_norm else 1.0)
    # 1 − cos = ‖a/‖a‖ − r/‖r‖‖² / 2, which has no cancellation near 0 where 1 − cos itself is all rounding noise.
    gap = np.ldexp(actual, -a_exponent) / a_norm - np.ldexp(expected, -r_exponent) / r_norm
    return Score(min(2.0, float(np.sum(gap * gap, dtype=np.longdouble)) / 2.0))


def _relative_l2(comparison: Comparison, _: Options) -> Score:
    if comparison.largest == 0.0:
        return Score(0.0)
    if not math.isfinite(comparison.largest):
        return Score(math.inf)
    distance, exponent = norm(comparison.absolute.astype(np.float64).reshape(-1))
    size, size_exponent = norm(comparison.finite_values[1])
    if size == 0.0:
        return Score(math.inf)
    try:
        return Score(max(SMALLEST, math.ldexp(distance / size, exponent - size_exponent)))
    except OverflowError:
        return Score(math.inf)


def _psnr(comparison: Comparison, options: Options) -> Score:
    if comparison.largest == 0.0:
        return Score(-PERFECT_PSNR_DB)
    if not math.isfinite(comparison.largest):
        return Score(math.inf)
    expected = comparison.finite_values[1]
    if "peak" in options:
        peak = float(options["peak"])
    else:
        peak = float(expected.max() / 2 - expected.min() / 2) * 2 or float(np.abs(expected).max())
    if peak == 0.0 or not math.isfinite(peak):
        return Score(math.inf)
    # In logarithms from the start: peak² and the mean square may each be out of range where their quotient is not.
    distance, exponent = norm(comparison.absolute.astype(np.float64).reshape(-1))
    root = math.log10(distance) + exponent * math.log10(2.0) - math.log10(comparison.actual.size) / 2
    return Score(max(-PERFECT_PSNR_DB, 20.0 * (root - math.log10(peak))))


# Counting


def _classes_last(comparison: Comparison, options: Options) -> tuple[Array, Array, int]:
    """(actual, expected) as [positions, classes], and the number of rows that the positions belong to."""
    axis = int(options.get("axis", -1))
    if comparison.actual.ndim == 0 or not -comparison.actual.ndim <= axis < comparison.actual.ndim:
        raise InputError(
            f"axis {axis} is outside an output of shape {list(comparison.actual.shape)}",
            field="tolerance",
            remedy="name the axis of the classes: top1(axis=1)",
        )
    actual, expected = (np.moveaxis(array, axis, -1) for array in (comparison.actual, comparison.expected))
    rows = actual.shape[0] if actual.ndim > 1 and axis % comparison.actual.ndim != 0 else 1
    return actual.reshape(-1, actual.shape[-1]), expected.reshape(-1, expected.shape[-1]), rows


def best_agrees(actual: Array, expected: Array, k: int) -> Array:
    """[positions] mask: an expected best class is among the k best of ``actual`` (both [positions, classes]).

    Classes of equal value rank in index order, as a client's argmax takes the first; where several are best in
    ``expected``, each is right. A NaN ranks last, and a position whose expected values are all NaN agrees with nothing.
    """
    if k == 1 and not _has_nan(actual) and not _has_nan(expected):
        chosen = np.take_along_axis(expected, actual.argmax(axis=1)[:, None], axis=1)[:, 0]
        return np.asarray(chosen == expected.max(axis=1))
    agrees = np.zeros(len(actual), dtype=np.bool_)
    for position, (got, want) in enumerate(zip(actual, expected, strict=True)):
        usable = [index for index in range(len(want)) if want[index] == want[index]]
        if not usable:
            continue
        top = max(want[index] for index in usable)
        ranked = sorted((index for index in range(len(got)) if got[index] == got[index]), key=_descending(got))
        agrees[position] = any(want[index] == top for index in ranked[:k])
    return agrees


def _descending(values: Array) -> Callable[[int], tuple[object, int]]:
    # Python numbers: negating a NumPy unsigned integer would wrap.
    plain = values.tolist()
    return lambda index: (-plain[index], index)


def _has_nan(array: Array) -> bool:
    return array.dtype.kind == "f" and bool(np.isnan(array).any())


def _top_k_metric(k: int) -> Metric:
    def top_k(comparison: Comparison, options: Options) -> Score:
        actual, expected, rows = _classes_last(comparison, options)
        agrees = best_agrees(actual, expected, k).reshape(rows, -1).all(axis=1)
        return _counted(int(rows - agrees.sum()), rows)

    return Metric(f"top{k}", Aggregation.ROWS, top_k, frozenset({"axis"}), classes=True, floor=_complement)


def _argmax(comparison: Comparison, options: Options) -> Score:
    actual, expected, _ = _classes_last(comparison, options)
    agrees = best_agrees(actual, expected, 1)
    return _counted(int(agrees.size - agrees.sum()), int(agrees.size))


def _exact(comparison: Comparison, _: Options) -> Score:
    rows = comparison.actual.shape[0] if comparison.actual.ndim > 1 else 1
    agrees = comparison.equal.reshape(rows, -1).all(axis=1)
    return _counted(int(rows - agrees.sum()), rows)


def _counted(misses: int, units: int) -> Score:
    return Score(misses / units if units else 0.0, misses, units)


# Sequences


def sequences(array: Array, options: Options) -> list[tuple[object, ...]]:
    """The sequences that an output holds.

    BYTES: every text is a sequence of bytes. Integers: the last axis is a sequence of tokens. Floats: the last axis
    (or ``axis``) are classes, the one before is time; the best class of each step is its token. With ``blank`` (a
    class), repeated tokens are merged and blanks dropped, as CTC decoding does.
    """
    if array.dtype == np.object_:
        return [tuple(as_bytes(item)) for item in array.reshape(-1)]
    if array.dtype.kind == "f":
        axis = int(options.get("axis", -1))
        array = np.moveaxis(array, axis, -1).argmax(axis=-1)
    steps = array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)
    result: list[tuple[object, ...]] = []
    for row in steps.tolist():
        if "blank" in options:
            blank = int(options["blank"])
            row = [token for i, token in enumerate(row) if token != blank and (i == 0 or token != row[i - 1])]
        result.append(tuple(row))
    return result


def edit_distance(left: tuple[object, ...], right: tuple[object, ...]) -> int:
    """Levenshtein distance, a row of the table at a time."""
    if left == right:
        return 0
    numbers = {item: index for index, item in enumerate({*left, *right})}
    target = np.array([numbers[item] for item in right], dtype=np.int64)
    steps = np.arange(len(right) + 1)
    previous = steps.copy()
    for index, item in enumerate(left, 1):
        current = np.empty_like(previous)
        current[0] = index
        current[1:] = np.minimum(previous[1:] + 1, previous[:-1] + (target != numbers[item]))
        # Insertions: current[j] = min over i <= j of current[i] + (j − i).
        previous = np.minimum.accumulate(current - steps) + steps
    return int(previous[-1])


def _sequence(comparison: Comparison, options: Options) -> Score:
    pairs = list(zip(sequences(comparison.actual, options), sequences(comparison.expected, options), strict=True))
    return _counted(sum(a != b for a, b in pairs), len(pairs))


def _edit(comparison: Comparison, options: Options) -> Score:
    worst = 0.0
    for a, b in zip(sequences(comparison.actual, options), sequences(comparison.expected, options), strict=True):
        worst = max(worst, edit_distance(a, b) / max(len(a), len(b), 1))
    return Score(worst)


# The user's own


def _user_metric(path: str, name: str) -> Metric:
    function = _load_function(path, name)

    def call(comparison: Comparison, _: Options) -> Score:
        value = function(comparison.actual, comparison.expected)
        try:
            loss = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise InputError(
                f"returned {value!r}, not a number",
                where=path,
                field=name,
                remedy="return one number, the loss, smaller is better",
            ) from None
        return Score(math.inf if math.isnan(loss) else loss)

    return Metric(f"python:{path}:{name}", Aggregation.WORST, call, text=True)


@lru_cache(maxsize=32)
def _load_function(path: str, name: str) -> Callable[[Array, Array], object]:
    if not Path(path).is_file():
        raise InputError("no such file", where=path, field="tolerance", remedy="python:FILE.py:FUNCTION names a file")
    spec = importlib.util.spec_from_file_location(f"optimizer_user_metric_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(
            "is not a Python file", where=path, field="tolerance", remedy="name a .py file: python:FILE.py:FUNCTION"
        )
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001 - the user's file may raise anything
        raise InputError(
            f"cannot be imported: {type(error).__name__}: {error}",
            where=path,
            remedy="correct the file, or install what it imports",
        ) from None
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(
            f"has no function {name!r}",
            where=path,
            field="tolerance",
            remedy="name a function of that file: python:FILE.py:FUNCTION",
        )
    return function  # type: ignore[no-any-return]


def _complement(value: float) -> float:
    """1 − value as a decimal number: 1 − 0.9 in binary is just below the loss of one miss in ten."""
    from decimal import Decimal

    return float(1 - Decimal(repr(value)))


def _metrics() -> dict[str, Metric]:
    worst = Aggregation.WORST
    return {
        metric.name: metric
        for metric in (
            Metric("l0", worst, _l0, frozenset({"atol", "rtol"})),
            Metric("l1", worst, lambda c, _: Score(c.mean)),
            Metric("l2", worst, lambda c, _: Score(c.mean_square)),
            Metric("lInf", worst, lambda c, _: Score(c.largest)),
            Metric("cos", worst, _cosine, floor=_complement),
            Metric("rel_l2", worst, _relative_l2),
            Metric("psnr", worst, _psnr, frozenset({"peak"}), floor=lambda value: -value),
            Metric("argmax", Aggregation.POOLED, _argmax, frozenset({"axis"}), classes=True, floor=_complement),
            Metric("exact", Aggregation.ROWS, _exact, text=True, floor=_complement),
            Metric("sequence", Aggregation.ROWS, _sequence, frozenset({"axis", "blank"}), text=True, floor=_complement),
            Metric("edit", worst, _edit, frozenset({"axis", "blank"}), text=True),
        )
    }


METRICS: dict[str, Metric] = _metrics()


def upper_bound(misses: int, units: int, confidence: float = 0.95) -> float:
    """Exact one-sided upper bound on a miss rate (Clopper and Pearson, Biometrika 26, 1934): the largest rate at which
    ``misses`` or fewer of ``units`` has probability of at least 1 − confidence. 1 where there are no units."""
    if units == 0 or misses >= units:
        return 1.0
    if misses == 0:
        return -math.expm1(math.log1p(-confidence) / units)
    from scipy.stats import beta

    return float(beta.ppf(confidence, misses + 1, units - misses))


def samples_needed(floor: float, confidence: float = 0.95, misses: int = 0) -> int:
    """Fewest rows that, with ``misses`` disagreements, support an agreement of ``floor``: 299 for 0.99."""
    if not 0.0 < floor < 1.0:
        raise ValueError(f"floor {floor} is not between 0 and 1")
    low, high = misses, misses + 1
    allowed = _complement(floor)
    while upper_bound(misses, high, confidence) > allowed:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if upper_bound(misses, middle, confidence) > allowed else (low, middle)
    return high
