"""What a Triton server's messages mean: the line at the root of a failure, and its class. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

# "E1130 17:20:01.123456 4242 model_lifecycle.cc:654] "failed …"", quoted or not by version.
_LOG_LINE = re.compile(r'^(?P<severity>[EWIF])\d{4} [\d:.]+ \d+ (?P<file>[\w.]+:\d+)\] "?(?P<text>.*?)"?$')
# Words that Triton puts before the cause, outermost first; they repeat.
_WRAPPERS = re.compile(
    r"^(?:failed to load '[^']*' version -?\d+: |"
    r"load failed for model '[^']*': version -?\d+ is at UNAVAILABLE state: |"
    r"failed to load '[^']*', |Internal: |Invalid argument: |Unavailable: |Not found: |Unknown: |Unsupported: |"
    r"ERROR: Failed to create instance: |TritonModelException: |PythonBackendException: )"
)
# Say only that something failed, or are said by every server without a GPU.
_NOISE = (
    "failed to poll from model repository",
    "no version is available",
    "CudaDriverHelper has not been initialized",
    "Stub process is not healthy",
)

# In order: the first match decides.
_CLASSES: tuple[tuple[str, str], ...] = (
    (
        "out_of_memory",
        r"out ?of ?memory|\boom\b|bad_alloc|cannot allocate memory|unable to allocate|failed to allocate|"
        r"memoryerror|no space left on device|increase the shared memory pool|initialize shared memory",
    ),
    (
        "missing_backend",
        r"unable to find backend library|no model\.py|backend directory|unable to find .*backend|"
        r"no module named '?(onnxruntime|tensorrt)|error while loading shared libraries|"
        r"needs onnx runtime's|unknown execution accelerator",
    ),
    (
        "version_mismatch",
        r"version tag does not match|serialized engine version|incompatible device|expecting compute|"
        r"unsupported model ir version|opset \d+ is under development|"
        r"guarantees? support for models stamped|incompatible with the installed|different version of tensorrt",
    ),
    (
        "invalid_config",
        r"configuration (expects|specified|specifies)|expected configuration for|model configuration|"
        r"unexpected (inference )?(input|output)|optimization profile|"
        r"unexpected datatype|error parsing text-format|must specify|expected .* to be|invalid argument|"
        r"unexpected platform|'?max_batch_size'?|dynamic batching|preferred batch|instance group|"
        r"optional input|parameter '|execution_mode|unable to find '.*' for model instance|model expects|"
        r"for the model to support batching|cannot have|unsupported precision|unknown parameter",
    ),
    ("timeout", r"deadline exceeded|timed out|timeout"),
)


def parse_line(line: str) -> tuple[str, str] | None:
    """(severity, text) of a line in Triton's log format; ``None`` for any other line."""
    match = _LOG_LINE.match(line.rstrip())
    return (match["severity"], match["text"]) if match else None


def root(message: str) -> str:
    """The cause inside one message: wrappers taken off, first meaningful line."""
    text = message.replace("\\n", "\n").strip().strip('"').strip()
    while match := _WRAPPERS.match(text):
        text = text[match.end() :].strip()
    # "…version 1 is at UNAVAILABLE state: Internal: X; " lists versions with semicolons.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0].rstrip("; ") if lines else ""


def is_noise(text: str) -> bool:
    return not text or any(words in text for words in _NOISE)


def root_error(candidates: Iterable[str]) -> str:
    """The first message that says what went wrong; the first of all when none does."""
    stripped = [text for text in map(root, candidates) if text]
    return next((text for text in stripped if not is_noise(text)), stripped[0] if stripped else "")


def error_lines(log: str) -> list[str]:
    """Error and fatal texts of a server log in order, and lines that no logger wrote but that say a crash."""
    found = []
    for line in log.splitlines():
        parsed = parse_line(line)
        if parsed and parsed[0] in "EF":
            found.append(parsed[1])
        elif parsed is None and re.search(
            r"error while loading shared libraries|terminate called|^guardian: |what\(\):|Fatal Python error|"
            r"Failed to parse|unrecognized option|Signal \(\d+\) received",
            line,
        ):
            found.append(line.strip())
    return found


def classify(message: str) -> str:
    """One of the codes of :data:`_CLASSES`, or ``model_error``."""
    lowered = message.lower()
    return next((code for code, pattern in _CLASSES if re.search(pattern, lowered)), "model_error")
