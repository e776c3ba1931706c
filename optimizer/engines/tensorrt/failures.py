"""From what a builder said, or how its process ended, to a typed reason. Pure; standard library only."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence

from optimizer.records.engine import BuildFailureReason

# Order matters: a missing implementation is often the consequence of too little memory, which the log says first.
_LOG_SIGNS: tuple[tuple[BuildFailureReason, str], ...] = (
    # A version compatible plan carries the lean runtime, which some installations leave out.
    (BuildFailureReason.NOT_AVAILABLE, r"Unable to load library: \S*libnvinfer_(?:lean|dispatch)"),
    (BuildFailureReason.NO_SPACE, r"No space left on device|ENOSPC"),
    (
        BuildFailureReason.OUT_OF_MEMORY,
        r"out of memory|OutOfMemory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|std::bad_alloc|MemoryError"
        r"|insufficient memory|Cannot allocate memory|Requested amount of GPU memory",
    ),
    (
        BuildFailureReason.UNSUPPORTED_OPERATOR,
        r"No importer registered for op|[Uu]nsupported operator|Plugin not found|getPluginCreator could not find"
        r"|Unable to find plugin|UNSUPPORTED_NODE\b",
    ),
    (
        BuildFailureReason.NO_IMPLEMENTATION,
        r"Could not find any implementation for node|Could not infer output types for operation",
    ),
)


def reason_from_log(text: str, otherwise: BuildFailureReason) -> BuildFailureReason:
    for reason, pattern in _LOG_SIGNS:
        if re.search(pattern, text):
            return reason
    return otherwise


def evidence(lines: Iterable[str], limit: int = 20) -> list[str]:
    """The lines that prove a failure: errors first come, else the last lines."""
    kept = [line for line in lines if line.strip()]
    errors = [line for line in kept if line.startswith(("[E]", "[F]")) or "Traceback" in line or "Error" in line]
    return (errors or kept)[-limit:]


def reason_from_exit(status: int, log: str) -> tuple[BuildFailureReason, str, int | None]:
    """``status`` as a guardian reports it (128 + signal for a signal): reason, message, signal number."""
    if status > 128:
        number = status - 128
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        reason = reason_from_log(log, BuildFailureReason.CRASH)
        if reason is BuildFailureReason.OUT_OF_MEMORY:
            return reason, f"the builder ran out of memory and ended with {name}", number
        return BuildFailureReason.CRASH, f"the builder process was ended by {name}", number
    reason = reason_from_log(log, BuildFailureReason.CRASH)
    if status == 127:
        return BuildFailureReason.NOT_AVAILABLE, "the builder's interpreter could not be started", None
    return reason, f"the builder process ended with status {status} and left no result", None


def parser_reason(codes: Sequence[str], text: str) -> BuildFailureReason:
    """``codes`` are names of TensorRT's parser error codes."""
    if any(code.startswith("UNSUPPORTED") for code in codes):
        return BuildFailureReason.UNSUPPORTED_OPERATOR
    if any(code == "MEM_ALLOC_FAILED" for code in codes):
        return BuildFailureReason.OUT_OF_MEMORY
    return reason_from_log(text, BuildFailureReason.PARSE_ERROR)
