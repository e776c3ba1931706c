"""Scales and axes of the report's charts, as SVG. Positions are px of the chart's own coordinate system."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from optimizer.report.markup import Child, Markup, element, join
from optimizer.report.numbers import percent


@dataclass(frozen=True)
class Scale:
    """Maps ``[low, high]`` to ``[start, end]`` px, values outside to its ends; ``log`` needs positive values."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (
            (math.log(self.low), math.log(self.high), math.log(max(value, self.low)))
            if self.log
            else (self.low, self.high, value)
        )
        part = (at - low) / (high - low) if high > low else 0.5
        return round(self.start + min(1.0, max(0.0, part)) * (self.end - self.start), 1)

    @property
    def ticks(self) -> list[float]:
        return log_ticks(self.low, self.high) if self.log else nice_ticks(self.low, self.high)


def scale_of(values: Sequence[float], start: float, end: float, *, log_from: float = 8.0, zero: bool = False) -> Scale:
    """Linear with some room around ``values``; logarithmic where the largest is ``log_from`` times the smallest."""
    low, high = min(values), max(values)
    if not zero and low > 0 and high / low >= log_from:
        return Scale(low / 1.15, high * 1.15, start, end, log=True)
    room = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    return Scale(0.0 if zero else max(0.0, low - room) if low >= 0 else low - room, high + room, start, end)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten inside ``[low, high]``, about ``count`` of them."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten; only the powers where that would be more than eight."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
        if len(ticks) <= 8:
            break
    return ticks or [low, high]


def gain_scale(ratios: Sequence[float], start: float, end: float, *, shown: Sequence[float] = (1.0,)) -> Scale:
    """For ratios: logarithmic, so that a halving is as far from 1 as a doubling; ``shown`` are always inside."""
    every = [*ratios, *shown]
    low, high = min(every), max(every)
    room = max((high / low) ** 0.06, 1.002)
    return Scale(low / room, high * room, start, end, log=True)


def gain_ticks(scale: Scale, count: int = 6) -> list[float]:
    """Ratios at round percentages, or at round factors where the range is wide."""
    if scale.high / scale.low > 4:
        steps = [0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000]
        return [step for step in steps if scale.low <= step <= scale.high]
    return [1 + tick for tick in nice_ticks(scale.low - 1, scale.high - 1, count)]


def gain_text(ratio: float) -> str:
    if ratio >= 3 or ratio <= 1 / 3:
        return f"×{ratio:.3g}"
    return percent(ratio).replace(".0%", "%").replace("+0%", "0%")


def text(x: float, y: float, content: str, class_: str = "", anchor: str = "start") -> Markup:
    return element("text", content, x=x, y=y, class_=class_ or None, text_anchor=None if anchor == "start" else anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def x_axis(
    scale: Scale, ticks: Sequence[float], top: float, bottom: float, title: str, name: Callable[[float], str]
) -> Markup:
    """Grid lines from ``top`` to ``bottom``, tick texts below, the title under them."""
    marks: list[Child] = []
    last = -math.inf
    for tick in ticks:
        x = scale(tick)
        marks.append(line(x, top, x, bottom, "grid"))
        label = name(tick)
        if x - last >= 7 * len(label) + 8:
            # A text at the very edge would be cut off.
            marks.append(text(x, bottom + 17, label, "tick", "middle"))
            last = x
    middle = (scale.start + scale.end) / 2
    return join([*marks, text(middle, bottom + 36, title, "axis", "middle")])


def y_axis(scale: Scale, ticks: Sequence[float], left: float, right: float, name: Callable[[float], str]) -> Markup:
    """Grid lines from ``left`` to ``right``, tick texts at the left."""
    marks: list[Child] = []
    for tick in ticks:
        y = scale(tick)
        marks += [line(left, y, right, y, "grid"), text(left - 8, y + 4, name(tick), "tick", "end")]
    return join(marks)


class Shape(NamedTuple):
    """An SVG element that is not written yet."""

    tag: str
    attributes: Mapping[str, float | str]


def drawn(shape: Shape) -> Markup:
    return element(shape.tag, **shape.attributes)


def point(shape: Shape, says: str, class_: str) -> Markup:
    """A mark that tells ``says`` on hover, by the keyboard, and (as its title) without a script."""
    return element(shape.tag, element("title", says), class_=f"p {class_}", **shape.attributes)


def bar(x: float, y: float, width: float, height: float) -> Shape:
    return Shape("rect", {"x": x, "y": y, "width": round(max(0.0, width), 1), "height": height})


def circle(x: float, y: float, radius: float) -> Shape:
    return Shape("circle", {"cx": x, "cy": y, "r": radius})


def square(x: float, y: float, half: float) -> Shape:
    return bar(round(x - half, 1), round(y - half, 1), 2 * half, 2 * half)


def diamond(x: float, y: float, half: float) -> Shape:
    return _path([(x, y - half), (x + half, y), (x, y + half), (x - half, y)])


def star(x: float, y: float, radius: float) -> Shape:
    corners = []
    for index in range(10):
        reach, angle = radius if index % 2 == 0 else radius * 0.45, math.pi * (index / 5 - 0.5)
        corners.append((x + reach * math.cos(angle), y + reach * math.sin(angle)))
    return _path(corners)


def cross(x: float, y: float, half: float) -> Shape:
    side = 2 * half
    return Shape("path", {"d": f"M{x - half:.1f} {y - half:.1f}l{side:g} {side:g}m0 {-side:g}l{-side:g} {side:g}"})


def _path(corners: Sequence[tuple[float, float]]) -> Shape:
    return Shape("path", {"d": "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners) + "Z"})


def shorten(label: str, width: float, per_character: float = 7.3) -> str:
    """As much of a text as fits; the whole of it stands in the table and in the tip."""
    fits = max(4, int(width / per_character))
    return label if len(label) <= fits else label[: fits - 1] + "…"


def chart(width: float, height: float, label: str, *children: Child) -> Markup:
    """One stop for the keyboard; arrow keys walk over its points."""
    return element(
        "svg",
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        class_="chart",
        role="group",
        tabindex="0",
        aria_label=label,
    )
