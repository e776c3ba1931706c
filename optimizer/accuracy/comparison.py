"""Two arrays of one output, element by element: exact differences for every data type that Triton serves.

Floats are subtracted in float64, which holds every FP16, BF16 and FP32 value; integers and booleans in uint64, where
the difference of any two 64-bit integers is exact; BYTES are equal or not. Pure; NumPy and the records only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from optimizer.records.model import Array

SMALLEST = math.nextafter(0.0, 1.0)


@dataclass(frozen=True)
class Comparison:
    """``actual`` and ``expected`` have equal shapes; kinds (float, integer, text) are equal too.

    A NaN, or an infinity of equal sign, at the same place in both is equal. Any other value that is not finite in one
    of them is an infinite difference.
    """

    actual: Array
    expected: Array

    @property
    def is_text(self) -> bool:
        return bool(self.actual.dtype == np.object_ or self.expected.dtype == np.object_)

    @property
    def is_integer(self) -> bool:
        return self.actual.dtype.kind in "biu" and self.expected.dtype.kind in "biu"

    @cached_property
    def same_non_finite(self) -> Array:
        """Mask of places where both are NaN, or infinite with the same sign."""
        if self.is_integer or self.is_text:
            return np.zeros(self.actual.shape, dtype=np.bool_)
        both_nan = np.isnan(self.actual) & np.isnan(self.expected)
        return np.asarray(both_nan | (np.isinf(self.actual) & (self.actual == self.expected)))

    @cached_property
    def foreign_non_finite(self) -> Array:
        """Mask of places where one is NaN or infinite and the other is not the same."""
        if self.is_integer or self.is_text:
            return np.zeros(self.actual.shape, dtype=np.bool_)
        finite = np.isfinite(self.actual) & np.isfinite(self.expected)
        return np.asarray(~finite & ~self.same_non_finite)

    @cached_property
    def absolute(self) -> Array:
        """|actual − expected|: uint64 for integers, float64 for floats (0 and inf for what is not finite)."""
        if self.is_text:
            return np.asarray(~self.equal, dtype=np.uint64)
        if self.is_integer:
            return _integer_distance(self.actual, self.expected)
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.abs(self.actual.astype(np.float64) - self.expected.astype(np.float64))
        distance = np.where(self.same_non_finite, 0.0, distance)
        return np.asarray(np.where(self.foreign_non_finite, np.inf, distance))

    @cached_property
    def equal(self) -> Array:
        """Mask of equal elements."""
        if self.is_text:
            pairs = zip(self.actual.reshape(-1), self.expected.reshape(-1), strict=True)
            return np.fromiter((as_bytes(a) == as_bytes(b) for a, b in pairs), np.bool_, self.actual.size).reshape(
                self.actual.shape
            )
        return np.asarray(self.absolute == 0)

    @cached_property
    def largest(self) -> float:
        """Largest difference, rounded up where float64 cannot hold it, so that it never passes by rounding."""
        return _up(self.absolute.max()) if self.absolute.size else 0.0

    @cached_property
    def mean(self) -> float:
        """Mean difference; not 0 unless all are equal."""
        if not self.absolute.size:
            return 0.0
        if self.absolute.dtype == np.uint64:
            return float(Fraction(_exact_sum(self.absolute), self.absolute.size))
        if not math.isfinite(self.largest):
            return math.inf
        if self.largest == 0.0:
            return 0.0
        # Scaled by a power of two, which is exact: a sum of huge FP64 values must not overflow.
        exponent = math.frexp(self.largest)[1]
        total = np.sum(np.ldexp(self.absolute, -exponent), dtype=np.longdouble)
        return _unscaled(total / self.absolute.size, exponent)

    @cached_property
    def mean_square(self) -> float:
        """Mean squared difference; not 0 unless all are equal; ``inf`` where float64 cannot hold it."""
        if not self.absolute.size or self.largest == 0.0:
            return 0.0
        if not math.isfinite(self.largest):
            return math.inf
        exponent = math.frexp(self.largest)[1]
        scaled = np.ldexp(self.absolute.astype(np.float64), -exponent)
        total = np.sum(scaled * scaled, dtype=np.longdouble)
        return _unscaled(total / self.absolute.size, 2 * exponent)

    @cached_property
    def finite_values(self) -> tuple[Array, Array]:
        """(actual, expected) as flat float64 with 0 at the places where both are the same NaN or infinity."""
        mask = self.same_non_finite.reshape(-1)
        actual = np.where(mask, 0.0, self.actual.astype(np.float64).reshape(-1))
        expected = np.where(mask, 0.0, self.expected.astype(np.float64).reshape(-1))
        return actual, expected


def as_bytes(item: object) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode()


def norm(values: Array) -> tuple[float, int]:
    """Euclidean norm as (mantissa, exponent of two), free of overflow and underflow. ``values`` finite, float64."""
    peak = float(np.max(np.abs(values), initial=0.0))
    if peak == 0.0:
        return 0.0, 0
    exponent = math.frexp(peak)[1]
    scaled = np.ldexp(values, -exponent)
    return math.sqrt(float(np.sum(scaled * scaled, dtype=np.longdouble))), exponent


def _integer_distance(actual: Array, expected: Array) -> Array:
    if actual.dtype.kind == "i" or expected.dtype.kind == "i":
        a, b = actual.astype(np.int64), expected.astype(np.int64)
    else:
        a, b = actual.astype(np.uint64), expected.astype(np.uint64)
    larger = a >= b
    # Modulo 2^64 the difference of the bit patterns is the difference of the values, signed or not.
    a_bits, b_bits = a.view(np.uint64), b.view(np.uint64)
    return np.where(larger, a_bits - b_bits, b_bits - a_bits)


def _exact_sum(values: Array) -> int:
    low = int(np.sum(values & np.uint64(0xFFFFFFFF), dtype=np.uint64))
    high = int(np.sum(values >> np.uint64(32), dtype=np.uint64))
    return (high << 32) + low


def _up(value: np.generic) -> float:
    item = value.item()
    rounded = float(item)
    return rounded if isinstance(item, float) or int(rounded) >= item else math.nextafter(rounded, math.inf)


def _unscaled(value: np.longdouble, exponent: int) -> float:
    try:
        result = math.ldexp(float(value), exponent)
    except OverflowError:
        return math.inf
    return max(result, SMALLEST)
