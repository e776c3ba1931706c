"""How much a study may spend, and how much it has spent. The clock comes in from outside."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from optimizer.search._base import BudgetSpent, BuildsSpent


@dataclass(frozen=True)
class Spent:
    """What a study has used, over all its runs: give it to the :class:`Budget` of a resumed one."""

    wall_s: float = 0.0
    builds: int = 0
    gpu_s: float = 0.0


class Budget:
    """Counts, and says stop between two trials by raising :class:`BudgetSpent`. A limit of ``None`` is none.

    ``reserve_s`` of the wall clock is kept for the confirmation of finalists: searching stops that much earlier, since
    a search without a confirmation decides nothing. :meth:`release_reserve` opens it.
    """

    def __init__(
        self,
        wall_s: float | None = None,
        builds: int | None = None,
        gpu_hours: float | None = None,
        *,
        reserve_s: float = 0.0,
        spent: Spent | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wall_s = wall_s
        self.builds = builds
        self.gpu_hours = gpu_hours
        self.reserve_s = reserve_s
        self._clock = clock
        self._before = spent or Spent()
        self._started = clock()
        self._builds = self._before.builds
        self._gpu_s = self._before.gpu_s

    @property
    def spent(self) -> Spent:
        return Spent(self._before.wall_s + self._clock() - self._started, self._builds, self._gpu_s)

    @property
    def remaining_s(self) -> float | None:
        """Wall clock left for searching; ``None`` without a limit."""
        if self.wall_s is None:
            return None
        return max(0.0, self.wall_s - self.reserve_s - self.spent.wall_s)

    @property
    def search_s(self) -> float | None:
        """Wall clock that searching may take in all, whatever of it is spent: a plan made from it is the same when a
        study is resumed. ``None`` without a limit."""
        return None if self.wall_s is None else max(0.0, self.wall_s - self.reserve_s)

    def release_reserve(self) -> None:
        self.reserve_s = 0.0

    def check(self) -> None:
        """Raises :class:`BudgetSpent` where time or GPU hours are used up. Builds are asked for by the build."""
        remaining_s = self.remaining_s
        if remaining_s is not None and remaining_s <= 0:
            raise BudgetSpent(f"the time limit of {_duration(self.wall_s)} is reached")
        if self.gpu_hours is not None and self._gpu_s >= self.gpu_hours * 3600:
            raise BudgetSpent(f"the limit of {self.gpu_hours:g} GPU hours is reached")

    def spend_build(self) -> None:
        """Counts one build about to start. Raises :class:`BuildsSpent` where no more is allowed."""
        self.check()
        if self.builds is not None and self._builds >= self.builds:
            raise BuildsSpent(f"the limit of {self.builds} builds is reached")
        self._builds += 1

    def spend_gpu(self, seconds: float) -> None:
        """Counts time in which a GPU was held, builds included."""
        self._gpu_s += seconds


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "none"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
