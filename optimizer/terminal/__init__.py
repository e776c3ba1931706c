"""What people see in a terminal: progress on stderr, results on stdout.

A terminal gets tables of its width and colours; a pipe gets the plain text of the report, as wide as it needs to be.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

from optimizer.terminal import repositories, studies
from optimizer.terminal.live_progress import LiveProgress

__all__ = ["LiveProgress", "show_document", "show_inspection"]

Document = Mapping[str, Any]

_SHOWN: Mapping[str, Callable[[Console, Document], None]] = {
    "study": studies.show_study,
    "optimize": studies.show_optimize,
    "dry_run": studies.show_dry_run,
    "applied": studies.show_applied,
    "table": studies.show_rows,
    "status": repositories.show_status,
}


def show_document(document: Document, console: Console | None = None) -> None:
    """Any command's document, by its ``kind``."""
    console = console or _console()
    show = _SHOWN.get(document.get("kind", ""))
    if show is None:
        for key, value in document.items():
            console.print(f"{key}: {value}", markup=False)
    else:
        show(console, document)


def show_inspection(document: Document, console: Console | None = None) -> None:
    repositories.show_inspection(console or _console(), document)


def _console() -> Console:
    # A pipe has no width: tables are laid out as wide as they want to be.
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=240, soft_wrap=True)
