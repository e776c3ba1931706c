"""Two windows back to back: the unit of every comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from optimizer.load.generator import LoadGenerator, Window
from optimizer.records.measurement import Workload

Order = Literal["AB", "BA"]


@dataclass(frozen=True)
class WindowPair:
    reference: Window
    candidate: Window
    order: Order

    @property
    def usable(self) -> bool:
        return self.reference.measurement.usable and self.candidate.measurement.usable


def pair_order(index: int) -> Order:
    """ABBA over two pairs: a linear drift of the machine cancels. A is the reference."""
    return "AB" if index % 2 == 0 else "BA"


def run_pair(
    generator: LoadGenerator,
    reference_model: str,
    candidate_model: str,
    workload: Workload,
    order: Order,
    *,
    reference_id: str,
    candidate_id: str,
    keep_responses: int = 0,
    sample_weights: Sequence[float] | None = None,
    reference_warmup_s: float = 0.2,
    candidate_warmup_s: float = 0.2,
    drain_s: float = 10.0,
) -> WindowPair:
    """The same workload (same seed: same arrivals, same order of samples) on both models, one after the other.
    Responses are kept of the candidate only."""

    def reference() -> Window:
        return generator.run(
            reference_model,
            workload,
            candidate_id=reference_id,
            sample_weights=sample_weights,
            warmup_s=reference_warmup_s,
            drain_s=drain_s,
        )

    def candidate() -> Window:
        return generator.run(
            candidate_model,
            workload,
            candidate_id=candidate_id,
            keep_responses=keep_responses,
            sample_weights=sample_weights,
            warmup_s=candidate_warmup_s,
            drain_s=drain_s,
        )

    if order == "AB":
        first = reference()
        return WindowPair(first, candidate(), order)
    second = candidate()
    return WindowPair(reference(), second, order)
