"""The marks of candidates in charts, and what they mean.

Roles are told by shape and by colour: Okabe and Ito's palette, which people with any colour vision can tell apart. The
colours themselves are in ``page.css``.
"""

from __future__ import annotations

from collections.abc import Iterable

from optimizer.report import findings
from optimizer.report.axes import (
    Shape,
    circle,
    cross,
    diamond,
    drawn,
    square,
    star,
)
from optimizer.report.findings import Row
from optimizer.report.markup import Markup, element
from optimizer.report.numbers import interval, milliseconds, percent, rate

ORDER = ("rejected", "candidate", "finalist", "default route", "as found", "winner")
"""The last is drawn on top."""


def mark(role: str, x: float, y: float, scale: float = 1.0) -> Shape:
    if role == "as found":
        return square(x, y, 5 * scale)
    if role == "default route":
        return diamond(x, y, 6.5 * scale)
    if role == "winner":
        return star(x, y, 9 * scale)
    if role == "rejected":
        return cross(x, y, 3.5 * scale)
    return circle(x, y, (5 if role == "finalist" else 3.5) * scale)


def class_of(role: str) -> str:
    return role.replace(" ", "-")


def describe(row: Row, shown: findings.Latency) -> str:
    parts = [row["label"], findings.role(row)]
    if row["throughput"]:
        parts.append(f"{rate(row['throughput'])} inferences/s, {shown.name} {milliseconds(shown.of(row))} ms")
    gain = findings.confirmed_gain(row)
    if gain:
        parts.append(f"confirmed {interval(gain)}")
    elif row["race_ratio"] is not None:
        parts.append(f"race {percent(row['race_ratio'])}, no result")
    if row["state"] == "rejected":
        parts.append(f"{row['rejected_at']}: {row['code']}")
    return "\n".join(parts)


def plain(value: float) -> str:
    return f"{value:,.10g}" if value < 1e5 else f"{value / 1e3:,.6g}k"


def key_of_roles(rows: Iterable[Row]) -> Markup:
    """What the shapes of ``rows`` mean, as HTML beside a chart."""
    present = {findings.role(row) for row in rows}
    items = []
    for role in (role for role in reversed(ORDER) if role in present):
        shape = mark(role, 9, 9, 0.9)
        icon = element("svg", drawn(shape), viewBox="0 0 18 18", class_=f"p {class_of(role)}", aria_hidden="true")
        items.append(element("span", icon, role, class_="key"))
    return element("p", *items, class_="keys")


def key_of_phases() -> Markup:
    items = [
        element("span", element("span", class_=f"swatch {class_of(name)}", aria_hidden="true"), name, class_="key")
        for name in findings.PHASE_NAMES
    ]
    return element("p", *items, class_="keys")
