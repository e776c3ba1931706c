"""What a search knows: who was tried, what came of it, and who stands where. Shared by every strategy.

It asks the laboratory for each candidate at most once, for each pair at most once, and counts as a result only what
passed its screen: a candidate that fails accuracy has no score at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from optimizer.records.candidate import Rejection
from optimizer.records.route import AS_FOUND, Candidate, Route
from optimizer.search._base import BuildsSpent, Laboratory, Standing

TYPICAL_NOISE = 0.015
"""Standard deviation of one pair's ln ratio where none was measured: a quiet GPU server."""

_SPARE = 2
"""Unusable pairs that a candidate may have in one round, beyond as many as it is asked for."""


@dataclass
class Entry:
    """One candidate in a search. ``rank`` is how many rounds of elimination it survived."""

    candidate: Candidate
    route: Route
    log_ratios: list[float] = field(default_factory=list)
    next_index: int = 0
    rank: int = 0
    rejection: Rejection | None = None
    is_reference: bool = False
    total: float = 0.0

    @property
    def score(self) -> float:
        """Mean log ratio; 0 for the reference, −inf where nothing was measured."""
        if self.is_reference:
            return 0.0
        return self.total / len(self.log_ratios) if self.log_ratios else -math.inf

    @property
    def pairs(self) -> int:
        return len(self.log_ratios)

    @property
    def standing(self) -> bool:
        """It was measured and nothing speaks against it."""
        return self.rejection is None and (self.is_reference or bool(self.log_ratios))


class Board:
    def __init__(self, laboratory: Laboratory) -> None:
        self._laboratory = laboratory
        self.noise = laboratory.noise if math.isfinite(laboratory.noise) else TYPICAL_NOISE
        self.entries: dict[str, Entry] = {}
        self._by_route: dict[Route, Entry] = {}
        self.not_built: list[Route] = []
        """Left out because no engine may be built any more."""

    def enter(self, route: Route) -> Entry:
        """The route's entry; routes that mean one candidate share it. Nothing is built or measured yet."""
        known = self._by_route.get(route)
        if known is not None:
            return known
        candidate = self._laboratory.candidate(route)
        entry = self.entries.get(candidate.id)
        if entry is None:
            reference = candidate.id == self._laboratory.default.id
            entry = Entry(candidate, route, is_reference=reference)
            self.entries[candidate.id] = entry
        self._by_route[route] = entry
        return entry

    def enter_all(self, routes: Iterable[Route], hints: Sequence[Route] = ()) -> list[Entry]:
        """The default route first, then hinted routes that are in the space, then the others in their order.

        Candidates that share an engine follow each other, at the place of the first: one build serves them all.
        Hints only order: what an earlier study found is worth trying first, and is measured like everything else.
        """
        order = {route: position for position, route in enumerate(hints)}
        listed = list(routes)
        listed.sort(key=lambda route: order.get(route, len(order)))
        entries = list({id(entry): entry for entry in map(self.enter, [Route(), *listed])}.values())
        engines: dict[str, int] = {}
        places = [engines.setdefault(entry.candidate.engine_id, len(engines)) for entry in entries]
        return [entry for _, entry in sorted(zip(places, entries, strict=True), key=lambda pair: pair[0])]

    def try_out(self, entry: Entry, pairs: int, hopeless: Callable[[Entry], bool] | None = None) -> bool:
        """Screens (once) and measures until the entry has ``pairs`` more usable pairs; ``True`` while it stands.

        ``hopeless`` may end it early, after any pair. Lets :class:`BudgetSpent` pass, with what was measured kept.
        """
        if entry.is_reference:
            return True
        if entry.rejection is not None:
            return False
        if entry.next_index == 0:
            try:
                entry.rejection = self._laboratory.screen(entry.candidate)
            except BuildsSpent:
                self.not_built.append(entry.route)
                return False
            if entry.rejection is not None:
                return False
        wanted = entry.pairs + pairs
        allowed = entry.next_index + 2 * pairs + _SPARE
        while entry.pairs < wanted and entry.next_index < allowed:
            outcome = self._laboratory.pair(entry.candidate, entry.next_index)
            entry.next_index += 1
            if isinstance(outcome, Rejection):
                entry.rejection = outcome
                return False
            if outcome.usable and math.isfinite(outcome.log_ratio):
                entry.log_ratios.append(outcome.log_ratio)
                entry.total += outcome.log_ratio
            if hopeless is not None and hopeless(entry):
                break
        return entry.standing

    def lower(self, entry: Entry) -> float:
        """Score less one standard error: orders candidates that have different numbers of pairs."""
        return entry.score - self.noise / math.sqrt(entry.pairs) if entry.pairs else entry.score

    def clearly_beaten(self, entry: Entry, by: Entry, deviations: float) -> bool:
        """Its score lies below the other's by more than ``deviations`` standard errors of their difference."""
        if entry.is_reference or not entry.pairs or not by.standing:
            return False
        variance = 1 / entry.pairs + (1 / by.pairs if by.pairs else 0.0)
        return by.score - entry.score > deviations * self.noise * math.sqrt(variance)

    def best_first(self) -> list[Entry]:
        """Who stands: who survived more rounds first, then by :meth:`lower`; ties in the order of entering.

        The reference never drops out, and stands by its score of 0 among those that came furthest.
        """
        standing = [entry for entry in self.entries.values() if entry.standing]
        furthest = max((entry.rank for entry in standing), default=0)
        standing.sort(key=lambda entry: (-(furthest if entry.is_reference else entry.rank), -self.lower(entry)))
        return standing

    @property
    def standings(self) -> tuple[Standing, ...]:
        """:meth:`best_first`. As-found as the reference is left out: everyone is compared with it, and it is not an
        answer of a search."""
        return tuple(
            Standing(entry.candidate, entry.score, entry.pairs)
            for entry in self.best_first()
            if entry.candidate.family != AS_FOUND
        )

    @property
    def pairs_taken(self) -> int:
        return sum(entry.pairs for entry in self.entries.values())
