"""An Engine: the built artifact, or a typed failure with the log lines that prove it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any


class BuildFailureReason(str, Enum):
    PARSE_ERROR = "parse_error"
    UNSUPPORTED_OPERATOR = "unsupported_operator"
    NO_IMPLEMENTATION = "no_implementation"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    CRASH = "crash"
    RETURNED_NOTHING = "returned_nothing"
    INVALID_ENGINE = "invalid_engine"
    NOT_AVAILABLE = "not_available"
    """The installed builder has no such knob, precision or feature: not the model's fault."""
    REFUSED = "refused"
    """The model cannot be expressed in this family; the message says why."""
    NO_SPACE = "no_space"
    OTHER = "other"

    @property
    def transient(self) -> bool:
        """Worth another try when a study is resumed."""
        return self in {
            BuildFailureReason.TIMEOUT,
            BuildFailureReason.OUT_OF_MEMORY,
            BuildFailureReason.NO_SPACE,
        }


@dataclass(frozen=True)
class BuildFailure:
    engine_id: str
    reason: BuildFailureReason
    message: str
    log_excerpt: str = ""
    build_s: float = 0.0
    exit_signal: int | None = None


@dataclass(frozen=True)
class Engine:
    """A built artifact. ``files`` maps the name inside a version directory to the file on disk.

    ``device_memory_bytes`` is what the engine itself says it needs; ``None`` is unknown, never zero.
    ``details`` holds what only the family understands (profiles, layer summary, builder flags), JSON-compatible.
    """

    engine_id: str
    family: str
    files: Mapping[str, Path]
    sha256: str
    size_bytes: int
    build_s: float
    builder: str
    """For instance ``onnxruntime 1.20.1`` or ``TensorRT 8.6.0``."""
    device_memory_bytes: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
