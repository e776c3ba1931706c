"""Tables that fit the terminal's width: what matters least is left out first, long routes fold between their
assignments, and numbers stay whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table as Grid
from rich.text import Text

from optimizer.report.layout import Column, Table

SHOWN_ROWS = 30
"""Of a table in a terminal; a pipe, the page and ``--json`` have them all."""


def fitting(table: Table, width: int) -> Grid:
    """``table`` for a terminal of that width."""
    places = _columns_that_fit(table, width)
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for place in places:
        column = table.columns[place]
        grid.add_column(
            column.name, justify="right" if column.numeric else "left", no_wrap=column.numeric, overflow="fold",
            header_style="bold",
        )  # fmt: skip
    for row in table.rows[:SHOWN_ROWS]:
        grid.add_row(*(_cell(table.columns[place], row[place]) for place in places))
    return grid


SMALLEST_TEXT = 20
"""Columns of texts are folded down to this."""


def _columns_that_fit(table: Table, width: int) -> list[int]:
    """Places of the columns to show: those of the highest rank are left out until the rest fits."""
    rows = table.rows[:SHOWN_ROWS]
    needed = [_needed(column, [row[place] for row in rows]) for place, column in enumerate(table.columns)]
    places = [place for place in range(len(needed)) if place == 0 or _worth_showing(table, place)]
    while sum(needed[place] + 2 for place in places) > width + 2:
        last = max(places, key=lambda place: (table.columns[place].rank, place))
        if table.columns[last].rank == 0:
            break
        places.remove(last)
    return places


def _needed(column: Column, cells: Iterable[str]) -> int:
    longest = max([len(column.name), *(len(cell) for cell in cells)])
    return longest if column.numeric else min(longest, SMALLEST_TEXT)


def _worth_showing(table: Table, place: int) -> bool:
    return table.columns[place].rank == 0 or any(row[place] for row in table.rows)


CELL_STYLES = {
    "winner": "bold green", "accepted": "green", "passed": "green", "finalist": "cyan", "reference": "bold",
    "rejected": "red", "failed": "red", "ready": "green", "blocked": "yellow", "unreadable": "red",
}  # fmt: skip


def _cell(column: Column, text: str) -> Text:
    known = column.name in ("state", "verdict", "status")
    return Text(text, style=CELL_STYLES.get(text, "") if known else "")


def plain_rows(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Grid:
    """A column whose cells are all numbers (or missing) stands to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for place, name in enumerate(header):
        numeric = all(_is_number(row[place]) for row in cells)
        grid.add_column(
            name, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold", header_style="bold"
        )
    for row in cells:
        grid.add_row(*map(Text, row))
    return grid


def _is_number(cell: str) -> bool:
    return cell in ("", "unknown", "too few", "-") or cell[:1].isdigit() or cell[:2].lstrip("+-").isdigit()
