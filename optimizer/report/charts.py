"""The charts of a study's page. Each takes the document and a width in px and gives an SVG, or ``None`` where there is
nothing to draw. They stand above tables with the same numbers.

Roles are told by shape and by colour (Okabe and Ito's palette, which people with any colour vision can tell apart; the
colours themselves are in ``page.css``). Gains are drawn on logarithmic axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from optimizer.records.route import AS_FOUND
from optimizer.report import findings
from optimizer.report.axes import (
    Scale,
    Shape,
    bar,
    chart,
    circle,
    cross,
    diamond,
    drawn,
    gain_scale,
    gain_text,
    gain_ticks,
    line,
    point,
    scale_of,
    shorten,
    square,
    star,
    text,
    x_axis,
    y_axis,
)
from optimizer.report.findings import Document, Row
from optimizer.report.markup import Child, Markup, element, join
from optimizer.report.numbers import duration, interval, loss, milliseconds, percent, rate

_ORDER = ("rejected", "candidate", "finalist", "default route", "as found", "winner")
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
    places.sort(key=lambda place: _ORDER.index(place[1]))
    marks = [point(mark(role, px, py), describe(row, shown), class_of(role)) for row, role, px, py in places]
    unit = f"{shown.name}, ms{' (log)' if y.log else ''}"
    return chart(
        width,
        height,
        f"Throughput against {shown.name} of {len(rows)} candidates",
        y_axis(y, y.ticks, left, right, _plain),
        x_axis(x, x.ticks, top, bottom, f"throughput, inferences/s{' (log)' if x.log else ''}", _plain),
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


def _plain(value: float) -> str:
    return f"{value:,.10g}" if value < 1e5 else f"{value / 1e3:,.6g}k"


def key_of_roles(rows: Iterable[Row]) -> Markup:
    """What the shapes of ``rows`` mean, as HTML beside a chart."""
    present = {findings.role(row) for row in rows}
    items = []
    for role in (role for role in reversed(_ORDER) if role in present):
        shape = mark(role, 9, 9, 0.9)
        icon = element("svg", drawn(shape), viewBox="0 0 18 18", class_=f"p {class_of(role)}", aria_hidden="true")
        items.append(element("span", icon, role, class_="key"))
    return element("p", *items, class_="keys")


def time_bars(document: Document, width: float) -> Markup | None:
    """Where a request's time goes, stacked, for what is there, the default and the winner."""
    rows = [(title, row) for title, row in findings.compared(document) if row["breakdown_us"]]
    if not rows:
        return None
    totals = [sum(row["breakdown_us"][phase] for phase in findings.PHASES) for _, row in rows]
    step, top, left, right = 52.0, 8.0, 4.0, width - 70
    bottom = top + step * len(rows)
    x = Scale(0.0, max(totals) / 1e3, left, right)
    marks: list[Child] = []
    for position, ((title, row), total) in enumerate(zip(rows, totals, strict=True)):
        y = top + position * step
        label = title if row["label"] in (AS_FOUND, "default") else f"{title}: {row['label']}"
        marks.append(text(left, y + 13, shorten(label, width - 8), "direct"))
        at = 0.0
        for phase, name in zip(findings.PHASES, findings.PHASE_NAMES, strict=True):
            value = row["breakdown_us"][phase] / 1e3
            begin, end = x(at), x(at + value)
            at += value
            says = f"{label}\n{name}: {value:,.2f} ms of {total / 1e3:,.2f} ms"
            marks.append(point(bar(begin, y + 20, end - begin, 20), says, f"phase {class_of(name)}"))
            if end - begin > 7.0 * (len(name) + 6):
                marks.append(text(begin + 6, y + 34, f"{name} {value:,.3g}", f"inside {class_of(name)}"))
        marks.append(text(x(at) + 6, y + 34, f"{total / 1e3:,.3g} ms", "tick"))
    return chart(
        width, bottom + 44, "Where the time of a request goes",
        x_axis(x, x.ticks, top + 18, bottom, "mean time of a request, ms", _plain), *marks,
    )  # fmt: skip


def key_of_phases() -> Markup:
    items = [
        element("span", element("span", class_=f"swatch {class_of(name)}", aria_hidden="true"), name, class_="key")
        for name in findings.PHASE_NAMES
    ]
    return element("p", *items, class_="keys")


def confirmation(document: Document, width: float) -> Markup | None:
    """Every fresh pair of every finalist, with the interval that decides, against no change and the gain asked for."""
    every = [one for one in findings.confirmations(document) if one.pairs]
    if not every:
        return None
    ratios = [math.exp(pair["log_ratio"]) for one in every for pair in one.pairs]
    ratios += [one.interval[end] for one in every if one.interval for end in ("lower", "upper")]
    wanted = 1 + float(document["settings"].get("judge", {}).get("min_gain", 0.0))
    # On a phone the interval has a line of its own.
    narrow = width < 500
    step, top, left, right = (76.0 if narrow else 58.0), 30.0, 16.0, width - 16
    bottom = top + step * len(every)
    x = gain_scale(ratios, left, right, shown=(1.0, wanted))
    marks: list[Child] = []
    for position, one in enumerate(every):
        y = top + position * step
        told = interval(one.interval)
        name = f"{one.finalist['label']} against {one.reference}"
        # The lines of comparison leave the names free.
        space = right - left if narrow else right - left - 7.3 * len(told) - 16
        marks.append(text(left, y + 14, shorten(name, space), "direct"))
        marks.append(text(left, y + 31, told, "tick") if narrow else text(right, y + 14, told, "direct", "end"))
        y += step - 58.0
        marks.append(line(x(1.0), y + 22, x(1.0), y + 52, "zero"))
        marks.append(line(x(wanted), y + 22, x(wanted), y + 52, "wanted") if wanted > 1 else None)
        if one.interval:
            low, high, middle = (x(one.interval[end]) for end in ("lower", "upper", "ratio"))
            verdict = "accepted" if one.finalist["accepted"] else "kept-out"
            says = f"{name}\n{told}\n{one.finalist['reason']}".strip()
            marks.append(point(bar(low, y + 32, max(1.0, high - low), 6), says, f"interval {verdict}"))
            marks.append(line(middle, y + 26, middle, y + 44, f"estimate {verdict}"))
        for pair in one.pairs:
            says = f"{name}\npair {pair['index'] + 1}: {percent(math.exp(pair['log_ratio']))}"
            if not pair["usable"]:
                says += f"\nleft out: {pair['note'].partition(';')[0]}"
            dot = circle(x(math.exp(pair["log_ratio"])), y + 35, 3.6)
            marks.append(point(dot, says, "pair" if pair["usable"] else "pair unusable"))
    ticks = gain_ticks(x, 8 if width > 500 else 4)
    return chart(
        width, bottom + 44, "Confirmation pairs and intervals",
        x_axis(x, ticks, top, bottom, "gain in a fresh pair", gain_text),
        _wanted(x, wanted, top), *marks,
    )  # fmt: skip


def _wanted(x: Scale, wanted: float, top: float) -> Markup | None:
    if wanted <= 1:
        return None
    at, up = x(wanted), top - 18
    # The text goes to the side where there is room.
    side, anchor = (-1, "end") if at > (x.start + x.end) / 2 else (1, "start")
    label = text(at + 10 * side, top - 14, f"asked for: {percent(wanted)}", "hint", anchor)
    return join([line(at, up, at, top, "wanted"), line(at, up, at + 7 * side, up, "wanted"), label])


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
        judged.sort(key=lambda one: _ORDER.index(findings.role(one[0])))
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


def noise(document: Document, width: float) -> Markup | None:
    """Every A/A pair, with one standard deviation to both sides of no difference."""
    pairs = [pair for pair in document["pairs"] if pair["purpose"] == "noise"]
    if not pairs:
        return None
    told = (document["facts"].get("noise") or {}).get("sd")
    known = isinstance(told, (int, float)) and math.isfinite(told)
    deviation = float(told or 0.0) if known else 0.0
    ratios = [math.exp(pair["log_ratio"]) for pair in pairs]
    shown = (1.0, math.exp(-deviation), math.exp(deviation))
    left, right, top, bottom = 16.0, width - 16, 22.0, 66.0
    x = gain_scale(ratios, left, right, shown=shown)
    marks: list[Child] = []
    if known:
        low, high = x(math.exp(-deviation)), x(math.exp(deviation))
        marks.append(element("rect", x=low, y=top, width=round(high - low, 1), height=bottom - top, class_="band"))
        marks.append(text((low + high) / 2, top - 7, f"± one standard deviation, {deviation:.1%}", "hint", "middle"))
    for pair, ratio in zip(pairs, ratios, strict=True):
        says = f"A/A pair {pair['index'] + 1}: {percent(ratio)}"
        dot = circle(x(ratio), (top + bottom) / 2, 4.2)
        marks.append(point(dot, says, "pair" if pair["usable"] else "pair unusable"))
    return chart(
        width, bottom + 44, "A/A pairs",
        x_axis(x, gain_ticks(x, 8 if width > 500 else 4), top, bottom, "difference of two equal copies", gain_text),
        line(x(1.0), top, x(1.0), bottom, "zero"), *marks,
    )  # fmt: skip


def budget(document: Document, width: float) -> Markup | None:
    """How the study's time was spent, against its limit."""
    times = document["time"]
    spent = (document["facts"].get("spent") or {}).get("wall_s") or times["last_at"] - times["first_at"]
    if not spent:
        return None
    limit = (document["settings"].get("budget", {}).get("minutes") or 0) * 60
    parts = [("builds", times["build_s"], "queue"), ("measurement windows", times["window_s"], "infer")]
    parts.append(("loading, warming up, checking", max(0.0, spent - sum(part[1] for part in parts)), "input"))
    left, right, top = 4.0, width - 16, 8.0
    minutes = max(spent, limit) > 300
    unit = 60.0 if minutes else 1.0
    x = Scale(0.0, max(spent, limit) / unit * 1.02, left, right)
    marks: list[Child] = []
    at = 0.0
    for name, seconds, class_ in parts:
        begin, end = x(at / unit), x((at + seconds) / unit)
        at += seconds
        marks.append(point(bar(begin, top, end - begin, 20), f"{name}: {duration(seconds)}", f"phase {class_}"))
        if end - begin > 7.0 * len(name):
            marks.append(text(begin + 6, top + 14, name, f"inside {class_}"))
    if limit:
        marks.append(line(x(limit / unit), top - 6, x(limit / unit), top + 26, "wanted"))
    title = f"{'minutes' if minutes else 'seconds'}{'; the line is the limit' if limit else ''}"
    return chart(
        width, top + 70, "How the time was spent", x_axis(x, x.ticks, top, top + 26, title, _plain), *marks
    )  # fmt: skip
