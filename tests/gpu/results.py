"""Results of a piece: one JSON file, rewritten after every step, so that a piece that is cut off can go on."""

from __future__ import annotations

import json
import platform
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from optimizer import durable


class Steps:
    """``piece.json`` in ``directory``: ``{"facts": …, "steps": {name: {…}}}``. A step that failed is run again.

    ``seconds`` is what the whole piece may take: no step starts when less than ``reserve_s`` is left.
    """

    def __init__(self, directory: Path, piece: str, seconds: float, facts: dict[str, Any]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.file = directory / f"{piece}.json"
        self.deadline = time.monotonic() + seconds
        self.document: dict[str, Any] = {"piece": piece, "facts": {}, "steps": {}}
        if self.file.exists():
            self.document = json.loads(self.file.read_text(encoding="utf-8"))
        self.document["facts"] = {
            **facts,
            "command": " ".join(sys.argv),
            "python": platform.python_version(),
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self.left_out: list[str] = []

    @property
    def steps(self) -> dict[str, dict[str, Any]]:
        known: dict[str, dict[str, Any]] = self.document["steps"]
        return known

    def done(self, name: str) -> bool:
        return self.steps.get(name, {}).get("ok") is True

    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def step(self, name: str, work: Callable[[], dict[str, Any]], *, reserve_s: float = 20.0) -> dict[str, Any] | None:
        """The step's result; ``None`` when there was no time. A failure is a result with ``error``."""
        if self.done(name):
            return self.steps[name]
        if self.left_s() < reserve_s:
            self.left_out.append(name)
            return None
        started = time.monotonic()
        try:
            result = {"ok": True, **work()}
        except Exception as error:  # noqa: BLE001 - one step's failure must not cost the other steps' device time
            result = {"ok": False, "error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-2000:]}
        result["step_s"] = round(time.monotonic() - started, 2)
        self.steps[name] = result
        self.save()
        line = {key: value for key, value in result.items() if key != "trace"}
        print(f"{name}: {json.dumps(line)[:900]}", flush=True)
        return result

    def save(self) -> None:
        durable.write_json(self.file, self.document)

    def finish(self) -> int:
        """0 when every step is there and well, 3 when some wait for another call, 1 when some failed."""
        failed = [name for name, result in self.steps.items() if not result.get("ok")]
        if self.left_out:
            print(f"no time left for: {', '.join(self.left_out)} - run the piece again", flush=True)
        if failed:
            print(f"failed: {', '.join(failed)}", flush=True)
        return 1 if failed else 3 if self.left_out else 0
