"""trtexec's three ways through a space, without its loop's faults: ``fast``, ``mixed``, ``full``.

The routes and their order come from the routes stage (fast: defaults first, then one change at a time, right to left;
full: the product, leftmost knob slowest). Here they are measured: in exactly that order, paired with the reference,
each once, however often it is listed. A route that fails accuracy has no score, so it is never "positive". The default
route is tried besides where the list does not hold it (with a pinned knob, index 0 is not the default). Ends with a
race of the best, since one or two pairs cannot tell neighbours apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from optimizer.records.route import Route
from optimizer.search._base import Laboratory, Standing
from optimizer.search.board import TYPICAL_NOISE, Board, Entry
from optimizer.search.race import RaceSettings, race

MOST_KNOBS = 10
"""Knobs that ``mixed`` combines, at most: the cap that trtexec 11.1 declares. Ten two-valued knobs are 1,024 routes."""

Expand = Callable[[Sequence[str]], Iterable[Route]]
"""The full expansion over the named knobs, every other knob as the expression pins it."""


@dataclass(frozen=True)
class SweepSettings:
    race: RaceSettings = field(default_factory=RaceSettings)
    pairs: int | None = None
    """Pairs a route; ``None``: from the noise, two at 1.5%, between one and eight."""
    positive_deviations: float = 1.0
    """Standard errors by which a change must beat the baseline to be combined with others."""

    def pairs_at(self, noise: float) -> int:
        if self.pairs is not None:
            return self.pairs
        return min(8, max(1, round(2 * (noise / TYPICAL_NOISE) ** 2)))


class _Sweep:
    """Common to the three: a board, and measuring in the given order."""

    def __init__(self, settings: SweepSettings | None) -> None:
        self._settings = settings or SweepSettings()
        self._board: Board | None = None

    @property
    def standings(self) -> tuple[Standing, ...]:
        return self._board.standings if self._board else ()

    def _measure(self, board: Board, routes: Iterable[Route]) -> list[Entry]:
        """In order; what was measured before is not measured again. The routes are never all in memory."""
        entries = []
        pairs = self._settings.pairs_at(board.noise)
        for route in routes:
            entry = board.enter(route)
            if entry.next_index == 0:
                board.try_out(entry, pairs)
            entries.append(entry)
        return entries

    def _finish(self, board: Board) -> tuple[Standing, ...]:
        settings = self._settings.race
        best = sorted((entry for entry in board.entries.values() if entry.standing), key=lambda entry: -entry.score)
        best = [entry for entry in best if not entry.is_reference][: settings.last_round]
        for entry in best:
            entry.rank += 1
        race(board, best, settings)
        return board.standings


class Fast(_Sweep):
    """Defaults, then one change at a time: 1 + the number of values that are not defaults."""

    name = "fast"

    def __init__(self, routes: Iterable[Route], settings: SweepSettings | None = None) -> None:
        super().__init__(settings)
        self._routes = routes

    def search(self, laboratory: Laboratory) -> tuple[Standing, ...]:
        board = self._board = Board(laboratory)
        self._measure(board, _with_default(self._routes))
        return self._finish(board)


class Full(Fast):
    """Every combination."""

    name = "full"


class Mixed(_Sweep):
    """``fast``, then ``full`` over the knobs that beat the baseline there."""

    name = "mixed"

    def __init__(self, fast: Iterable[Route], full: Expand, settings: SweepSettings | None = None) -> None:
        super().__init__(settings)
        self._fast = fast
        self._full = full
        self.positive: tuple[str, ...] = ()
        """Knobs that were combined, in the order in which ``fast`` listed them."""

    def search(self, laboratory: Laboratory) -> tuple[Standing, ...]:
        board = self._board = Board(laboratory)
        routes = list(self._fast)
        self._measure(board, _with_default(routes))
        if routes:
            self.positive = self._positive_knobs(board, routes)
            if self.positive:
                self._measure(board, self._full(self.positive))
        return self._finish(board)

    def _positive_knobs(self, board: Board, routes: Sequence[Route]) -> tuple[str, ...]:
        baseline = board.enter(routes[0])
        # A baseline that fails cannot be beaten; the reference, whose score is 0 by definition, takes its place.
        bar = baseline.score if baseline.standing else 0.0
        gains: dict[str, float] = {}
        listed: list[str] = []
        for route in routes[1:]:
            entry = board.enter(route)
            for name in _changed(routes[0], route):
                if name not in listed:
                    listed.append(name)
                if not entry.standing or entry is baseline:
                    continue
                variance = sum(1 / one.pairs for one in (entry, baseline) if one.standing and one.pairs)
                if entry.score - bar > self._settings.positive_deviations * board.noise * math.sqrt(variance):
                    gains[name] = max(gains.get(name, -math.inf), entry.score)
        best = sorted(gains, key=lambda name: -gains[name])[:MOST_KNOBS]
        return tuple(name for name in listed if name in best)


def _with_default(routes: Iterable[Route]) -> Iterable[Route]:
    """The default comes first where the list does not begin with it; later on it would only be a repetition."""
    return itertools.chain((Route(),), routes)


def _changed(base: Route, route: Route) -> list[str]:
    before, after = dict(base.assignments), dict(route.assignments)
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]
