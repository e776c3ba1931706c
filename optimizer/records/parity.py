"""Parity: how far a candidate's answers are from the expected ones, per output, and whether that is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Tolerance:
    """Allowed loss of one metric on one output. Loss equal to ``threshold`` passes.

    ``output`` ``"*"`` means every output that has no tolerance of its own.
    """

    metric: str
    threshold: float
    output: str = "*"
    options: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return f"{self.output}:{self.metric}<={self.threshold:g}"


@dataclass(frozen=True)
class OutputParity:
    """Verdict of one tolerance. ``loss`` is the worst over the samples for pointwise metrics, and the aggregate for
    agreement metrics; it is also the tolerance that would have been needed.
    """

    output: str
    metric: str
    loss: float
    threshold: float | None
    passed: bool
    worst_sample: str | None = None
    bound: float | None = None
    """One-sided 95% bound on the true loss, for metrics that count agreements."""


@dataclass(frozen=True)
class Parity:
    """Validation of one candidate on one sample set.

    ``defects`` are failures that come before any metric: wrong shape or dtype, a missing output, NaN or Inf that the
    reference does not have, a request that failed. One is enough to reject, whatever the tolerance.
    """

    candidate_id: str
    sample_set: str
    samples: int
    outputs: tuple[OutputParity, ...]
    defects: tuple[str, ...] = ()
    tolerance_given: bool = True
    per_tag: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.defects and all(output.passed for output in self.outputs)

    @property
    def reason(self) -> str:
        """Why it failed, in one line; ``""`` if it passed."""
        if self.defects:
            return self.defects[0]
        for output in self.outputs:
            if not output.passed:
                return (
                    f"output {output.output}: {output.metric} loss {output.loss:.6g} exceeds {output.threshold:g}"
                    + (f" (worst sample {output.worst_sample})" if output.worst_sample else "")
                )
        return ""
