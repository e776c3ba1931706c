"""The root error line and its class, on messages that servers really wrote."""

from __future__ import annotations

import pytest

from optimizer.sandbox import _messages

MISMATCH = (
    "model 'bad', tensor 'X': the model expects 2 dimensions (shape [-1,4]) but the model configuration specifies 2 "
    "dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making "
    "complete shape [-1,5])"
)


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (
            "load failed for model 'bad': version 1 is at UNAVAILABLE state: Internal: KeyError: x;\n\nAt:\n  /a/b",
            "KeyError: x",
        ),
        (
            "failed to load 'm' version 1: Invalid argument: unable to find backend library",
            "unable to find backend library",
        ),
        ("ERROR: Failed to create instance: TritonModelException: " + MISMATCH, MISMATCH),
        # Loggers escape newlines.
        (
            "failed to load 'm' version 2: Internal: KeyError: 'a'\\n\\nAt:\\n  /x/model.py(3): initialize\\n",
            "KeyError: 'a'",
        ),
        ("", ""),
    ],
)
def test_wrappers_and_tracebacks_come_off(message: str, cause: str) -> None:
    assert _messages.root(message) == cause


def test_noise_is_passed_over_unless_there_is_nothing_else() -> None:
    poll = "failed to load 'm', failed to poll from model repository"
    assert _messages.root_error([poll, "Poll failed for model directory 'm': bad"]).endswith("bad")
    assert _messages.root_error([poll]) == "failed to poll from model repository"
    assert _messages.root_error([]) == ""


LOG = """\
I1130 17:18:33.685027 11280 model_lifecycle.cc:472] "loading: bad:1"
E1130 17:18:28.150569 11280 server.cc:241] "CudaDriverHelper has not been initialized."
W1130 17:18:28.151886 11280 metrics.cc:798] "DCGM unable to start: DCGM initialization error"
Error: Failed to initialize NVML
E1130 17:24:10.795630 15866 main.cc:257] "failed to start HTTP service: Unavailable - Socket 'x:8000' already in use "
terminate called after throwing an instance of 'std::bad_alloc'
"""


def test_error_lines_of_a_log() -> None:
    lines = _messages.error_lines(LOG)
    assert lines == [
        "CudaDriverHelper has not been initialized.",
        "failed to start HTTP service: Unavailable - Socket 'x:8000' already in use ",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ]
    assert _messages.root_error(lines).startswith("failed to start HTTP service")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (MISMATCH, "invalid_config"),
        ("unexpected datatype TYPE_INT64 for inference input 'n', expecting TYPE_INT32", "invalid_config"),
        ("configuration expects 2 inputs, model provides at most 1", "invalid_config"),
        ("expected configuration for output 'x'", "invalid_config"),
        ("configuration specified max-batch 128 but TensorRT engine only supports max-batch 1", "invalid_config"),
        ("failed to find any Optimization Profile among [0] to support the requested dimensions", "invalid_config"),
        ("unable to find backend library for backend 'tensorrt', try specifying runtime", "missing_backend"),
        ("ModuleNotFoundError: No module named 'tensorrt'", "missing_backend"),
        (
            "Version tag does not match. Note: Current Version: 236, Serialized Engine Version: 239",
            "version_mismatch",
        ),
        ("generated on an incompatible device, expecting compute 8.6 got compute 7.5", "version_mismatch"),
        ("Unsupported model IR version: 11, max supported IR version: 10", "version_mismatch"),
        ("CUDA error: out of memory", "out_of_memory"),
        ("MemoryError", "out_of_memory"),
        ("OutOfMemory (Requested size was 1073741824 bytes.)", "out_of_memory"),
        ("Failed to increase the shared memory pool size for key 'x' to 67108864 bytes", "out_of_memory"),
        ("std::bad_alloc", "out_of_memory"),
        ("Deadline Exceeded", "timeout"),
        ("RuntimeError: something else", "model_error"),
        ("zoom failed", "model_error"),
    ],
)
def test_classes(message: str, code: str) -> None:
    assert _messages.classify(message) == code
