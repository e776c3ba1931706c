"""The routes of an expression, in trtexec's order, one at a time: ``full`` may be astronomically many.

``full``: every combination, the leftmost knob changes slowest. ``fast``: first the baseline (listed knobs at their
defaults, pinned ones at their value), then one change at a time, from the last knob to the first, each over its values
in listed order. ``mixed`` starts as ``fast``; :func:`mixed_second_phase` is ``full`` over the knobs that paid off. The
order follows trtexec's code (``TuningContext::getPathAtIndex``), not the example in its README.

The baseline of ``fast`` is not the default route where a knob is pinned, and ``full`` may not hold the default at all:
whoever searches measures the default besides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from optimizer.records.route import Route
from optimizer.routes.expression import Expression, Term

MOST_POSITIVE_KNOBS = 10
"""trtexec's ``kMixedSearchMaxPositiveKnobs``, which it declares and never applies: without it phase 2 of 40 knobs is
2**40 builds."""


class Search(str, Enum):
    FAST = "fast"
    MIXED = "mixed"
    FULL = "full"


@dataclass(frozen=True)
class Expansion:
    """The routes of ``expression`` under ``search``. Indexing, counting and iterating cost no memory."""

    expression: Expression
    search: Search

    @cached_property
    def count(self) -> int:
        """Exact, of any size. For ``mixed`` it counts the first phase."""
        if not self.expression.terms:
            return 0
        if self.search is Search.FULL:
            return math.prod(len(term.values) for term in self.expression.terms)
        return 1 + sum(len(term.alternatives) for term in self.expression.terms)

    def values_at(self, index: int) -> tuple[str, ...]:
        """One value per term. Raises ``IndexError``."""
        if not 0 <= index < self.count:
            raise IndexError(f"route {index} of {self.count}")
        if self.search is Search.FULL:
            return self._combination(index)
        changed = self.change_at(index)
        return tuple(
            changed[1] if changed is not None and term is changed[0] else term.baseline
            for term in self.expression.terms
        )

    def change_at(self, index: int) -> tuple[Term, str] | None:
        """``fast`` and ``mixed``: the term that differs from the baseline, and its value; ``None`` for the baseline."""
        if self.search is Search.FULL:
            raise ValueError("full has no baseline to differ from")
        left = index - 1
        if left < 0:
            return None
        for term in reversed(self.expression.terms):
            if left < len(term.alternatives):
                return term, term.alternatives[left]
            left -= len(term.alternatives)
        raise IndexError(f"route {index} of {self.count}")

    def text_at(self, index: int) -> str:
        """trtexec's text: every listed knob with its value, defaults too, in the order of the expression."""
        return self._text(self.values_at(index))

    def route_at(self, index: int) -> Route:
        """The same as a Route: defaults left out, ordered by name."""
        return self._route(self.values_at(index))

    def texts(self) -> Iterator[str]:
        return map(self._text, self._all())

    def routes(self) -> Iterator[Route]:
        return map(self._route, self._all())

    def document(self, limit: int | None = None) -> dict[str, object]:
        """``{"count", "routes": [text, …]}`` with at most ``limit`` texts."""
        texts = []
        for index, text in enumerate(self.texts()):
            if limit is not None and index >= limit:
                break
            texts.append(text)
        return {"count": self.count, "routes": texts}

    def _all(self) -> Iterator[tuple[str, ...]]:
        index = 0
        while index < self.count:
            yield self.values_at(index)
            index += 1

    def _combination(self, index: int) -> tuple[str, ...]:
        values = []
        for term in reversed(self.expression.terms):
            index, digit = divmod(index, len(term.values))
            values.append(term.values[digit])
        return tuple(reversed(values))

    def _text(self, values: Sequence[str]) -> str:
        return " ".join(f"-{term.knob.name}={value}" for term, value in zip(self.expression.terms, values, strict=True))

    def _route(self, values: Sequence[str]) -> Route:
        return Route.of(
            (term.knob.name, value)
            for term, value in zip(self.expression.terms, values, strict=True)
            if value != term.knob.default
        )


def expand(expression: Expression, search: Search | str) -> Expansion:
    return Expansion(expression, Search(search))


def positive_knobs(expression: Expression, gains: Mapping[Route, float | None]) -> list[str]:
    """Knobs of which a single change beat the baseline in the first phase, the best first.

    ``gains`` maps a route to its gain over the baseline (positive is better). ``None``, NaN and a missing route are
    failures: whatever failed, accuracy included, is never positive.
    """
    first = expand(expression, Search.MIXED)
    best: dict[str, float] = {}
    for index in range(1, first.count):
        changed = first.change_at(index)
        gain = gains.get(first.route_at(index))
        if changed is not None and gain is not None and gain > 0:
            name = changed[0].knob.name
            best[name] = max(best.get(name, gain), gain)
    return sorted(best, key=lambda name: -best[name])


def mixed_second_phase(expression: Expression, positive: Iterable[str]) -> Expansion:
    """``full`` over the positive knobs with all their listed values, every other knob at its baseline.

    ``positive`` comes best first and must not hold knobs of failing routes (:func:`positive_knobs`); of more than
    :data:`MOST_POSITIVE_KNOBS` the first are kept. Raises ``ValueError`` for a knob that the expression does not vary.
    Up to one positive knob it holds nothing that the first phase has not measured: filter it through :func:`unseen`.
    """
    wanted = list(dict.fromkeys(positive))[:MOST_POSITIVE_KNOBS]
    varied = {term.knob.name for term in expression.terms if not term.pinned}
    strange = [name for name in wanted if name not in varied]
    if strange:
        raise ValueError(f"not varied by the expression: {', '.join(strange)}")
    terms = tuple(
        term if term.knob.name in wanted else Term(term.knob, (term.baseline,), pinned=True)
        for term in expression.terms
    )
    return Expansion(Expression(terms), Search.FULL)


def unseen(routes: Iterable[Route], measured: Iterable[Route] = ()) -> Iterator[Route]:
    """``routes`` without repeats and without those that have been measured, in order."""
    seen = set(measured)
    for route in routes:
        if route not in seen:
            seen.add(route)
            yield route
