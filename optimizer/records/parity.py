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
        """As a user may write it; reading it gives an equal record."""
        options = ",".join(
            f"{name}={value:.12g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in sorted(self.options.items())
        )
        return f"{self.output}:{self.metric}" + (f"({options})" if options else "") + f"<={self.threshold!r}"


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
    """One-sided bound on the true loss (95%, or ``confidence``), for metrics that count agreements of rows."""
    confidence: float | None = None
    """Where the tolerance asks for the bound, and not only the observed loss, to be within the threshold."""
    misses: int | None = None
    """Disagreements, for counting metrics."""
    units: int | None = None
    """What ``misses`` are counted among (rows or positions); for other metrics the number of answers."""


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
            if not output.passed and output.threshold is not None:
                return _why(output, output.threshold)
        return ""


def _why(output: OutputParity, threshold: float) -> str:
    where = f"output {output.output}: {output.metric}"
    if not output.units:
        return f"{where} has no sample to stand on"
    counted = f" ({output.misses} of {output.units})" if output.misses is not None else ""
    if output.loss <= threshold and output.bound is not None:
        return (
            f"{where} loss {output.loss:.6g}{counted} supports no better than {output.bound:.6g} "
            f"at {output.confidence or 0.95:.4g} confidence, {threshold:.6g} is asked for"
        )
    return f"{where} loss {output.loss:.6g}{counted} exceeds {threshold:.6g}" + (
        f" (worst: {output.worst_sample})" if output.worst_sample else ""
    )
