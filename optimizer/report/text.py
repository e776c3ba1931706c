"""A study's document (see :mod:`optimizer.summary`) as plain text and as Markdown. Pure: a document in, text out."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from optimizer.report.findings import Document
from optimizer.report.layout import Column, Section, Table
from optimizer.report.sections import sections

WIDTH = 120
"""Sentences are folded here. Tables are as wide as they need to be, up to :data:`WIDEST_CELL` a cell."""
WIDEST_CELL = 60


def study_text(document: Document) -> str:
    """The whole report for a pipe or a file."""
    lines = [f"Study of {document['model']} in {document['repository']}"]
    for section in sections(document):
        lines += ["", section.title.upper(), *section_text(section)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def section_text(section: Section) -> list[str]:
    lines = [folded for line in section.lines for folded in fold(line)]
    for position, table in enumerate(section.tables):
        lines += [""] if position or lines else []
        lines += [f"{table.title}:"] if table.title else []
        lines += table_text(table)
        lines += fold(table.note) if table.note else []
    lines += [folded for caveat in section.caveats for folded in fold(f"Caveat: {caveat}", indent="  ")]
    return lines + [f"  {command}" for command in section.commands]


def fold(line: str, indent: str = "") -> list[str]:
    """No word is broken: paths and commands stay whole."""
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def table_text(table: Table) -> list[str]:
    return plain_table(
        [column.name for column in table.columns], table.rows, [column.numeric for column in table.columns]
    )


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> list[str]:
    """Numbers to the right, long texts folded inside their cell at spaces."""
    folded = [[_cell(cell) for cell in row] for row in rows]
    widths = [
        max([len(name), *(len(part) for row in folded for part in row[place])]) for place, name in enumerate(header)
    ]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        ).rstrip()

    lines = [line(header), "  ".join("-" * width for width in widths)]
    for row in folded:
        for place in range(max(len(cell) for cell in row)):
            lines.append(line([cell[place] if place < len(cell) else "" for cell in row]))
    return lines


def _cell(text: str) -> list[str]:
    return textwrap.wrap(text, WIDEST_CELL, break_on_hyphens=False, subsequent_indent="  ") or [""]


def study_markdown(document: Document) -> str:
    """The whole report as GitHub-flavoured Markdown."""
    lines = [f"# {escape(document['model'])}"]
    for section in sections(document):
        lines += ["", f"## {section.title}", *section_markdown(section)]
    return "\n".join(lines) + "\n"


def section_markdown(section: Section) -> list[str]:
    lines = [part for line in section.lines for part in ("", escape(line))]
    for table in section.tables:
        lines += ["", f"**{table.title}**"] if table.title else []
        lines += ["", *table_markdown(table)]
        lines += ["", escape(table.note)] if table.note else []
    lines += ["", *(f"- Caveat: {escape(caveat)}" for caveat in section.caveats)] if section.caveats else []
    # Four backticks: a command may hold three.
    lines += ["", "````", *section.commands, "````"] if section.commands else []
    return lines


def table_markdown(table: Table) -> list[str]:
    return [
        _markdown_row([column.name for column in table.columns]),
        "|" + "|".join(_rule(column) for column in table.columns) + "|",
        *(_markdown_row(row) for row in table.rows),
    ]


def _rule(column: Column) -> str:
    return " ---: " if column.numeric else " --- "


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"


_SPECIAL = str.maketrans(
    {character: f"\\{character}" for character in "\\`*_[]|~#"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
)


def escape(text: str) -> str:
    """As text and nothing else: no markup, no HTML, no second table cell, no second line."""
    return " ".join(text.split()).translate(_SPECIAL)
