"""What a study came to, and what else commands tell in lines and rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from optimizer.report.layout import Section
from optimizer.report.sections import sections, summary
from optimizer.report.text import section_text, study_text
from optimizer.terminal.tables import SHOWN_ROWS, fitting, plain_rows

Document = Mapping[str, Any]

SHOWN_ROUTES = 20


def _show_section(console: Console, section: Section) -> None:
    console.print()
    console.print(Text(section.title, style="bold underline"))
    if not console.is_terminal:
        for line in section_text(section):
            console.print(Text(line))
        return
    for position, line in enumerate(section.lines):
        console.print(Text(line, style="bold" if section.key == "decision" and position == 0 else ""))
    for table in section.tables:
        if table.title:
            console.print(Text(f"\n{table.title}", style="italic"))
        console.print(fitting(table, console.width))
        left = len(table.rows) - SHOWN_ROWS
        notes = [f"{left:,} more rows: see the page (--html), --markdown or --json."] if left > 0 else []
        for note in (*notes, table.note):
            if note:
                console.print(Text(note, style="dim"))
    for caveat in section.caveats:
        console.print(Text(f"• {caveat}", style="yellow"))
    for command in section.commands:
        console.print(Text(f"  {command}", style="bold"))


def show_study(console: Console, document: Document) -> None:
    """``report``: everything."""
    if not console.is_terminal:
        console.file.write(study_text(document))
    else:
        console.print(Text(f"Study of {document['model']} in {document['repository']}", style="bold"))
        for section in sections(document):
            _show_section(console, section)
    if document.get("page"):
        console.print(Text(f"\nThe page is in {document['page']}"))


def show_optimize(console: Console, document: Document) -> None:
    if "rows" in document:
        _show_repository(console, document)
        return
    for entry in document["models"]:
        if entry.get("study"):
            console.print(Text(f"{entry['model']}: {entry['study']['state']}", style="bold"))
            for section in summary(entry["study"]):
                _show_section(console, section)
        if entry.get("applied"):
            show_applied(console, entry["applied"])
        if entry.get("skipped"):
            console.print(Text(f"{entry['model']}: not tuned: {entry['skipped']}"))


def _show_repository(console: Console, document: Document) -> None:
    """A row a model; what each study found is in its own report."""
    for entry in document["models"]:
        if entry.get("applied"):
            show_applied(console, entry["applied"])
    console.print(Text(f"\n{document['repository']}", style="bold"))
    console.print(plain_rows(document["columns"], document["rows"]))
    for note in document["notes"]:
        console.print(Text(note))
    if document["directory"]:
        console.print(Text(f"more of each model: triton-optimizer report {document['directory']}/MODEL", style="dim"))
    if document.get("page"):
        console.print(Text(f"The page is in {document['page']}"))


def show_dry_run(console: Console, document: Document) -> None:
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


def show_applied(console: Console, document: Document) -> None:
    for line in document["lines"]:
        console.print(Text(line))
    if document.get("diff"):
        console.print()
        for line in document["diff"].splitlines():
            style = "green" if line.startswith("+") else "red" if line.startswith("-") else ""
            console.print(Text(line, style=style))


def show_rows(console: Console, document: Document) -> None:
    """``lines`` above a table of ``columns`` and ``rows``, and ``notes`` below: enough for most commands."""
    for line in document.get("lines", ()):
        console.print(Text(line))
    if document.get("rows"):
        console.print(plain_rows(document["columns"], document["rows"]))
    for line in document.get("notes", ()):
        console.print(Text(line))
