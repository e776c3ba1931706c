"""The fingerprint: what a result is tied to. Elsewhere it is guidance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GIVEN_FILES = ("inputs", "held_out", "calibration", "trace", "onnx")
"""Facts that name a file which the user gives beside the model: its path, and the sha256 of its content."""


@dataclass(frozen=True)
class Fingerprint:
    """Everything whose change makes a result stale; values are texts, compared for equality."""

    model: str
    """Content hash of the model as found."""
    shapes: str
    """Hash of the workload's shapes."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """``gpu``, ``gpu_uuid``, ``driver``, ``cuda``, ``tensorrt``, ``tuner``, ``triton``, ``backend``, ``cpu`` …"""

    def differences(self, other: Fingerprint) -> dict[str, str]:
        """``name: mine -> theirs`` for every fact that differs, by name; empty when equal.

        A given file that is not among one's own facts is not known to differ: earlier versions did not write it down.
        """
        mine = {"model": self.model, "shapes": self.shapes, **self.facts}
        theirs = {"model": other.model, "shapes": other.shapes, **other.facts}
        return {
            name: f"{name}: {mine.get(name, 'absent')} -> {theirs.get(name, 'absent')}"
            for name in sorted({*mine, *theirs})
            if mine.get(name) != theirs.get(name) and not (name in GIVEN_FILES and name not in mine)
        }
