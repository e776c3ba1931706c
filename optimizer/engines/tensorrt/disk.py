"""How much disk a study's engines need."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DiskEstimate:
    """Bytes that a study's engines need at once; ``enough`` is ``None`` where the free space is unknown."""

    per_engine_bytes: int
    engines: int
    total_bytes: int
    free_bytes: int | None

    @property
    def enough(self) -> bool | None:
        return None if self.free_bytes is None else self.total_bytes <= self.free_bytes


def estimate_disk(
    onnx_bytes: int, engines: int, *, save_all: bool, known_bytes: Sequence[int] = (), directory: Path | None = None
) -> DiskEstimate:
    """``engines`` is the number of distinct build routes. ``known_bytes`` are sizes of plans of this model that exist.

    A plan holds the weights once (an ONNX file does too, at FP32) and kernels, a few MiB; measured plans of small
    models are all kernels. Without a known plan: the ONNX size and a half, and 16 MiB. A study that does not save
    everything holds the default, the candidate being built, and three finalists.
    """
    each = max(known_bytes) if known_bytes else math.ceil(onnx_bytes * 1.5) + (16 << 20)
    held = engines if save_all else min(engines, 5)
    free = shutil.disk_usage(directory).free if directory is not None else None
    return DiskEstimate(each, held, each * held, free)
