"""Progress on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from optimizer.progress import Line, Narrator

_LINE_STYLES = {
    "stage": "bold", "rejected": "yellow", "decision": "bold green", "warning": "yellow", "best": "cyan",
    "confirmed": "green",
}  # fmt: skip


class LiveProgress:
    """On a terminal one status line below the lines that stay; elsewhere a line an event that is worth one.

    The status line is drawn on events only: a clock that ticks would take its share of the cores being measured.
    :meth:`close` before anything else is printed.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._clock = clock
        self._started = clock()
        self._narrator = Narrator()
        self._live: Live | None = None

    def __call__(self, kind: str, **facts: Any) -> None:
        on_terminal = self._console.is_terminal
        for line in self._narrator.tell(kind, facts):
            if line.live if on_terminal else line.log:
                self._console.print(self._stamped(line))
        if on_terminal:
            self._show_status()

    def _stamped(self, line: Line) -> Text:
        elapsed = Text(f"{self._clock() - self._started:7.1f}s  ", style="dim")
        return elapsed.append(Text(line.text, style=_LINE_STYLES.get(line.kind, "")))

    def _show_status(self) -> None:
        status = self._narrator.status
        if not status:
            self.close()
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        width = max(20, self._console.width - 1)
        shown = Text(f"▸ {status}", style="cyan")
        shown.truncate(width, overflow="ellipsis")
        self._live.update(shown, refresh=True)

    def close(self) -> None:
        """Takes the status line away; idempotent."""
        if self._live is not None:
            self._live.stop()
            self._live = None
