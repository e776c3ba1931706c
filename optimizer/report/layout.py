"""What the report is made of: sections of sentences and of tables of texts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Column:
    """``rank`` orders columns by importance: where space is short, those with the highest rank go first."""

    name: str
    numeric: bool = False
    rank: int = 0


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    note: str = ""


@dataclass(frozen=True)
class Section:
    """``key`` is stable: the page hangs its charts on it, and uses it as an anchor."""

    key: str
    title: str
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = field(default=())
    commands: tuple[str, ...] = ()
    """To be typed, or kept as a file: shown in a fixed pitch."""
    caveats: tuple[str, ...] = ()


def one_line(text: str) -> str:
    return " ".join(text.split())
