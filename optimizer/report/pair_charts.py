"""Charts of times and pairs: where a request's time goes, confirmation, noise, budget.

Made like those of :mod:`optimizer.report.candidate_charts`.
"""

from __future__ import annotations

import math

from optimizer.records.route import AS_FOUND
from optimizer.report import findings
from optimizer.report.axes import (
    Scale,
    bar,
    chart,
    circle,
    gain_scale,
    gain_text,
    gain_ticks,
    line,
    point,
    shorten,
    text,
    x_axis,
)
from optimizer.report.findings import Document
from optimizer.report.marks import class_of, plain
from optimizer.report.markup import Child, Markup, element, join
from optimizer.report.numbers import duration, interval, percent


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
        x_axis(x, x.ticks, top + 18, bottom, "mean time of a request, ms", plain), *marks,
    )  # fmt: skip


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
        width, top + 70, "How the time was spent", x_axis(x, x.ticks, top, top + 26, title, plain), *marks
    )  # fmt: skip
