"""Numbers as people read them: units and a sensible number of digits. What is unknown is never shown as zero."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

UNKNOWN = "unknown"


def number(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def rate(value: float | None) -> str:
    """A throughput: three significant digits, whole numbers from 100 on."""
    if value is None:
        return UNKNOWN
    return f"{value:,.{max(0, 2 - _magnitude(value))}f}" if value else "0"


def milliseconds(value_us: float | None) -> str:
    """Of a percentile in µs, which is missing where too few samples support it."""
    return "too few" if value_us is None else f"{value_us / 1e3:,.2f}"


def megabytes(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return "<0.1" if 0 < value < 5e4 else f"{value / 1e6:,.1f}"


def percent(ratio: float) -> str:
    """A ratio as a change: 1.034 is ``+3.4%``. Beyond a tripling as a factor, which is easier to take in."""
    if ratio >= 3:
        return f"×{ratio:.3g}"
    # Adding zero makes +0.0 of a rounded -0.0.
    return f"{round((ratio - 1) * 100, 1) + 0.0:+.1f}%"


def interval(value: Mapping[str, Any] | None) -> str:
    """``+12.0% (+10.1% to +13.9%)``; ``""`` where there is none."""
    if not value:
        return ""
    return f"{percent(value['ratio'])} ({percent(value['lower'])} to {percent(value['upper'])})"


def loss(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3g}"


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value)))
