"""The search strategies' contract. A strategy decides what to try; a Laboratory tries it and remembers.

A strategy is deterministic given the outcomes, and the laboratory answers from the ledger what was tried before, so an
interrupted search is resumed by running the strategy again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from optimizer.records.candidate import Pair, Rejection
from optimizer.records.route import Candidate, Route


class BudgetSpent(Exception):
    """Raised by the laboratory between two trials; a strategy lets it pass, and the study decides with what it has:
    the strategy's ``standings``."""


class BuildsSpent(BudgetSpent):
    """No engine may be built any more. Raised by ``screen`` alone; a strategy goes on with candidates whose engine is
    there already."""


class Laboratory(Protocol):
    """Runs trials. Every method answers from the ledger first, and records before it returns."""

    @property
    def default(self) -> Candidate:
        """The reference of the search: the family's default route, or as-found where that cannot be served."""

    @property
    def noise(self) -> float:
        """Standard deviation of ln ratio over the A/A pairs of the reference; NaN where it was not measured."""

    def candidate(self, route: Route) -> Candidate: ...

    def screen(self, candidate: Candidate) -> Rejection | None:
        """Builds, loads, validates on the ``tune`` set, checks constraints. ``None``: it may compete."""

    def pair(self, candidate: Candidate, index: int, purpose: str = "race") -> Pair | Rejection:
        """One paired comparison with the reference. An unusable pair is not repeated under its index: whoever asks
        goes on with the next one."""


@dataclass(frozen=True)
class Standing:
    """A candidate's place after the search. ``score`` is the mean log ratio of its race pairs: it orders finalists and
    is never reported as the gain."""

    candidate: Candidate
    score: float
    pairs: int


class Strategy(Protocol):
    name: str

    @property
    def standings(self) -> Sequence[Standing]:
        """The best so far, best first, at any moment: also after :meth:`search` was left by an exception."""

    def search(self, laboratory: Laboratory) -> Sequence[Standing]:
        """Standings of the candidates that survived, best first; what failed a screen or a pair is not among them.

        The default route is tried whatever the space. Where the reference is an engine family's default route, it
        stands with score 0 and no pairs: it may be the best answer to give instead of as-found.
        """
