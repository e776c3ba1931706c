"""The fingerprint: what a result is tied to. Elsewhere it is guidance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fingerprint:
    """Everything whose change makes a result stale; values are texts, compared for equality."""

    model: str
    """Content hash of the model as found."""
    shapes: str
    """Hash of the workload's shapes."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """``gpu``, ``gpu_uuid``, ``driver``, ``cuda``, ``tensorrt``, ``tuner``, ``triton``, ``backend``, ``cpu`` …"""

    def differences(self, other: Fingerprint) -> list[str]:
        """``name: mine -> theirs`` for every fact that differs; empty when equal."""
        mine = {"model": self.model, "shapes": self.shapes, **self.facts}
        theirs = {"model": other.model, "shapes": other.shapes, **other.facts}
        return [
            f"{name}: {mine.get(name, 'absent')} -> {theirs.get(name, 'absent')}"
            for name in sorted({*mine, *theirs})
            if mine.get(name) != theirs.get(name)
        ]
