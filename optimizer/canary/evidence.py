"""What one step of a canary has seen. Records only; who gathers them is :mod:`optimizer.canary.arms`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Latencies = npt.NDArray[Any]


def no_latencies() -> Latencies:
    return np.empty(0)


@dataclass(frozen=True)
class Compared:
    """Answers of the candidate held against the expected ones.

    ``mismatches`` counts answers beyond a tolerance, or with a defect (shape, data type, a missing output);
    ``non_finite`` those with NaN or infinities that the expected answer does not have. ``counted`` holds misses and
    units, by tolerance text, of metrics that allow a fraction of misses.
    """

    comparisons: int = 0
    mismatches: int = 0
    non_finite: int = 0
    distinct: int = 0
    """Different inputs among them: a fault that depends on the input shows only on inputs that have it."""
    first: str = ""
    counted: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ArmWindow:
    """One arm in one window. Memory in bytes at both ends, ``None`` where it cannot be read for this arm alone."""

    requests: int
    """Answered."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Reason to count, as the client saw it."""
    throughput: float = 0.0
    latencies_us: Latencies = field(default_factory=no_latencies)
    memory_before: int | None = None
    memory_after: int | None = None
    restarted: str = ""
    """How it was noticed; empty: not restarted."""
    server_requests: int | None = None
    """Requests that Triton counted for the model in the window, whoever sent them; ``None``: not known."""
    server_failures: Mapping[str, int] = field(default_factory=dict)
    """Of these the failed ones, by the reason that its metrics name."""
    usable: bool = True
    note: str = ""


@dataclass(frozen=True)
class WindowPair:
    """The same load on both arms, at once (shadow) or back to back."""

    baseline: ArmWindow
    candidate: ArmWindow
    compared: Compared = field(default_factory=Compared)

    @property
    def usable(self) -> bool:
        return self.baseline.usable and self.candidate.usable


@dataclass(frozen=True)
class StepEvidence:
    """Everything of one step; nothing of an earlier one."""

    pairs: Sequence[WindowPair] = ()
    timed: bool = True
    """Latency and throughput mean something: the arms ran one at a time."""

    @property
    def comparisons(self) -> int:
        return sum(pair.compared.comparisons for pair in self.pairs)

    def requests(self) -> tuple[int, int]:
        """Answered by baseline and candidate."""
        return (
            sum(pair.baseline.requests for pair in self.pairs),
            sum(pair.candidate.requests for pair in self.pairs),
        )
