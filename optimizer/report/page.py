"""A study as one self-contained HTML page: opens offline, from a file, and asks nobody for anything.

Charts are SVG that is written here, with about a hundred lines of script for tips, sorting and the colour theme. A
charting library was considered: plotly's smallest bundle adds about a megabyte to every page, its charts say nothing
to a keyboard or a screen reader, and nothing without a script. Each chart is drawn twice, for a screen and for a phone,
since an SVG that is scaled down takes its texts below what can be read; the style sheet shows one of the two. The
numbers of every chart stand in a table under it.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable
from importlib import resources

from optimizer.report import candidate_charts, findings, marks, pair_charts, sections
from optimizer.report.findings import Document
from optimizer.report.layout import Column, Section, Table
from optimizer.report.markup import Child, Markup, element, join
from optimizer.report.numbers import interval, milliseconds, percent, rate

WIDE, NARROW = 1000.0, 358.0
MANY_ROWS = 12
"""Tables with more rows get a filter."""

Draw = Callable[[Document, float], Markup | None]

_CHARTS: dict[str, Draw] = {
    "candidates": candidate_charts.tradeoff,
    "time": pair_charts.time_bars,
    "confirmation": pair_charts.confirmation,
    "race": candidate_charts.race,
    "knobs": candidate_charts.knobs,
    "accuracy": candidate_charts.accuracy,
    "noise": pair_charts.noise,
    "budget": pair_charts.budget,
}
_CAPTIONS = {
    "candidates": "Each mark is a candidate. Those that could not be measured are listed below.",
    "confirmation": "Each ring is a pair, the bar the interval of the decision, the stroke its estimate.",
    "race": "Each mark is a candidate's mean gain so far; a line leads to its next round.",
    "accuracy": "Each mark is a candidate on one set of samples. Right of the line is failed.",
}
_OPEN = frozenset({"decision", "candidates", "left-out", "time", "environment"})
"""Sections whose tables are shown at once; elsewhere they fold up under their chart."""

_SHORT_TITLES = {
    "left-out": "Left out", "time": "Time", "knobs": "Knobs", "engines": "Builds", "noise": "Noise",
    "budget": "Budget", "reproduce": "Reproduce", "race": "Race", "next": "Next",
}  # fmt: skip


def study_page(document: Document) -> str:
    """The whole page, as HTML."""
    style, script = (_asset(name) for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Only the script that was written here may run, whatever a route or a log line holds.
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    title = f"{document['model']}: {_verdict(document)[1].lower()}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        element("style", Markup(style)),
    )
    shown = sections.sections(document)
    body = element(
        "body",
        _header(document),
        _navigation(shown),
        element("main", *(_section(document, section) for section in shown)),
        _footer(document),
        element("div", id="tip", role="status", hidden=True),
        element("script", Markup(script)),
    )
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


def _asset(name: str) -> str:
    return resources.files("optimizer.report").joinpath(name).read_text(encoding="utf-8")


def _header(document: Document) -> Markup:
    created = time.strftime("%d %B %Y, %H:%M UTC", time.gmtime(document["created_at"]))
    facts = document["fingerprint"]["facts"]
    where = facts.get("gpu") or facts.get("cpu", "")
    about = ", ".join(part for part in (created, where, facts.get("workload", "")) if part)
    return element(
        "header",
        element(
            "div", element("h1", f"How to serve {document['model']}"), element("p", about, class_="about")
        ),
        element("button", "Dark", type="button", class_="theme", hidden=True),
    )  # fmt: skip


def _navigation(shown: list[Section]) -> Markup:
    links = [element("a", _SHORT_TITLES.get(one.key, one.title.split(",")[0]), href=f"#{one.key}") for one in shown]
    return element("nav", element("div", *links), aria_label="Sections")


def _footer(document: Document) -> Markup:
    return element(
        "footer",
        f"Written by triton-optimizer {document['version']} from {document['directory']}. This page is one file and "
        "needs no network.",
    )


def _verdict(document: Document) -> tuple[str, str]:
    """A class and a word."""
    decision = document["decision"]
    if decision is None:
        return "open", "Stopped before a decision" if document["state"] == "stopped" else "Unfinished"
    return ("winner", "Replace") if decision["winner"] else ("keep", "Keep what is there")


def _section(document: Document, section: Section) -> Markup:
    figure = _figure(document, section.key)
    key = _key(document, section.key) if figure else None
    lines: list[Child] = [element("p", _words(line)) for line in section.lines]
    if section.key == "decision":
        lines[:1] = [_decision(document, section.lines[0])]
    tables = [_table(table) for table in section.tables]
    if section.key not in _OPEN and figure and tables:
        tables = [element("details", element("summary", "Numbers as a table"), *tables)]
    if section.key == "left-out" and len(tables) > 1:
        tables[1:] = [element("details", element("summary", "Each of them"), *tables[1:])]
    return element(
        "section",
        element("h2", section.title, id=section.key) if section.key != "decision" else None,
        *lines,
        _caveats(section.caveats),
        key,
        figure,
        *tables,
        element("pre", "\n".join(section.commands), tabindex="0") if section.commands else None,
        id=section.key if section.key == "decision" else None,
    )


def _key(document: Document, key: str) -> Markup | None:
    rows = document["candidates"]
    if key == "time":
        return marks.key_of_phases()
    if key == "candidates":
        return marks.key_of_roles(findings.measured(document))
    if key == "race":
        return marks.key_of_roles(row for row in rows if row["race_pairs"])
    if key == "accuracy":
        return marks.key_of_roles(row for row in rows if row["parity"])
    return None


def _decision(document: Document, sentence: str) -> Markup:
    class_, word = _verdict(document)
    return join(
        [
            element("div", element("b", word), element("p", _words(sentence)), class_=f"verdict {class_}"),
            _key_figures(document),
        ]
    )


def _key_figures(document: Document) -> Markup | None:
    top = findings.best(document)
    gain = findings.confirmed_gain(top) if top else None
    if top is None or gain is None:
        return None
    shown = findings.latency(document)
    who = "winner" if top["state"] == "winner" else "best finalist"
    figures = [(percent(gain["ratio"]), f"{who}, {interval(gain).partition(' ')[2].strip('()')}")]
    # The same comparison as the gain beside it.
    over_found = top["gain_over_as_found"] is not None
    against = findings.as_found(document) if over_found else findings.default(document)
    if against and against["throughput"]:
        words = f"inferences/s, {'as found' if over_found else 'default'} → {who}"
        figures.append((f"{rate(against['throughput'])} → {rate(top['throughput'])}", words))
        figures.append((f"{milliseconds(shown.of(against))} → {milliseconds(shown.of(top))}", f"ms, {shown.name}"))
    figures.append((str(gain["pairs"]), "fresh pairs"))
    items = [element("li", element("b", figure), element("span", says)) for figure, says in figures]
    return element("ul", *items, class_="figures")


def _caveats(caveats: tuple[str, ...]) -> Markup | None:
    if not caveats:
        return None
    items = [element("li", _words(caveat)) for caveat in caveats]
    return element("div", element("strong", "What to keep in mind"), element("ul", *items), class_="caveats")


def _figure(document: Document, key: str) -> Markup | None:
    draw, caption = _CHARTS.get(key), _CAPTIONS.get(key)
    wide, narrow = (draw(document, WIDE), draw(document, NARROW)) if draw else (None, None)
    if wide is None or narrow is None:
        return None
    return element(
        "figure",
        element("div", wide, class_="wide"),
        element("div", narrow, class_="narrow"),
        element("figcaption", caption, class_="note") if caption else None,
    )


def _table(table: Table) -> Markup:
    head = element("tr", *(_heading(column) for column in table.columns))
    bars = table.columns[0].name == "engine"
    largest = {place: _largest(table, place) for place, column in enumerate(table.columns) if bars and column.numeric}
    rows = [
        element(
            "tr", *(_cell(column, cell, largest.get(place)) for place, (column, cell) in enumerate(_cells(table, row)))
        )
        for row in table.rows
    ]
    title = table.title or f"{len(table.rows):,} rows"
    grid = element("table", element("thead", head), element("tbody", *rows))
    several = len(table.rows) > MANY_ROWS
    return element(
        "div",
        element("h3", table.title) if table.title else None,
        _filter() if several else None,
        element(
            "div",
            grid,
            class_="scroll many" if len(table.rows) > 100 else "scroll",
            tabindex="0",
            role="region",
            aria_label=title,
        ),
        element("p", table.note, class_="note") if table.note else None,
    )


def _cells(table: Table, row: tuple[str, ...]) -> list[tuple[Column, str]]:
    return list(zip(table.columns, row, strict=True))


_ROUTES = frozenset({"candidate", "finalist", "first candidate", "ahead after it", "knob", "value", "sha256", "engine"})
_LONG = frozenset({"what happened", "verdict", "builder, or why it failed", "for example", "loss by tag, worst first"})
_GOOD = frozenset({"winner", "accepted", "passed"})
_BAD = frozenset({"rejected", "failed"})


def _heading(column: Column) -> Markup:
    button = element("button", column.name, type="button")
    return element("th", button, scope="col", class_="n" if column.numeric else None)


def _cell(column: Column, cell: str, largest: float | None) -> Markup:
    classes = []
    if column.numeric:
        classes.append("n")
    if column.name in _ROUTES:
        classes.append("route")
    elif column.name in _LONG:
        classes.append("long")
    elif column.name == "worst loss":
        classes.append("short")
    if column.name in ("state", "verdict"):
        classes += ["good"] if cell in _GOOD else ["bad"] if cell in _BAD else []
    content = cell
    if "route" in classes:
        # An assignment a line, whole where a phone can show it whole.
        content = cell.replace(" -", "\n-")
        classes += ["broken"] if max(map(len, content.split("\n"))) > MOST_UNBROKEN else []
    style = None
    if largest:
        value = _value(cell)
        if value is not None:
            classes.append("bar")
            style = f"--part: {value / largest:.0%}"
    return element("td", content, class_=" ".join(classes) or None, style=style)


def _words(text: str) -> Markup:
    """Lines break between a route's assignments, and not behind the dash that begins one."""
    return join(
        (
            (element("span", word, class_="word") if word[0] == "-" and len(word) <= MOST_UNBROKEN else word)
            for word in text.split()
        ),
        " ",
    )


MOST_UNBROKEN = 34
"""Characters that a phone shows in one line."""


def _largest(table: Table, place: int) -> float:
    return max((value for row in table.rows if (value := _value(row[place])) is not None), default=0.0)


def _value(cell: str) -> float | None:
    try:
        return float(cell.replace(",", "").lstrip("<"))
    except ValueError:
        return None


def _filter() -> Markup:
    return element(
        "div",
        element("label", "Filter ", element("input", type="search", placeholder="words that a row holds")),
        element("output"),
        class_="filter",
        hidden=True,
    )
