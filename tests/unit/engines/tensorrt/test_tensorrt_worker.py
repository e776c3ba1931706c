"""Every way in which a builder can go wrong becomes a typed failure, and no process is left."""

from __future__ import annotations

import json
import subprocess
import sys

import psutil
import pytest
from tensorrt_entries import STAND_INS, tiny_onnx, write_entry

from optimizer.engines.tensorrt import TensorRTFamily
from optimizer.engines.tensorrt.supervisor import PROJECT_ROOT
from optimizer.records.engine import BuildFailure, Engine
from optimizer.records.engine import BuildFailureReason as Reason


def offspring():
    return {process.pid for process in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize(
    ("poison", "reason", "signal", "words"),
    [
        ("poison_segfault", Reason.CRASH, 11, "SIGSEGV"),
        ("poison_abort", Reason.CRASH, 6, "SIGABRT"),
        ("poison_none", Reason.RETURNED_NOTHING, None, "returned None"),
        ("poison_no_kernel", Reason.NO_IMPLEMENTATION, None, "Conv_7"),
        ("poison_oom", Reason.OUT_OF_MEMORY, None, "out of memory"),
        ("poison_garbage", Reason.INVALID_ENGINE, None, "Magic tag"),
        ("poison_exit", Reason.CRASH, None, "without a readable result"),
        ("poison_raise", Reason.OTHER, None, "pybind11 says no"),
        ("poison_import", Reason.NOT_AVAILABLE, None, "libnvinfer.so.11"),
    ],
)
def test_a_poisoned_builder_is_a_typed_failure(build, entry, tmp_path, poison, reason, signal, words):
    before = offspring()

    failure = build(poison, entry, time_limit_s=60)

    assert isinstance(failure, BuildFailure)
    assert (failure.reason, failure.exit_signal) == (reason, signal)
    assert words in failure.message
    assert not list(tmp_path.glob("engine-*/model.plan"))
    assert offspring() <= before


def test_a_hanging_builder_is_stopped_with_its_children(build, entry):
    before = offspring()

    failure = build("poison_hang", entry, time_limit_s=3)

    assert isinstance(failure, BuildFailure)
    assert failure.reason is Reason.TIMEOUT
    assert failure.reason.transient
    assert "3 s" in failure.message
    assert offspring() <= before
    assert not [p.pid for p in psutil.process_iter(["cmdline"]) if "SIG_IGN); time.sleep(3600)" in str(p.info)]


def test_a_builder_that_eats_memory_is_stopped_at_its_limit(build, entry):
    failure = build("poison_memory", entry, time_limit_s=60, memory_limit_bytes=400 << 20)

    assert isinstance(failure, BuildFailure)
    assert failure.reason is Reason.OUT_OF_MEMORY
    assert "limit of 400 MiB" in failure.message


def test_a_build_that_stays_within_its_limits_is_left_alone(build, entry):
    engine = build("fake_tensorrt", entry, time_limit_s=60, memory_limit_bytes=2 << 30)

    assert isinstance(engine, Engine), engine
    assert engine.details["build_peak_memory_bytes"] > 0


def test_the_memory_of_a_build_too_short_to_be_watched_is_known(build, entry, monkeypatch):
    monkeypatch.setattr("optimizer.processes.resident_bytes", lambda _pids: 0)
    engine = build("fake_tensorrt", entry, time_limit_s=60, memory_limit_bytes=2 << 30)

    assert isinstance(engine, Engine), engine
    assert engine.details["build_peak_memory_bytes"] > 10 << 20


def test_an_interpreter_that_is_not_there_is_not_available(entry):
    family = TensorRTFamily(python="/no/such/python", module="fake_tensorrt")

    assert "could not be started" in (family.available() or "")


def test_a_parse_error_names_node_and_operator(build, tmp_path):
    entry = write_entry(tmp_path / "repository", tiny_onnx(domain="no.such"))

    failure = build("fake_tensorrt", entry)

    assert isinstance(failure, BuildFailure)
    assert failure.reason is Reason.UNSUPPORTED_OPERATOR
    assert "node multiply (MatMul)" in failure.message


def test_the_worker_needs_nothing_but_the_standard_library(tmp_path):
    """Another interpreter has TensorRT and none of the project's dependencies: -S leaves out site-packages."""
    request = {"action": "probe", "module": "fake_tensorrt"}
    done = subprocess.run(
        [sys.executable, "-S", "-m", "optimizer.engines.tensorrt.worker", "-", "-"],
        input=json.dumps(request),
        env={"PYTHONPATH": f"{PROJECT_ROOT}:{STAND_INS}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["capabilities"]["version"] == "11.1.0-fake"
