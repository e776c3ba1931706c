"""How much disk a study's engines need."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

KERNELS_BYTES = 16 << 20
"""A plan holds the weights once (as an ONNX file does, at FP32) and kernels; of small models it is all kernels."""


@dataclass(frozen=True)
class DiskEstimate:
    """Bytes on the file system of the study. Every engine is held until the decision, since a search may come back to
    it; afterwards the winner's alone is, unless all are to be kept."""

    per_engine_bytes: int
    peak_bytes: int
    kept_bytes: int
    free_bytes: int

    @property
    def enough(self) -> bool:
        return self.peak_bytes <= self.free_bytes


def estimate_disk(model_bytes: int, engines: int, directory: Path, *, plans: bool, save_all: bool) -> DiskEstimate:
    """``engines`` is the number of distinct build routes, ``plans`` whether they are TensorRT's. ``directory`` need not
    exist yet: the nearest one above it that does is asked for free space."""
    each = math.ceil(model_bytes * 1.5) + KERNELS_BYTES if plans else model_bytes
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    return DiskEstimate(each, each * engines, each * (engines if save_all else 1), shutil.disk_usage(existing).free)
