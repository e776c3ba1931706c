"""Knobs, routes and candidates: what may be changed, one assignment, and that assignment on one model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum


class Layer(str, Enum):
    """Where a knob acts. Knobs of SERVING need no new engine; those of every other layer do."""

    PRECISION = "precision"
    BUILDER = "builder"
    PROFILE = "profile"
    COMPILER = "compiler"
    SERVING = "serving"


class KnobClass(str, Enum):
    SAFE = "safe"
    NUMERIC = "numeric"
    """Changes results within rounding: only behind an accuracy gate."""
    UNSAFE = "unsafe"
    """Its own help text warns of wrong results: left out unless named."""


@dataclass(frozen=True)
class Knob:
    """One tunable. ``values`` are texts in listed order; empty means unbounded (any integer)."""

    name: str
    layer: Layer
    values: tuple[str, ...]
    default: str
    knob_class: KnobClass = KnobClass.SAFE
    help: str = ""

    @property
    def bounded(self) -> bool:
        return bool(self.values)


@dataclass(frozen=True)
class Route:
    """An assignment of knobs, ordered by knob name. The default route assigns nothing.

    A value equal to the knob's default is left out by whoever makes the route, so that equal routes compare equal.
    """

    assignments: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, assignments: Mapping[str, str] | Iterable[tuple[str, str]]) -> Route:
        return cls(tuple(sorted(dict(assignments).items())))

    @classmethod
    def parse(cls, text: str) -> Route:
        """The reverse of :attr:`text`, for texts that were written by it: nothing is checked."""
        pairs = (part.removeprefix("-").partition("=") for part in text.split())
        return cls.of((name, value) for name, _, value in pairs)

    @property
    def text(self) -> str:
        """trtexec's form: ``-name=value -name=value``; ``""`` for the default route."""
        return " ".join(f"-{name}={value}" for name, value in self.assignments)

    @property
    def is_default(self) -> bool:
        return not self.assignments

    def get(self, name: str, default: str | None = None) -> str | None:
        return dict(self.assignments).get(name, default)

    def restricted(self, names: Iterable[str]) -> Route:
        kept = set(names)
        return Route(tuple(pair for pair in self.assignments if pair[0] in kept))

    def without(self, names: Iterable[str]) -> Route:
        dropped = set(names)
        return Route(tuple(pair for pair in self.assignments if pair[0] not in dropped))

    def merged(self, other: Route) -> Route:
        return Route.of({**dict(self.assignments), **dict(other.assignments)})


AS_FOUND = "as-found"
"""Candidate id of the model exactly as the repository has it."""


@dataclass(frozen=True)
class Candidate:
    """A Model with a Route of one engine family; ``id`` is a content hash.

    The as-found reference has ``family == AS_FOUND`` and the default route.
    """

    model: str
    model_hash: str
    family: str
    route: Route
    build_route: Route = field(default_factory=Route)
    """The part of ``route`` that needs an engine of its own: candidates that share it share the engine."""

    @property
    def id(self) -> str:
        if self.family == AS_FOUND:
            return AS_FOUND
        return _digest(self.model_hash, self.family, self.route.text)

    @property
    def engine_id(self) -> str:
        if self.family == AS_FOUND:
            return AS_FOUND
        return _digest(self.model_hash, self.family, self.build_route.text)

    @property
    def label(self) -> str:
        if self.family == AS_FOUND:
            return AS_FOUND
        return self.route.text or "default"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
