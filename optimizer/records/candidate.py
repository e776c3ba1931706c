"""What a study knows of one candidate: a rejection with its reason, or its measurements."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Stage(str, Enum):
    BUILD = "build"
    CHECK = "check"
    LOAD = "load"
    VALIDATE = "validate"
    MEASURE = "measure"
    CONSTRAINT = "constraint"


@dataclass(frozen=True)
class Rejection:
    """A candidate that left the comparison. ``code`` is stable, ``evidence`` holds the log lines that prove it."""

    candidate_id: str
    stage: Stage
    code: str
    message: str
    evidence: str = ""
    transient: bool = False


@dataclass(frozen=True)
class Pair:
    """One paired comparison: the same load on reference and candidate, back to back.

    ``log_ratio`` = ln(candidate / reference) of the objective, oriented so that positive is better.
    """

    candidate_id: str
    reference_id: str
    purpose: str
    """``noise``, ``race`` or ``confirm``."""
    index: int
    log_ratio: float
    p99_log_ratio: float | None
    """ln(p99 candidate / p99 reference): positive is worse. ``None`` where the samples do not support a p99."""
    reference_throughput: float
    candidate_throughput: float
    reference_p99_us: float | None = None
    candidate_p99_us: float | None = None
    failures: int = 0
    usable: bool = True
    note: str = ""
