"""Charts of the candidates: trade-off, race, knobs, accuracy.

Each takes the document and a width in px and gives an SVG, or ``None`` where there is nothing to draw. They stand above
tables with the same numbers. Gains are on logarithmic axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from optimizer.report import findings
from optimizer.report.axes import (
    Scale,
    chart,
    circle,
    gain_scale,
    gain_text,
    gain_ticks,
    line,
    point,
    scale_of,
    shorten,
    text,
    x_axis,
    y_axis,
)
from optimizer.report.findings import Document, Row
from optimizer.report.marks import ORDER, class_of, describe, mark, plain
from optimizer.report.markup import Child, Markup, element
from optimizer.report.numbers import loss, percent


def tradeoff(document: Document, width: float) -> Markup | None:
    """Throughput against latency, one mark a candidate."""
    shown = findings.latency(document)
    rows = [row for row in findings.measured(document) if shown.of(row)]
    if not rows:
        return None
    height = 440.0 if width > 500 else 380.0
    left, right, top, bottom = 62.0, width - 14, 34.0, height - 48
    x = scale_of([row["throughput"] for row in rows], left, right, log_from=30)
    latencies_ms = [(shown.of(row) or 0) / 1e3 for row in rows]
    y = scale_of(latencies_ms, bottom, top)
    places = [
        (row, findings.role(row), x(row["throughput"]), y(value)) for row, value in zip(rows, latencies_ms, strict=True)
    ]
    places.sort(key=lambda place: ORDER.index(place[1]))
    marks = [point(mark(role, px, py), describe(row, shown), class_of(role)) for row, role, px, py in places]
    unit = f"{shown.name}, ms{' (log)' if y.log else ''}"
    return chart(
        width,
        height,
        f"Throughput against {shown.name} of {len(rows)} candidates",
        y_axis(y, y.ticks, left, right, plain),
        x_axis(x, x.ticks, top, bottom, f"throughput, inferences/s{' (log)' if x.log else ''}", plain),
        text(left - 52, 14, unit, "axis"),
        text(right, 14, "better: down and to the right ↘", "hint", "end") if width > 500 else None,
        *marks,
        *_direct_labels(document, places, left, right, top, bottom),
    )


Place: TypeAlias = "tuple[Row, str, float, float]"
"""A candidate, its role, and where its mark is."""


def _direct_labels(
    document: Document, places: Sequence[Place], left: float, right: float, top: float, bottom: float
) -> list[Markup]:
    """Names beside what is there, the default and the winner; moved apart where they would lie over each other."""
    names = {row["id"]: title for title, row in findings.compared(document)}
    named = sorted((place for place in places if place[0]["id"] in names), key=lambda place: place[3])
    labels, taken = [], top - 10.0
    for row, _, px, py in named:
        baseline = min(max(py + 4, taken + 15), bottom - 4)
        taken = baseline
        before = px > (left + right) / 2
        space = px - left if before else right - px
        name = shorten(names[row["id"]], space - 14)
        labels.append(text(px - 13 if before else px + 13, baseline, name, "direct", "end" if before else "start"))
    return labels


def race(document: Document, width: float) -> Markup | None:
    """Every candidate's mean gain after each round; lines follow those that went on."""
    rounds = findings.rounds(document)
    ratios = [turn.ratio for turns in rounds for turn in turns if turn.ratio]
    if not ratios:
        return None
    height = 360.0
    left, right, top, bottom = 62.0, width - 14, 30.0, height - 54
    ordered = sorted(ratios)
    # A few hopeless ones must not squeeze the others together: they are drawn at the edge.
    low = ordered[min(len(ordered) - 1, len(ordered) // 50)]
    y = gain_scale([low, ordered[-1]], bottom, top)
    rows = {row["id"]: row for row in document["candidates"]}
    column = (right - left) / len(rounds)
    marks: list[Child] = []
    lines: list[Child] = []
    places: dict[str, tuple[float, float]] = {}
    for position, turns in enumerate(rounds):
        center = left + column * (position + 0.5)
        spread = min(column * 0.4, 14.0 * len(turns))
        for index, turn in enumerate(turns):
            if turn.ratio is None:
                continue
            # Side by side in the order of measuring, so that the marks of a thousand do not hide each other.
            px = center + spread * (2 * (index + 0.5) / len(turns) - 1)
            py = y(turn.ratio)
            row = rows[turn.candidate_id]
            role = findings.role(row)
            if turn.candidate_id in places:
                before = places[turn.candidate_id]
                lines.append(line(before[0], before[1], round(px, 1), py, f"track {class_of(role)}"))
            places[turn.candidate_id] = (round(px, 1), py)
            says = f"{row['label']}\nround {position + 1}: {percent(turn.ratio)} so far, which is no result\n{role}"
            marks.append(point(mark(role, round(px, 1), py, 0.8), says, class_of(role)))
        pairs = sum(turn.pairs for turn in turns)
        name = f"round {position + 1}" if column > 60 else str(position + 1)
        marks.append(text(center, bottom + 18, name, "tick", "middle"))
        told = f"{len(turns):,} candidates, {pairs:,} pairs"
        if column <= 170:
            told = f"{len(turns):,} × {pairs / len(turns):.2g}"
        if column > 90:
            marks.append(text(center, bottom + 34, told, "hint", "middle"))
    for candidate, (px, py) in places.items():
        if findings.role(rows[candidate]) == "winner":
            marks.append(text(px, py - 12, "winner", "direct", "middle"))
    return chart(
        width, height, f"The race in {len(rounds)} rounds",
        text(left - 52, 14, "mean gain over the reference so far", "axis"),
        y_axis(y, gain_ticks(y), left, right, gain_text), line(left, y(1.0), right, y(1.0), "zero"), *lines, *marks,
        None if column > 90 else text((left + right) / 2, bottom + 36, "round", "axis", "middle"),
    )  # fmt: skip


MOST_KNOB_ROWS = 30


def knobs(document: Document, width: float) -> Markup | None:
    """Mean race gain of the candidates with each value, the knobs that matter most first."""
    rows: list[tuple[str, findings.KnobValue | None]] = []
    for knob, values in findings.knob_gains(document):
        if len(rows) + len(values) + 1 > MOST_KNOB_ROWS and rows:
            break
        rows.append((knob, None))
        rows += [(knob, value) for value in values[:MOST_KNOB_ROWS]]
    values = [value for _, value in rows if value is not None]
    if not values:
        return None
    step, top = 22.0, 6.0
    left, right = (230.0 if width > 500 else 150.0), width - 62
    bottom = top + step * len(rows)
    x = gain_scale([value.ratio for value in values], left, right)
    marks: list[Child] = []
    for position, (knob, value) in enumerate(rows):
        y = top + position * step + 15
        if value is None:
            marks.append(text(4, y, shorten(knob, width - 8), "direct"))
            continue
        px = x(value.ratio)
        told = f"{value.value} ({value.candidates:,})"
        marks.append(text(16, y, shorten(told, left - 26), "tick"))
        marks.append(line(x(1.0), y - 4, px, y - 4, "stem"))
        says = f"{knob}={value.value}\nmean race gain {percent(value.ratio)} over {value.candidates:,} candidates"
        marks.append(point(circle(px, y - 4, 4.5), says, "value"))
        marks.append(text(width - 4, y, percent(value.ratio), "tick", "end"))
    return chart(
        width, bottom + 44, "Gain per knob in the race",
        x_axis(x, gain_ticks(x, 6 if width > 500 else 3), top + step, bottom, "mean gain in the race", gain_text),
        line(x(1.0), top + step, x(1.0), bottom, "zero"), *marks,
    )  # fmt: skip


_LEAST_EXCESS, _MOST_EXCESS = 1e-4, 1e2
MANY_MARKS = 30


def accuracy(document: Document, width: float) -> Markup | None:
    """Loss as a part of its tolerance, one row an output and metric, one mark a candidate and sample set."""
    found: dict[str, list[tuple[Row, Mapping[str, Any], Mapping[str, Any]]]] = {}
    for row in document["candidates"]:
        for parity in findings.judged_parities(row):
            for output in parity["outputs"]:
                if output["threshold"] is not None:
                    name = f"{output['output']}: {output['metric']} ≤ {loss(output['threshold'])}"
                    found.setdefault(name, []).append((row, parity, output))
    if not found:
        return None
    step, top, left, right = 52.0, 30.0, 34.0, width - 22
    bottom = top + step * len(found)
    x = Scale(_LEAST_EXCESS, _MOST_EXCESS, left, right, log=True)
    marks: list[Child] = []
    for position, (name, judged) in enumerate(found.items()):
        y = top + position * step
        marks.append(text(left, y + 14, shorten(name, right - left), "direct"))
        judged.sort(key=lambda one: ORDER.index(findings.role(one[0])))
        for index, (row, parity, output) in enumerate(judged):
            told = f"{output['metric']} loss {loss(output['loss'])} on {parity['sample_set']}"
            says = f"{row['label']}\n{told}, tolerance {loss(output['threshold'])}"
            role = findings.role(row)
            # Many at one place are spread a little, so that their number can be seen.
            beside = (
                (index * 7 % 15 - 7) * 1.1 if len(judged) > MANY_MARKS and role in ("candidate", "rejected") else 0.0
            )
            shape = mark(role, x(findings.excess(output)), round(y + 31 + beside, 1), 0.8)
            marks.append(point(shape, says, class_of(role)))

    def name_of(tick: float) -> str:
        return "none" if tick <= _LEAST_EXCESS else f"{tick:g}×"

    limit = x(1.0)
    return chart(
        width, bottom + 44, "Losses as a part of their tolerance",
        element("rect", x=limit, y=top, width=right - limit, height=bottom - top, class_="beyond"),
        x_axis(x, [1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0], top, bottom, "loss / tolerance (log)", name_of),
        line(limit, top - 8, limit, bottom, "wanted"),
        text(limit, top - 12, "tolerance", "hint", "middle"), *marks,
    )  # fmt: skip
