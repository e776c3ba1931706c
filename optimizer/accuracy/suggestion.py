"""A tolerance to start from, and how it came about: from the reference's own noise and, where there is one, an FP16
candidate's losses. A suggestion is not a decision: what losses mean for an application only its owner knows.

Pure; records only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from optimizer.records.model import TRITON_TO_NUMPY
from optimizer.records.parity import Parity, Tolerance

NOISE_FACTOR = 4.0
"""Two runs show only a part of the noise; a tolerance at the noise itself would reject the reference."""

FP16_FACTOR = 2.0
"""The FP16 losses are the worst of a small set; an unseen sample may be somewhat worse."""

NOISE_FACTOR_ALONE = 10.0
FP32_REL_L2 = 1e-5
"""Least relative L2 that is suggested: reordering the sums of an FP32 network moves its outputs by about this much."""

SUGGESTED_METRICS = ("rel_l2", "lInf")


@dataclass(frozen=True)
class Suggestion:
    tolerances: tuple[Tolerance, ...]
    explanation: tuple[str, ...]
    """One line for every tolerance, and what was missing."""

    @property
    def texts(self) -> tuple[str, ...]:
        """For the command line and the settings file."""
        return tuple(tolerance.text for tolerance in self.tolerances)


def losses_of(parity: Parity) -> dict[str, float]:
    """``OUTPUT:METRIC`` to loss."""
    return {f"{output.output}:{output.metric}": output.loss for output in parity.outputs}


def suggest_tolerance(
    noise: Mapping[str, float],
    fp16_losses: Mapping[str, float] | None,
    datatypes: Mapping[str, str],
    *,
    precision: str = "FP16",
) -> Suggestion:
    """``noise`` and ``fp16_losses`` map ``OUTPUT:METRIC`` to a loss, as explorations without tolerances give them;
    ``datatypes`` maps the outputs to their Triton data types. ``fp16_losses`` is ``None`` where no FP16 candidate could
    be built or where its answers were not finite. ``precision`` names that candidate, where it is another one."""
    tolerances: list[Tolerance] = []
    lines: list[str] = []
    for output, datatype in datatypes.items():
        if datatype == "BYTES" or TRITON_TO_NUMPY[datatype].kind in "biu":
            seen = {**noise, **(fp16_losses or {})}
            loss = max(seen.get(f"{output}:exact", 0.0), seen.get(f"{output}:lInf", 0.0))
            if loss == 0.0:
                tolerances.append(Tolerance("exact", 0.0, output))
                lines.append(f"{output}: exact, it is {datatype} and never changed")
            else:
                lines.append(
                    f"{output}: none, it is {datatype} and changed by up to {loss:.3g}: state how often it may differ, "
                    f"for instance '{output}:exact>=0.999'"
                )
            continue
        for metric in SUGGESTED_METRICS:
            threshold, why = _threshold(f"{output}:{metric}", metric, noise, fp16_losses, precision)
            if threshold > 0.0:
                tolerances.append(Tolerance(metric, threshold, output))
                lines.append(f"{output}: {metric}<={threshold:g}, {why}")
    if fp16_losses is None:
        lines.append("no FP16 candidate stood behind this: it admits what computes in FP32, and may reject FP16")
    return Suggestion(tuple(tolerances), tuple(lines))


def _threshold(
    key: str, metric: str, noise: Mapping[str, float], fp16_losses: Mapping[str, float] | None, precision: str
) -> tuple[float, str]:
    own = noise.get(key, 0.0)
    factor = NOISE_FACTOR if fp16_losses is not None else NOISE_FACTOR_ALONE
    choices = [(factor * own, f"{factor:g} times the reference's own noise of {own:.3g}")]
    if fp16_losses is not None:
        loss = fp16_losses.get(key, 0.0)
        choices.append((FP16_FACTOR * loss, f"{FP16_FACTOR:g} times the {precision} candidate's loss of {loss:.3g}"))
    if metric == "rel_l2":
        choices.append((FP32_REL_L2, "the rounding of FP32 sums"))
    value, why = max(choices)
    return round_up(value), f"{why}, rounded up"


def round_up(value: float) -> float:
    """To 1, 2 or 5 times a power of ten; 0 stays 0."""
    if value <= 0.0 or not math.isfinite(value):
        return 0.0
    exponent = math.floor(math.log10(value))
    for digit, shift in ((1, 0), (2, 0), (5, 0), (1, 1)):
        # From its decimal text, so that 2e-3 is the number that a user would have written.
        candidate = float(f"{digit}e{exponent + shift}")
        if candidate >= value:
            return candidate
    return float(f"1e{exponent + 2}")
