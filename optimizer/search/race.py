"""The default strategy: screens first, then successive halving on paired log ratios.

Everyone gets a pair or two, the better third goes on and gets more, until a handful is left; whoever is clearly beaten
drops out at once. Racing decides who is a finalist and nothing else: the best of many noisy scores is too good by
construction (of 200 equal routes at 1.5% noise it looks 4% better), so the study discards these pairs and measures its
finalists afresh.

Successive halving: Karnin, Koren & Somekh, "Almost Optimal Exploration in Multi-Armed Bandits", ICML 2013.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from optimizer.records.route import AS_FOUND, Route
from optimizer.search._base import Laboratory, Standing
from optimizer.search.board import TYPICAL_NOISE, Board, Entry


@dataclass(frozen=True)
class RaceSettings:
    """The shape of a race; the defaults are what ``benchmarks/search_simulation.py`` was run with."""

    finalists: int = 3
    shrink: int = 3
    """One in ``shrink`` goes on to the next round."""
    last_round: int = 8
    """Candidates from which no further round is made."""
    pairs_from_last: tuple[int, ...] = (4, 2, 1)
    """Pairs a candidate gets at :data:`TYPICAL_NOISE` in the last round, the one before, and all earlier ones."""
    most_scaled: float = 4.0
    """Noise multiplies the pairs by (noise / typical)², by no more than this."""
    deviations: float = 3.0
    """Standard errors behind the last of the finalists' places at which a candidate is clearly beaten."""
    generations: int = 5
    """Times that the best are combined, where the race may grow, while that finds something better."""
    parents: int = 4
    """The best, which are combined with each other …"""
    changes: int = 10
    """… and with the single changes, of different knobs, that pay best."""


@dataclass(frozen=True)
class Round:
    """``candidates`` are measured with ``pairs`` pairs each, added to what they have."""

    candidates: int
    pairs: int


def schedule(
    candidates: int, noise: float, settings: RaceSettings | None = None, max_pairs: int | None = None
) -> tuple[Round, ...]:
    """Rounds for that many candidates. 200 at 1.5% noise: 200×1, 67×1, 23×2, 8×4.

    ``max_pairs`` bounds their sum: pairs are taken away evenly, down to one a candidate and round; after that rounds
    shrink faster, and at last only the first round with one pair each is left, whatever it costs.
    """
    settings = settings or RaceSettings()
    noise = noise if math.isfinite(noise) else TYPICAL_NOISE
    scale = min(settings.most_scaled, (noise / TYPICAL_NOISE) ** 2)
    rounds = _rounds(candidates, scale, settings.shrink, settings)
    if max_pairs is None:
        return rounds
    while cost(rounds) > max_pairs and any(each.pairs > 1 for each in rounds):
        scale *= 0.8
        rounds = _rounds(candidates, scale, settings.shrink, settings)
    shrink = settings.shrink
    while cost(rounds) > max_pairs and len(rounds) > 1:
        shrink *= 2
        rounds = _rounds(candidates, 0.0, shrink, settings)
        if shrink > candidates:
            return rounds[:1]
    return rounds


def _rounds(candidates: int, scale: float, shrink: int, settings: RaceSettings) -> tuple[Round, ...]:
    sizes = [candidates]
    while sizes[-1] > max(settings.last_round, settings.finalists):
        sizes.append(max(settings.finalists, math.ceil(sizes[-1] / shrink)))
    weights = settings.pairs_from_last
    rounds = []
    for place, size in enumerate(reversed(sizes)):
        rounds.append(Round(size, max(1, round(scale * weights[min(place, len(weights) - 1)]))))
    return tuple(reversed(rounds))


def cost(rounds: Sequence[Round]) -> int:
    """Pairs that the rounds take at most."""
    return sum(each.candidates * each.pairs for each in rounds)


class Race:
    """``routes`` is the space, or the part of it that is tried first; ``hints`` are routes of an earlier study, best
    first.

    With ``why_not`` (the reason why a route is not in the space, else ``None``) the race grows: the best are combined
    with each other and with the best single changes, and what that gives races against them, as long as something
    better is found. Knobs of different layers
    often pay only together (FP16 needs enough instances to show), and a list of single changes does not hold that.
    """

    name = "race"

    def __init__(
        self,
        routes: Iterable[Route],
        settings: RaceSettings | None = None,
        *,
        hints: Sequence[Route] = (),
        max_pairs: int | None = None,
        why_not: Callable[[Route], str | None] | None = None,
    ) -> None:
        self._routes = routes
        self._settings = settings or RaceSettings()
        self._hints = hints
        self._max_pairs = max_pairs
        self._why_not = why_not
        self._board: Board | None = None

    @property
    def standings(self) -> tuple[Standing, ...]:
        return self._board.standings if self._board else ()

    def search(self, laboratory: Laboratory) -> tuple[Standing, ...]:
        board = self._board = Board(laboratory)
        entries = board.enter_all(self._routes, self._hints)
        race(board, entries, self._settings, self._max_pairs)
        if self._why_not is not None:
            for _ in range(self._settings.generations):
                if not self._grow(board, self._why_not):
                    break
        return board.standings

    def _grow(self, board: Board, why_not: Callable[[Route], str | None]) -> bool:
        """Races combinations of the best against them; ``True`` where one of them is the new best."""
        parents = [entry for entry in board.best_first() if not entry.is_reference][: self._settings.parents]
        changes = _best_changes(board)[: self._settings.changes]
        left = None if self._max_pairs is None else self._max_pairs - board.pairs_taken
        routes = [
            route
            for one, other in (*itertools.combinations(parents, 2), *itertools.product(parents, changes))
            for route in (one.route.merged(other.route), other.route.merged(one.route))
            if why_not(route) is None
        ]
        entries = {id(entry): entry for entry in map(board.enter, routes)}.values()
        children = [entry for entry in entries if entry.next_index == 0 and not entry.is_reference]
        if not children or (left is not None and left < len(children)):
            return False
        generation = max(entry.rank for entry in board.entries.values())
        for entry in (*parents, *children):
            entry.rank = generation
        # The parents run again: they have survived a selection, so what they have shown is too good.
        race(board, [*parents, *children], self._settings, left)
        return board.best_first()[0] in children


def _best_changes(board: Board) -> list[Entry]:
    """The best single change of each knob that seems to pay at all, best first."""
    best: dict[str, Entry] = {}
    for entry in board.entries.values():
        if entry.standing and len(entry.route.assignments) == 1 and board.lower(entry) > 0:
            name = entry.route.assignments[0][0]
            if name not in best or entry.score > best[name].score:
                best[name] = entry
    return sorted(best.values(), key=lambda entry: -entry.score)


def race(board: Board, entries: Sequence[Entry], settings: RaceSettings, max_pairs: int | None = None) -> None:
    """Races ``entries`` on the board. Other strategies end with it, to sort out their best."""
    racing = [entry for entry in entries if not entry.is_reference]
    if len(racing) <= _places(board, settings):
        # Everyone is a finalist, and confirmation measures afresh: one pair shows that it serves under load.
        for entry in racing:
            if not entry.pairs:
                board.try_out(entry, 1)
        return
    for position, round_ in enumerate(schedule(len(racing), board.noise, settings, max_pairs)):
        if position:
            racing = _survivors(racing, round_.candidates)
            if len(racing) <= settings.finalists and position > 1:
                # Nobody can lose a place any more, and confirmation measures afresh.
                return
        _run_round(board, racing, round_.pairs, settings)


def _places(board: Board, settings: RaceSettings) -> int:
    """Places among the finalists that candidates compete for: a default route of a family may take one."""
    default_competes = any(
        entry.is_reference and entry.candidate.family != AS_FOUND for entry in board.entries.values()
    )
    return settings.finalists - default_competes


def _survivors(racing: Sequence[Entry], places: int) -> list[Entry]:
    """The best, best first: their scores set the bar that later ones in the round have to reach."""
    standing = [entry for entry in racing if entry.standing]
    standing.sort(key=lambda entry: -entry.score)
    survivors = standing[:places]
    for entry in survivors:
        entry.rank += 1
    return survivors


def _run_round(board: Board, racing: Sequence[Entry], pairs: int, settings: RaceSettings) -> None:
    leaders: list[Entry] = []

    def hopeless(entry: Entry) -> bool:
        return len(leaders) == settings.finalists and board.clearly_beaten(entry, leaders[-1], settings.deviations)

    for entry in racing:
        if board.try_out(entry, pairs, hopeless):
            leaders.append(entry)
            leaders.sort(key=lambda leader: -leader.score)
            del leaders[settings.finalists :]
