"""The product of knobs under constraints: how many routes there are, which, and which are near one another. Pure."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from optimizer.errors import InputError
from optimizer.records.route import Knob, Layer, Route

Values = Mapping[str, str]
"""A value for every knob of a space."""

ENGINES_SHARE = 6
"""A shortlist spends about one in so many candidates on an engine that no other candidate has: builds cost minutes,
serving settings of a built engine cost seconds."""


@dataclass(frozen=True)
class Constraint:
    """Something that must hold between knobs. ``allows`` sees the values of ``knobs`` and no others. It is not
    applied where the space lacks one of them, nor where all of them have their defaults: what is there today is
    allowed, whatever else changes.
    """

    knobs: tuple[str, ...]
    reason: str
    """What is wrong with an assignment that breaks it, for people."""
    allows: Callable[[Values], bool]


@dataclass(frozen=True)
class Space:
    """Products of the knobs' values under constraints.

    The default route is always in it, whatever is ``pinned``: it is what the others are compared with. All others
    have the pinned values. Knobs are bounded and have distinct names; ``ValueError`` otherwise.
    """

    knobs: tuple[Knob, ...]
    constraints: tuple[Constraint, ...] = ()
    pinned: Route = field(default_factory=Route)
    held: tuple[tuple[str, str], ...] = ()
    """Values of knobs that are not searched, for constraints that name them."""
    limit: int | None = None
    """:meth:`candidates` yields a shortlist of so many routes where the space is larger."""

    def __post_init__(self) -> None:
        names = [knob.name for knob in self.knobs]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"knobs named twice: {', '.join(twice)}")
        unbounded = [knob.name for knob in self.knobs if not knob.bounded]
        if unbounded:
            raise ValueError(f"knobs without values: {', '.join(unbounded)}")
        unknown = [name for name, _ in self.pinned.assignments if name not in names]
        if unknown:
            raise ValueError(f"pinned, but no knobs of the space: {', '.join(unknown)}")

    @property
    def default(self) -> Route:
        return Route()

    @cached_property
    def size(self) -> int:
        """Exact number of routes, the default included, without ``limit``; unconstrained knobs cost nothing."""
        tied = frozenset().union(*self._groups)
        free = math.prod(len(self._choices(knob)) for knob in self.knobs if knob.name not in tied)
        return free * math.prod(self._count(group) for group in self._groups) + bool(self.pinned.assignments)

    def candidates(self) -> Iterator[Route]:
        """Every route once, lazily, the default first; a shortlist where there are more than ``limit``."""
        if self.limit is not None and self.size > self.limit:
            return iter(self.shortlist(self.limit))
        return self.everything()

    def everything(self) -> Iterator[Route]:
        """The default route, then those with one change, then two … in knob and value order."""
        yield Route()
        open_knobs = [knob for knob in self.knobs if self._alternatives(knob)]
        for changes in range(len(open_knobs) + 1):
            for chosen in itertools.combinations(open_knobs, changes):
                for values in itertools.product(*map(self._alternatives, chosen)):
                    route = self.pinned.merged(Route.of(zip((knob.name for knob in chosen), values, strict=True)))
                    if not route.is_default and self.why_not(route) is None:
                        yield route

    def shortlist(self, limit: int, seed: int = 0) -> list[Route]:
        """At most ``limit`` routes, the default first, then all single changes, then combinations spread over the
        space: a few engines, each under many serving settings. Deterministic for a seed.
        """
        if self.size <= limit:
            return list(self.everything())
        singles = list(itertools.islice(self._singles(), max(0, limit)))
        chosen = dict.fromkeys(singles)
        serving = [knob for knob in self.knobs if knob.layer is Layer.SERVING]
        building = [knob for knob in self.knobs if knob.layer is not Layer.SERVING]
        # Engines whose single change is in the list already come first: they are built anyway.
        engines = list(dict.fromkeys(self._part(route, building) for route in singles))
        more = self._random_parts(building, seed, limit // ENGINES_SHARE if serving else limit)
        engines = list(dict.fromkeys([*engines, *more]))
        draws = 0
        chance = random.Random(seed)
        while len(chosen) < limit and draws < 50 * limit:
            engine = engines[draws % len(engines)]
            draws += 1
            picked = {knob.name: chance.choice(self._choices(knob)) for knob in serving}
            route = self._route({**self._values(engine), **picked})
            if self.why_not(route) is None:
                chosen.setdefault(route)
        return list(chosen)[: max(0, limit)]

    def neighbours(self, route: Route) -> Iterator[Route]:
        """Routes one change away. Where a constraint forbids a single change, those two changes away instead."""
        values = self._values(route)
        seen = {route}
        for knob in self.knobs:
            for value in self._choices(knob):
                if value == values[knob.name]:
                    continue
                for near in self._repairs({**values, knob.name: value}, knob.name):
                    if near not in seen:
                        seen.add(near)
                        yield near

    def canonical(self, route: Route) -> Route:
        """``route`` without assignments of the default. Raises :class:`InputError` for a knob or value not in the
        space, or a broken constraint.
        """
        known = {knob.name: knob for knob in self.knobs}
        for name, value in route.assignments:
            if name not in known:
                raise InputError(
                    f"no such knob in this study: {name}", field=name, remedy=f"knobs here: {', '.join(sorted(known))}"
                )
            if value not in (known[name].default, *self._choices(known[name])):
                raise InputError(
                    f"{value!r} is not a value in this study",
                    field=name,
                    remedy=f"use {'|'.join(self._choices(known[name]))}",
                )
        short = Route.of((name, value) for name, value in route.assignments if value != known[name].default)
        broken = self.why_not(short)
        if broken:
            raise InputError(broken, field=short.text, remedy="change one of the two")
        return short

    def why_not(self, route: Route) -> str | None:
        """The reason of the first constraint that ``route`` breaks; ``None`` if it may be tried."""
        return self._broken({**self._known, **dict(route.assignments)})

    def serving_part(self, route: Route) -> Route:
        """The part of ``route`` that needs no new engine."""
        return self._part(route, [knob for knob in self.knobs if knob.layer is Layer.SERVING])

    def build_part(self, route: Route) -> Route:
        """The part of ``route`` that needs an engine of its own."""
        return route.without(knob.name for knob in self.knobs if knob.layer is Layer.SERVING)

    @cached_property
    def _defaults(self) -> dict[str, str]:
        return {knob.name: knob.default for knob in self.knobs}

    @cached_property
    def _known(self) -> dict[str, str]:
        """The defaults, and what is held."""
        return {**dict(self.held), **self._defaults}

    def _values(self, route: Route) -> dict[str, str]:
        """All values of a route other than the default one, or of a part of one: with what is pinned."""
        return {**self._known, **dict(self.pinned.assignments), **dict(route.assignments)}

    def _route(self, values: Values) -> Route:
        return Route.of((name, values[name]) for name, default in self._defaults.items() if values[name] != default)

    @staticmethod
    def _part(route: Route, knobs: Iterable[Knob]) -> Route:
        return route.restricted(knob.name for knob in knobs)

    def _choices(self, knob: Knob) -> tuple[str, ...]:
        pin = self.pinned.get(knob.name)
        if pin is not None:
            return (pin,)
        return knob.values if knob.default in knob.values else (knob.default, *knob.values)

    def _alternatives(self, knob: Knob) -> tuple[str, ...]:
        return () if self.pinned.get(knob.name) is not None else tuple(v for v in knob.values if v != knob.default)

    def _singles(self) -> Iterator[Route]:
        """The default, the pinned values alone, then their neighbours: single changes, and pairs that only go
        together."""
        yield Route()
        if not self.pinned.is_default and self.why_not(self.pinned) is None:
            yield self.pinned
        yield from (route for route in self.neighbours(self.pinned) if not route.is_default)

    def _random_parts(self, knobs: list[Knob], seed: int, wanted: int) -> list[Route]:
        chance = random.Random(seed + 1)
        found: dict[Route, None] = {}
        for _ in range(20 * wanted):
            if len(found) >= wanted:
                break
            values = {**self._values(Route()), **{knob.name: chance.choice(self._choices(knob)) for knob in knobs}}
            if self._broken(values) is None:
                found.setdefault(self._part(self._route(values), knobs))
        return list(found)

    def _broken(self, values: Values) -> str | None:
        for constraint in self._applicable:
            if not self._holds(constraint, values):
                return constraint.reason
        return None

    def _holds(self, constraint: Constraint, values: Values) -> bool:
        seen = {name: values[name] for name in constraint.knobs}
        return all(value == self._known[name] for name, value in seen.items()) or constraint.allows(seen)

    def _repairs(self, values: dict[str, str], kept: str) -> Iterator[Route]:
        if self._broken(values) is None:
            yield self._route(values)
            return
        partners = {name for constraint in self._applicable if kept in constraint.knobs for name in constraint.knobs}
        for knob in self.knobs:
            if knob.name == kept or knob.name not in partners:
                continue
            for value in self._choices(knob):
                repaired = {**values, knob.name: value}
                if value != values[knob.name] and self._broken(repaired) is None:
                    yield self._route(repaired)

    @cached_property
    def _applicable(self) -> tuple[Constraint, ...]:
        searched, known = set(self._defaults), set(self._known)
        return tuple(each for each in self.constraints if searched & set(each.knobs) and known >= set(each.knobs))

    @cached_property
    def _groups(self) -> tuple[frozenset[str], ...]:
        """Knobs tied together by constraints, directly or through others."""
        groups: list[frozenset[str]] = []
        for constraint in self._applicable:
            joined = frozenset(constraint.knobs) & self._defaults.keys()
            for group in [group for group in groups if group & joined]:
                groups.remove(group)
                joined |= group
            groups.append(joined)
        return tuple(groups)

    def _count(self, group: frozenset[str]) -> int:
        tied = [knob for knob in self.knobs if knob.name in group]
        constraints = [each for each in self._applicable if group & set(each.knobs)]
        count = 0
        for combination in itertools.product(*map(self._choices, tied)):
            values = {**self._known, **dict(zip((knob.name for knob in tied), combination, strict=True))}
            count += all(self._holds(each, values) for each in constraints)
        return count
