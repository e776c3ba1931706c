"""One space over all layers: the knobs in play, what must hold between them, and the routes that satisfy it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from optimizer.errors import InputError
from optimizer.records.model import Model
from optimizer.records.route import Knob, Layer, Route
from optimizer.routes import serving

Values = Mapping[str, str]
"""A value for every knob of a space."""


@dataclass(frozen=True)
class Constraint:
    """Something that must hold between knobs. ``allows`` sees the values of ``knobs`` and no others; a constraint
    that names a knob the space does not have is not applied.
    """

    knobs: tuple[str, ...]
    reason: str
    """What is wrong with an assignment that breaks it, for people."""
    allows: Callable[[Values], bool]


@dataclass(frozen=True)
class Space:
    """Products of the knobs' values under constraints. The default route is always in it: it is what is there."""

    knobs: tuple[Knob, ...]
    constraints: tuple[Constraint, ...] = ()

    def __post_init__(self) -> None:
        names = [knob.name for knob in self.knobs]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"knobs named twice: {', '.join(twice)}")
        unbounded = [knob.name for knob in self.knobs if not knob.bounded]
        if unbounded:
            raise ValueError(f"knobs without values: {', '.join(unbounded)}")

    @property
    def default(self) -> Route:
        return Route()

    @cached_property
    def size(self) -> int:
        """Exact number of routes, the default included; any number of unconstrained knobs costs nothing."""
        independent = math.prod(
            len(_choices(knob)) for knob in self.knobs if not any(knob.name in group for group in self._groups)
        )
        return independent * math.prod(self._count(group) for group in self._groups)

    def candidates(self) -> Iterator[Route]:
        """Every route once, lazily: the default, then those with one change, then two … in knob and value order."""
        yield Route()
        for changes in range(1, len(self.knobs) + 1):
            for chosen in itertools.combinations(self.knobs, changes):
                for values in itertools.product(*(_changes(knob) for knob in chosen)):
                    route = Route.of(zip((knob.name for knob in chosen), values, strict=True))
                    if self.why_not(route) is None:
                        yield route

    def neighbours(self, route: Route) -> Iterator[Route]:
        """Routes one change away. Where a constraint forbids a single change, those two changes away instead."""
        values = self._values(route)
        seen = {route}
        for knob in self.knobs:
            for value in _choices(knob):
                if value == values[knob.name]:
                    continue
                changed = {**values, knob.name: value}
                for near in self._repairs(changed, knob.name):
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
            if value not in _choices(known[name]):
                raise InputError(
                    f"{value!r} is not a value in this study", field=name, remedy=f"use {'|'.join(known[name].values)}"
                )
        short = Route.of((name, value) for name, value in route.assignments if value != known[name].default)
        broken = self.why_not(short)
        if broken:
            raise InputError(broken, field=short.text, remedy="change one of the two")
        return short

    def why_not(self, route: Route) -> str | None:
        """The reason of the first constraint that ``route`` breaks; ``None`` if it may be tried. The default may."""
        return None if route.is_default else self._broken(self._values(route))

    def _broken(self, values: Values) -> str | None:
        for constraint in self._applicable:
            if not constraint.allows({name: values[name] for name in constraint.knobs}):
                return constraint.reason
        return None

    def _values(self, route: Route) -> dict[str, str]:
        return {**{knob.name: knob.default for knob in self.knobs}, **dict(route.assignments)}

    def _route(self, values: Values) -> Route:
        return Route.of((knob.name, values[knob.name]) for knob in self.knobs if values[knob.name] != knob.default)

    def _repairs(self, values: dict[str, str], kept: str) -> Iterator[Route]:
        if self._broken(values) is None or self._route(values).is_default:
            yield self._route(values)
            return
        partners = {name for constraint in self._applicable if kept in constraint.knobs for name in constraint.knobs}
        for knob in self.knobs:
            if knob.name == kept or knob.name not in partners:
                continue
            for value in _choices(knob):
                repaired = {**values, knob.name: value}
                if self._broken(repaired) is None:
                    yield self._route(repaired)

    @cached_property
    def _applicable(self) -> tuple[Constraint, ...]:
        names = {knob.name for knob in self.knobs}
        return tuple(constraint for constraint in self.constraints if names.issuperset(constraint.knobs))

    @cached_property
    def _groups(self) -> tuple[frozenset[str], ...]:
        """Knobs tied together by constraints, directly or through others."""
        groups: list[frozenset[str]] = []
        for constraint in self._applicable:
            joined = frozenset(constraint.knobs)
            for group in [group for group in groups if group & joined]:
                groups.remove(group)
                joined |= group
            groups.append(joined)
        return tuple(groups)

    def _count(self, group: frozenset[str]) -> int:
        tied = [knob for knob in self.knobs if knob.name in group]
        constraints = [constraint for constraint in self._applicable if group.issuperset(constraint.knobs)]
        count = 0
        default = tuple(knob.default for knob in tied)
        for values in itertools.product(*(_choices(knob) for knob in tied)):
            assigned = dict(zip((knob.name for knob in tied), values, strict=True))
            count += values == default or all(
                constraint.allows({name: assigned[name] for name in constraint.knobs}) for constraint in constraints
            )
        return count


def default_space(
    model: Model,
    family_knobs: Sequence[Knob],
    *,
    gpu: bool,
    cores: int,
    family: str = "",
    engine_memory_bytes: int | None = None,
    memory_limit_bytes: int | None = None,
) -> Space:
    """The space that is searched where the user names no routes: the family's knobs and Triton's, on this machine.

    ``engine_memory_bytes`` is what one instance needs and ``memory_limit_bytes`` what all may take, where known.
    """
    knobs = (*family_knobs, *serving.serving_knobs(model, gpu=gpu, cores=cores, family=family))
    return Space(
        tuple(knob for knob in knobs if knob.bounded),
        tuple(
            serving_constraints(
                gpu=gpu,
                cores=cores,
                engine_memory_bytes=engine_memory_bytes,
                memory_limit_bytes=memory_limit_bytes,
            )
        ),
    )


def candidate_routes(space: Space, limit: int | None = None) -> list[Route]:
    """The first ``limit`` routes of ``space`` without the default: single changes first, then pairs …"""
    return list(itertools.islice(space.candidates(), 1, None if limit is None else limit + 1))


def serving_constraints(
    *, gpu: bool, cores: int, engine_memory_bytes: int | None = None, memory_limit_bytes: int | None = None
) -> Iterable[Constraint]:
    """What must hold between serving knobs, and between them and an engine's."""
    batching, delay, preferred = serving.DYNAMIC_BATCHING, serving.QUEUE_DELAY, serving.PREFERRED_SIZES
    yield Constraint(
        (batching, delay), "a queue delay needs dynamic batching", lambda v: v[batching] == "on" or v[delay] == "0"
    )
    yield Constraint(
        (batching, preferred),
        "preferred batch sizes need dynamic batching",
        lambda v: v[batching] == "on" or v[preferred] == serving.NO_SIZES,
    )
    yield Constraint(
        (delay, preferred),
        "without a queue delay the batcher waits for no preferred size",
        lambda v: v[delay] != "0" or v[preferred] == serving.NO_SIZES,
    )
    yield Constraint(
        (serving.MAX_BATCH_SIZE, preferred),
        "a preferred batch size is larger than max_batch_size",
        lambda v: max(serving.batch_sizes(v[preferred]), default=0) <= int(v[serving.MAX_BATCH_SIZE]),
    )
    if not gpu:
        yield Constraint(
            (serving.INSTANCES, "intra_op_threads"),
            f"more than twice as many threads as the {cores} cores",
            lambda v: int(v[serving.INSTANCES]) * (int(v["intra_op_threads"]) or cores) <= 2 * cores,
        )
    if engine_memory_bytes is not None and memory_limit_bytes is not None:
        yield Constraint(
            (serving.INSTANCES,),
            f"{engine_memory_bytes / 2**20:.0f} MiB an instance do not fit {memory_limit_bytes / 2**20:.0f} MiB",
            lambda v: int(v[serving.INSTANCES]) * engine_memory_bytes <= memory_limit_bytes,
        )


def serving_only(route: Route, knobs: Iterable[Knob]) -> Route:
    """The part of ``route`` that needs no new engine."""
    return route.restricted(knob.name for knob in knobs if knob.layer is Layer.SERVING)


def build_only(route: Route, knobs: Iterable[Knob]) -> Route:
    """The part of ``route`` that needs an engine of its own."""
    return route.without(knob.name for knob in knobs if knob.layer is Layer.SERVING)


def _choices(knob: Knob) -> tuple[str, ...]:
    return knob.values if knob.default in knob.values else (knob.default, *knob.values)


def _changes(knob: Knob) -> tuple[str, ...]:
    return tuple(value for value in knob.values if value != knob.default)
