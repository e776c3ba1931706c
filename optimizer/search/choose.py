"""Which strategy: what the user asked for, or what the size of the space and the budget suggest, with the reason."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from optimizer.errors import InputError
from optimizer.records.route import Knob, Route
from optimizer.search import optuna_search
from optimizer.search._base import Strategy
from optimizer.search.budget import Budget
from optimizer.search.optuna_search import knob_choices
from optimizer.search.race import Race, RaceSettings, cost, schedule
from optimizer.search.sweep import Fast, Full, Mixed, SweepSettings

NAMES = ("race", "fast", "mixed", "full", "optuna")

FEW_KNOBS = 12
"""Up to here a sampler can learn how knobs work together from a few hundred trials; with more of them, single changes
tell more for the same money."""
_SEARCH_PART = 0.6
"""Part of the time that searching may take where nothing was reserved for the confirmation."""


class SearchSpace(Protocol):
    """What a strategy needs to know of a space; the routes stage has the real one."""

    @property
    def knobs(self) -> Sequence[Knob]: ...

    @property
    def size(self) -> int: ...

    def candidates(self) -> Iterator[Route]:
        """The default, single changes, then two changes …"""

    def why_not(self, route: Route) -> str | None: ...


@dataclass(frozen=True)
class Expansions:
    """A route expression in trtexec's orders, from the routes stage."""

    fast: Callable[[], Iterable[Route]]
    full: Callable[[], Iterable[Route]]
    combine: Callable[[Sequence[str]], Iterable[Route]]
    """``full`` over the named knobs, every other knob at its baseline."""


def expansions_of(space: SearchSpace) -> Expansions:
    """The same orders where no expression was given: every knob of the space varies, broken constraints are left out.

    ``fast``: the defaults, then one change at a time, last knob first. ``full``: leftmost knob slowest.
    """

    def fast() -> Iterator[Route]:
        yield Route()
        for knob in reversed(space.knobs):
            for value in knob.values:
                route = Route.of({knob.name: value})
                if value != knob.default and space.why_not(route) is None:
                    yield route

    def product(names: Sequence[str]) -> Iterator[Route]:
        varied = [knob for knob in space.knobs if knob.name in names]
        for values in itertools.product(*(knob_choices(knob) for knob in varied)):
            route = Route.of(
                (knob.name, value) for knob, value in zip(varied, values, strict=True) if value != knob.default
            )
            if space.why_not(route) is None:
                yield route

    return Expansions(fast, lambda: product([knob.name for knob in space.knobs]), product)


def choose_strategy(
    requested: str,
    space: SearchSpace,
    expansions: Expansions | None,
    budget: Budget,
    *,
    noise: float = math.nan,
    finalists: int = 3,
    limit: int = 200,
    hints: Sequence[Route] = (),
    seconds_a_pair: float = 10.0,
    seconds_a_build: float = 0.0,
    seed: int = 0,
) -> tuple[Strategy, str]:
    """The strategy and one sentence that says why. ``limit`` is the number of candidates that ``race`` and ``optuna``
    try at most. Raises :class:`InputError` for an unknown name."""
    if requested not in (*NAMES, "auto"):
        raise InputError(
            f"{requested!r} is no search strategy", field="search.strategy", remedy=f"Use auto or {', '.join(NAMES)}."
        )
    listing = expansions or expansions_of(space)
    race_settings = RaceSettings(finalists=finalists)
    sweep = SweepSettings(race=race_settings)
    if requested == "fast":
        return Fast(listing.fast(), sweep), "asked for: the defaults, then one change at a time"
    if requested == "full":
        return Full(listing.full(), sweep), "asked for: every combination"
    if requested == "mixed":
        return Mixed(listing.fast(), listing.combine, sweep), "asked for: one change at a time, then what paid combined"
    pairs = affordable_pairs(budget, space, limit, seconds_a_pair, seconds_a_build)
    if requested == "optuna":
        return _optuna(space, race_settings, limit, pairs, hints, seed), f"asked for: up to {limit} proposals"
    if requested == "auto" and space.size > limit and len(space.knobs) <= FEW_KNOBS and optuna_search.available():
        why = (
            f"{_number(space.size)} combinations of {len(space.knobs)} knobs are more than {limit} candidates: "
            "a sampler proposes which to try"
        )
        return _optuna(space, race_settings, limit, pairs, hints, seed), why
    return _race(space, race_settings, noise, limit, pairs, hints)


def affordable_pairs(
    budget: Budget, space: SearchSpace, limit: int, seconds_a_pair: float, seconds_a_build: float
) -> int | None:
    """Race pairs that the time pays for, builds of up to ``limit`` candidates taken off; ``None``: any.

    Of the whole time and not of what is left of it, so that a resumed study plans what it planned before.
    """
    time_s = budget.search_s
    if time_s is None:
        return None
    if budget.reserve_s == 0:
        time_s *= _SEARCH_PART
    time_s -= seconds_a_build * min(limit, space.size)
    return max(0, int(time_s / max(seconds_a_pair, 1e-3)))


def _race(
    space: SearchSpace,
    settings: RaceSettings,
    noise: float,
    limit: int,
    pairs: int | None,
    hints: Sequence[Route],
) -> tuple[Strategy, str]:
    whole = space.size <= limit
    tried = min(space.size, limit)
    text = f"all {space.size} candidates race" if whole else f"{_number(space.size)} combinations are too many to try"
    if not whole:
        singles = 1 + sum(len(knob_choices(knob)) - 1 for knob in space.knobs)
        # Combinations that are listed blindly are the first to go: growing finds the ones that matter.
        tried = min(limit, max(singles, limit // 3))
        text += f": {tried} race, single changes first, and the best are combined"
    if pairs is not None:
        # Half of the pairs for everyone's first, half for telling the better ones apart.
        fitting = max(settings.finalists + 1, pairs // 2)
        if fitting < tried:
            tried = fitting
            whole = False
            text += f"; the time pays for about {pairs} comparisons, so only the first {tried} are tried"
        elif cost(schedule(tried, noise, settings)) > pairs:
            text += f"; with fewer repetitions than this noise asks for, the time pays for about {pairs} comparisons"
    race = Race(
        _first(space, tried, hints),
        settings,
        hints=hints,
        max_pairs=pairs,
        why_not=None if whole else space.why_not,
    )
    return race, text


def _optuna(
    space: SearchSpace, settings: RaceSettings, limit: int, pairs: int | None, hints: Sequence[Route], seed: int
) -> Strategy:
    trials = limit if pairs is None else max(1, min(limit, pairs // 2))
    return optuna_search.OptunaSearch(
        space.knobs,
        space.why_not,
        optuna_search.OptunaSettings(race=settings, trials=trials, seed=seed),
        hints=[route for route in hints if space.why_not(route) is None],
    )


def _first(space: SearchSpace, count: int, hints: Sequence[Route]) -> list[Route]:
    """The first ``count`` routes of the space, with the hinted ones among them."""
    names = {knob.name: set(knob_choices(knob)) for knob in space.knobs}
    known = [
        route
        for route in hints
        if all(value in names.get(name, ()) for name, value in route.assignments) and space.why_not(route) is None
    ]
    return list(dict.fromkeys(itertools.chain(known[: count // 2], itertools.islice(space.candidates(), count))))[
        :count
    ]


def _number(size: int) -> str:
    return f"{size:,}" if size < 10**7 else f"10^{len(str(size)) - 1}"
