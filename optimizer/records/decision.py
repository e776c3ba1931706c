"""A Decision: the winner, or what is there, with the interval, the reasons, and what was excluded and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Verdict(str, Enum):
    WINNER = "winner"
    KEEP = "keep"


class KeepReason(str, Enum):
    NOTHING_ELIGIBLE = "nothing_eligible"
    GAIN_BELOW_MINIMUM = "gain_below_minimum"
    TOO_NOISY = "too_noisy"
    LATENCY_GUARD = "latency_guard"
    ERRORS = "errors"
    NO_TOLERANCE = "no_tolerance"
    ACCURACY = "accuracy"
    BUDGET = "budget"
    NOT_WORTH_IT = "not_worth_it"


@dataclass(frozen=True)
class Interval:
    """Ratio candidate / reference of the objective: point estimate and one-sided confidence bounds."""

    ratio: float
    lower: float
    upper: float
    confidence: float
    pairs: int


@dataclass(frozen=True)
class Finalist:
    """Confirmation of one candidate on fresh pairs; racing data are not in it."""

    candidate_id: str
    label: str
    gain_over_as_found: Interval | None
    gain_over_default: Interval | None
    p99_ratio: Interval | None
    accepted: bool
    reason: str


@dataclass(frozen=True)
class Decision:
    verdict: Verdict
    winner: str | None
    """Candidate id; ``None`` when what is there stays."""
    winner_label: str
    sentence: str
    """The decision in one sentence with its interval, for people."""
    keep_reason: KeepReason | None = None
    reference_id: str = "as-found"
    finalists: tuple[Finalist, ...] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Candidate id to reason."""
    caveats: tuple[str, ...] = ()
    """What a reader must know: synthetic inputs, python-based backend, as-found not served …"""
    tolerance_given: bool = False
    held_out_samples: int = 0
    noise: float | None = None
    """Standard deviation of ln ratio over A/A pairs."""
    pairs_to_settle: int | None = None
    """When too noisy: confirmation pairs that would settle it at the observed spread."""
    break_even: Mapping[str, float | str] = field(default_factory=dict)
