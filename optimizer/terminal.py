"""What people see in a terminal: progress on stderr, results on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from optimizer.report.text import study_text

Document = Mapping[str, Any]

SHOWN_ROUTES = 20


class LiveProgress:
    """One line an event, with the time since the start; what is known so far stays readable when it scrolls."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._started = time.monotonic()

    def __call__(self, kind: str, **facts: Any) -> None:
        line = _describe(kind, facts)
        if line:
            elapsed = time.monotonic() - self._started
            self._console.print(Text(f"{elapsed:7.1f}s  ", style="dim").append(Text(line, style=_STYLES.get(kind, ""))))


_STYLES = {"stage": "bold", "rejected": "yellow", "decision": "bold green", "warning": "yellow"}


def _describe(kind: str, facts: Mapping[str, Any]) -> str:
    if kind == "stage":
        return str(facts["text"])
    if kind == "warning":
        return f"warning: {facts['text']}"
    if kind == "build":
        return f"  build     {facts['route'] or 'default'}"
    if kind == "screen":
        return f"  screen    {facts['route']}"
    if kind == "rejected":
        return f"  rejected  {facts['candidate']} ({facts['stage']}/{facts['code']}): {facts['message']}"
    if kind == "pair":
        ratio = (2.718281828459045 ** facts["log_ratio"] - 1) * 100
        unusable = "" if facts["usable"] else " (unusable)"
        return (
            f"  {facts['purpose']:9s} {facts['route']}: {facts['throughput']:,.1f}/s against "
            f"{facts['reference_throughput']:,.1f}/s, {ratio:+.1f}%{unusable}"
        )
    if kind == "decision":
        return str(facts["sentence"])
    return ""


def show_document(document: Document) -> None:
    """Any command's document, by its ``kind``."""
    console = _console()
    show = _SHOWN.get(document.get("kind", ""))
    if show is None:
        for key, value in document.items():
            console.print(f"{key}: {value}", markup=False)
    else:
        show(console, document)


def _console() -> Console:
    # A pipe has no width: tables are laid out as wide as they want to be.
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=240, soft_wrap=True)


def _grid(header: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> Table:
    table = Table(*header, title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _show_study(console: Console, document: Document) -> None:
    print(study_text(document))


def _show_optimize(console: Console, document: Document) -> None:
    for entry in document["models"]:
        if entry.get("study"):
            _show_study(console, entry["study"])
        if entry.get("applied"):
            _show_applied(console, entry["applied"])
        if entry.get("skipped"):
            console.print(Text(f"{entry['model']}: not tuned: {entry['skipped']}"))


def _show_dry_run(console: Console, document: Document) -> None:
    for entry in document["models"]:
        if entry.get("skipped"):
            console.print(Text(f"{entry['model']}: would not be tuned: {entry['skipped']}"))
            continue
        console.print(Text(f"{entry['model']}: {entry['count']} candidates, {entry['engines']} engines", style="bold"))
        for line in entry["why"]:
            console.print(Text(f"  {line}"))
        for route in entry["routes"][:SHOWN_ROUTES]:
            console.print(Text(f"    {route or 'default'}"))
        if entry["count"] > SHOWN_ROUTES:
            console.print(Text(f"    … and {entry['count'] - SHOWN_ROUTES} more: --json lists them all"))
        console.print(
            Text(f"  estimated: {entry['estimated_s'] / 60:.1f} minutes, {entry['disk_bytes'] / 1e6:,.0f} MB")
        )


def _show_applied(console: Console, document: Document) -> None:
    for line in document["lines"]:
        console.print(Text(line))
    if document.get("diff"):
        console.print()
        for line in document["diff"].splitlines():
            style = "green" if line.startswith("+") else "red" if line.startswith("-") else ""
            console.print(Text(line, style=style))


def _show_rows(console: Console, document: Document) -> None:
    """``lines`` above a table of ``columns`` and ``rows``, and ``notes`` below: enough for most commands."""
    for line in document.get("lines", ()):
        console.print(Text(line))
    if document.get("rows"):
        console.print(_grid(document["columns"], [[str(cell) for cell in row] for row in document["rows"]]))
    for line in document.get("notes", ()):
        console.print(Text(line))


def show_inspection(document: Document) -> None:
    _show_inspection(_console(), document)


def _show_inspection(console: Console, document: Document) -> None:
    import json

    console.print(json.dumps(document, indent=2, default=str), markup=False)


_SHOWN = {
    "study": _show_study,
    "optimize": _show_optimize,
    "dry_run": _show_dry_run,
    "applied": _show_applied,
    "table": _show_rows,
}
