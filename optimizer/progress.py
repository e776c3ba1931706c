"""What a running study tells: events with a kind and facts, to whoever listens. Standard library only."""

from __future__ import annotations

import json
import sys
import time
from typing import IO, Any, Protocol


class Progress(Protocol):
    def __call__(self, kind: str, **facts: Any) -> None:
        """``kind`` is stable (``stage``, ``build``, ``screen``, ``pair``, ``decision`` …); facts are JSON values."""


def silent(_kind: str, **_facts: Any) -> None:
    """Tells nobody."""


class JsonLines:
    """One JSON object a line, for pipelines."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stderr

    def __call__(self, kind: str, **facts: Any) -> None:
        print(
            json.dumps({"time": round(time.time(), 3), "event": kind, **facts}, default=str),
            file=self._stream,
            flush=True,
        )
