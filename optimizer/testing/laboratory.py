"""A laboratory without a server: the truth is given, only the measurement is drawn.

It runs the real strategies and the real judge in microseconds a pair, for simulations and for tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from optimizer.records.candidate import Pair, Rejection, Stage
from optimizer.records.route import AS_FOUND, Candidate, Route
from optimizer.search._base import BudgetSpent

_BLOCK = 8


class SimulatedLaboratory:
    """Implements :class:`optimizer.search._base.Laboratory`.

    ``truth`` maps routes to their true ln ratio over the reference (missing: 0). Pair ``i`` of a candidate for a
    purpose is the same whenever it is asked for, in whatever order: drawn from ``seed``, the route's place in
    ``truth`` and ``i``, normally with standard deviation ``noise``. p99 falls as the objective rises, with a noise of
    its own. A route that is not in ``truth`` shares its draws with the others that are not. ``log`` lists every trial
    that was really run.
    """

    def __init__(
        self,
        truth: Mapping[Route, float],
        *,
        noise: float = 0.015,
        p99_noise: float = 0.0,
        seed: int = 0,
        known_noise: float | None = None,
        rejected: Mapping[Route, Stage] | None = None,
        unusable: Callable[[Candidate, int], bool] | None = None,
        default: Candidate | None = None,
        max_pairs: int | None = None,
        build_knobs: Sequence[str] | None = None,
    ) -> None:
        self.truth = truth
        self.log: list[tuple[str, str, int]] = []
        self.pairs_run = 0
        self._noise = noise
        self._p99_noise = p99_noise
        self._known_noise = noise if known_noise is None else known_noise
        self._seed = seed
        self._rejected: Mapping[Route, Stage] = {} if rejected is None else rejected
        self._unusable = unusable
        self._max_pairs = max_pairs
        self._build_knobs = build_knobs
        self._default = default or Candidate("simulated", "0", AS_FOUND, Route())
        self._places = {route: place for place, route in enumerate(truth)}
        self._drawn: dict[tuple[str, int], np.ndarray[Any, np.dtype[np.float64]]] = {}
        self._memory: dict[tuple[str, str, int], Pair | Rejection | None] = {}

    @property
    def default(self) -> Candidate:
        return self._default

    @property
    def noise(self) -> float:
        return self._known_noise

    def candidate(self, route: Route) -> Candidate:
        build = route if self._build_knobs is None else route.restricted(self._build_knobs)
        return Candidate("simulated", "0", "simulated", route, build)

    def screen(self, candidate: Candidate) -> Rejection | None:
        key = ("screen", candidate.route.text, 0)
        if key not in self._memory:
            self._spend()
            self.log.append(key)
            stage = self._rejected.get(candidate.route)
            self._memory[key] = (
                None if stage is None else Rejection(candidate.id, stage, "simulated", f"fails at {stage.value}")
            )
        outcome = self._memory[key]
        return outcome if isinstance(outcome, Rejection) else None

    def pair(self, candidate: Candidate, index: int, purpose: str = "race") -> Pair | Rejection:
        key = (purpose, candidate.route.text, index)
        known = self._memory.get(key)
        if known is not None:
            return known
        self._spend()
        self.pairs_run += 1
        self.log.append(key)
        truth = self.truth.get(candidate.route, 0.0)
        drawn = self._draw(candidate.route, purpose, index)
        log_ratio = truth + self._noise * drawn[0]
        usable = self._unusable is None or not self._unusable(candidate, index)
        pair = Pair(
            candidate_id=candidate.id,
            reference_id=self._default.id,
            purpose=purpose,
            index=index,
            log_ratio=log_ratio,
            p99_log_ratio=self._p99_noise * drawn[1] - truth,
            reference_throughput=1000.0,
            candidate_throughput=1000.0 * math.exp(log_ratio),
            usable=usable,
            note="" if usable else "simulated disturbance",
        )
        self._memory[key] = pair
        return pair

    def allow(self, max_pairs: int | None) -> None:
        """Changes the number of pairs that may be measured; ``None``: any."""
        self._max_pairs = max_pairs

    def _draw(self, route: Route, purpose: str, index: int) -> tuple[float, float]:
        """Two independent standard normal numbers: for the objective and for p99."""
        block = (purpose, index // _BLOCK)
        drawn = self._drawn.get(block)
        if drawn is None:
            stream = np.random.default_rng([self._seed, index // _BLOCK, *purpose.encode()])
            drawn = self._drawn[block] = stream.standard_normal((_BLOCK, len(self._places) + 1, 2))
        objective, p99 = drawn[index % _BLOCK, self._places.get(route, len(self._places))]
        return float(objective), float(p99)

    def _spend(self) -> None:
        if self._max_pairs is not None and self.pairs_run >= self._max_pairs:
            raise BudgetSpent(f"{self._max_pairs} pairs are measured")
