"""What a running study tells: events with a kind and facts, to whoever listens. Standard library only.

:class:`JsonLines` passes every event on, for pipelines. :class:`Narrator` makes of them what a person reads: a line
for what is worth keeping, and one status line for the moment.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Protocol


class Progress(Protocol):
    def __call__(self, kind: str, **facts: Any) -> None:
        """``kind`` is stable, facts are JSON values; more kinds and facts may come.

        ========  ==============================================================================================
        stage     ``text``; where known ``stage`` (``sandbox``, ``references``, ``noise``, ``search``, ``confirm``),
                  ``candidates``, ``finalists``, ``pairs``
        build     ``engine``, ``route``: a build begins
        built     ``engine``, ``route``, ``build_s``, ``size_bytes``
        screen    ``candidate``, ``route``: loading and checking answers
        rejected  ``candidate``, ``stage``, ``code``, ``message``
        pair      ``candidate``, ``route``, ``purpose``, ``index``, ``log_ratio``, ``usable``, ``throughput``,
                  ``reference_throughput``
        warning   ``text``
        decision  ``verdict``, ``sentence``
        ========  ==============================================================================================

        Events of the laboratory carry the budget: ``spent_s`` and ``limit_s`` (``None``: no limit).
        """


def silent(kind: str, **facts: Any) -> None:
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


@dataclass(frozen=True)
class Line:
    """``live`` lines are for a terminal with a status line, ``log`` lines for a stream without; ``kind`` is a style."""

    text: str
    kind: str
    live: bool = True
    log: bool = True


@dataclass
class _Turn:
    """Pairs of one candidate in a row."""

    candidate: str
    route: str
    purpose: str
    ratios: list[float] = field(default_factory=list)
    unusable: int = 0
    best_before: float = -math.inf


_WHAT = {"race": "raced", "noise": "A/A", "confirm": "confirmed", "confirm-fresh": "confirmed"}


class Narrator:
    """Events in, lines out; :attr:`status` says what runs, what is known so far, and the time left. Does no I/O."""

    def __init__(self) -> None:
        self._stage = ""
        self._now = ""
        self._tried: set[str] = set()
        self._rejected: set[str] = set()
        self._race: defaultdict[str, list[float]] = defaultdict(list)
        self._labels: dict[str, str] = {}
        self._turn: _Turn | None = None
        self._spent_s = 0.0
        self._limit_s: float | None = None
        self._deciding = False

    def tell(self, kind: str, facts: Mapping[str, Any]) -> list[Line]:
        self._spent_s = facts.get("spent_s") or self._spent_s
        self._limit_s = facts.get("limit_s") or self._limit_s
        hear = {
            "stage": self._on_stage, "build": self._on_build, "built": self._on_built, "screen": self._on_screen,
            "rejected": self._on_rejected, "pair": self._on_pair, "warning": self._on_warning,
            "decision": self._on_decision,
        }.get(kind)  # fmt: skip
        return hear(facts) if hear else []

    @property
    def status(self) -> str:
        """One line; ``""`` before anything is known and after the decision."""
        if not self._stage:
            return ""
        parts = [self._stage]
        if self._limit_s:
            parts.append(f"{_clock(max(0.0, self._limit_s - self._spent_s))} left of {_clock(self._limit_s)}")
        if self._tried:
            parts.append(f"{len(self._tried)} tried, {len(self._rejected)} rejected")
        best = self._best()
        if best is not None and not self._deciding:
            parts.append(f"best so far [{_percent(best[1])}] {self._labels[best[0]]}")
        if self._now:
            parts.append(self._now)
        return " · ".join(parts)

    def _best(self) -> tuple[str, float] | None:
        means = {one: sum(ratios) / len(ratios) for one, ratios in self._race.items() if one not in self._rejected}
        return max(means.items(), key=lambda item: item[1]) if means else None

    def _on_stage(self, facts: Mapping[str, Any]) -> list[Line]:
        lines = self._end_turn()
        text = str(facts["text"])
        self._deciding = facts.get("stage") == "confirm"
        self._stage, self._now = str(facts.get("stage") or text), ""
        if facts.get("stage") == "sandbox":
            self._tried, self._rejected, self._labels = set(), set(), {}
            self._race.clear()
        return [*lines, Line(text, "stage")]

    def _on_build(self, facts: Mapping[str, Any]) -> list[Line]:
        self._now = f"building {facts['route'] or 'default'}"
        return self._end_turn()

    def _on_built(self, facts: Mapping[str, Any]) -> list[Line]:
        if facts["build_s"] < 0.05:
            return []
        size = f", {facts['size_bytes'] / 1e6:,.1f} MB"
        return [Line(f"  built     {facts['route'] or 'default'} in {facts['build_s']:.1f} s{size}", "", live=False)]

    def _on_screen(self, facts: Mapping[str, Any]) -> list[Line]:
        self._tried.add(facts["candidate"])
        self._now = f"checking {facts['route']}"
        return self._end_turn()

    def _on_rejected(self, facts: Mapping[str, Any]) -> list[Line]:
        lines = self._end_turn()
        self._rejected.add(facts["candidate"])
        name = self._labels.get(facts["candidate"], facts.get("route") or facts["candidate"])
        message = " ".join(str(facts["message"]).split())
        return [*lines, Line(f"  rejected  {name} ({facts['stage']}: {facts['code']}): {message}", "rejected")]

    def _on_pair(self, facts: Mapping[str, Any]) -> list[Line]:
        candidate, purpose = facts["candidate"], facts["purpose"]
        lines: list[Line] = []
        if self._turn is None or (self._turn.candidate, _WHAT.get(self._turn.purpose)) != (
            candidate,
            _WHAT.get(purpose),
        ):
            best = self._best()
            lines = self._end_turn()
            self._turn = _Turn(candidate, facts["route"], purpose, best_before=best[1] if best else -math.inf)
        self._labels[candidate] = facts["route"]
        self._now = f"measuring {facts['route']}" if purpose != "noise" else "measuring A/A pairs"
        if facts["usable"]:
            self._turn.ratios.append(facts["log_ratio"])
            if purpose == "race":
                self._race[candidate].append(facts["log_ratio"])
        else:
            self._turn.unusable += 1
        return lines

    def _end_turn(self) -> list[Line]:
        """What a candidate's pairs in a row came to: one line for all of them."""
        turn, self._turn = self._turn, None
        if turn is None or turn.purpose == "noise":
            return []
        count = len(turn.ratios)
        left_out = f", {turn.unusable} disturbed" if turn.unusable else ""
        over = f"over {count} pair{'' if count == 1 else 's'}{left_out}"
        what = f"  {_WHAT.get(turn.purpose, turn.purpose):9s} {turn.route}: "
        if not turn.ratios:
            return [Line(f"{what}no usable pair{left_out}", "", live=turn.purpose != "race")]
        mean = sum(turn.ratios) / count
        if turn.purpose != "race":
            return [Line(f"{what}{_percent(mean)} {over}", "confirmed")]
        best = self._best()
        leads = best is not None and best[0] == turn.candidate
        lines = [Line(f"{what}[{_percent(mean)}] {over}{', best so far' if leads else ''}", "", live=False)]
        if leads and best is not None and best[1] > turn.best_before:
            lines.append(Line(f"  best so far in the race: [{_percent(best[1])}] {turn.route}", "best", log=False))
        return lines

    def _on_warning(self, facts: Mapping[str, Any]) -> list[Line]:
        return [*self._end_turn(), Line(f"warning: {facts['text']}", "warning")]

    def _on_decision(self, facts: Mapping[str, Any]) -> list[Line]:
        lines = self._end_turn()
        self._stage = ""
        return [*lines, Line(str(facts["sentence"]), "decision")]


def _percent(log_ratio: float) -> str:
    return f"{round((math.exp(log_ratio) - 1) * 100, 1) + 0.0:+.1f}%"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
