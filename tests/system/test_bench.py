"""``bench`` on the real server: of a repository, of a running server, and of two models in pairs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from optimizer.records.deployment import Deployment
from optimizer.sandbox._base import Sandbox
from optimizer.testing.models import ToyModel, failing_model, sleep_model

SHORT = ("--duration-s", "0.5", "--warmup-s", "0.3", "--windows", "2", "--synthetic-count", "8", "--quiet", "--json")


def bench(*arguments: str | Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "optimizer", "bench", *map(str, arguments), *SHORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def load_into(sandbox: Sandbox, directory: Path, model: ToyModel) -> None:
    path = model.write(directory)
    files = {"1/model.py": path / "1" / "model.py"}
    assert sandbox.load(Deployment(model.name, model.config_text, files)) is None


@pytest.mark.system
def test_a_repository_is_measured_in_a_sandbox(tmp_path: Path) -> None:
    sleep_model("sleepy", service_s=0.01).write(tmp_path)
    document = bench(tmp_path, "--model", "sleepy", "--concurrency", "1", "--concurrency", "4")
    one, four = document["loads"]
    # One instance that sleeps 10 ms: 100 executions a second at most, whatever the concurrency.
    for load in (one, four):
        assert load["requests_per_s"] <= 101
        assert load["phases_us"]["compute_infer"] > 0
        assert not load["failures"]
    assert four["phases_us"]["queue"] > one["phases_us"]["queue"]
    assert four["percentiles_us"]["p50"] > 2 * one["percentiles_us"]["p50"]


@pytest.mark.system
def test_a_model_that_answers_nothing_is_a_failure(tmp_path: Path) -> None:
    failing_model(every=1).write(tmp_path)
    command = [sys.executable, "-m", "optimizer", "bench", str(tmp_path), "--model", "failing", *SHORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == 4
    assert "fails on purpose" in document["problem"]


@pytest.mark.system
def test_what_ends_a_bench_early_is_told(tmp_path: Path) -> None:
    sleep_model("sleepy", service_s=0.01).write(tmp_path)
    command = [sys.executable, "-m", "optimizer", "bench", str(tmp_path), "--model", "sleepy", "--duration-s", "20"]
    for victim, code, words in (("server", 3, "went away"), ("bench", 5, "interrupted")):
        with subprocess.Popen(
            [*command, "--warmup-s", "0", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            assert running.stderr is not None
            while "closed loop" not in running.stderr.readline():
                assert running.poll() is None
            if victim == "server":
                (server,) = [one for one in psutil.Process(running.pid).children(True) if "tritonserver" in one.name()]
                server.kill()
            else:
                running.terminate()
            document = json.loads(running.communicate(timeout=60)[0])
        assert running.returncode == document["exit_code"] == code
        assert words in document["problem"]


@pytest.mark.system
def test_two_models_of_a_running_server_are_compared_in_pairs(embedded_sandbox: Sandbox, tmp_path: Path) -> None:
    slow, fast = sleep_model("bench_slow", service_s=0.02), sleep_model("bench_fast", service_s=0.01)
    for model in (slow, fast):
        load_into(embedded_sandbox, tmp_path, model)
    url = embedded_sandbox.info.grpc_url
    document = bench("--server-url", url, "--model", "bench_slow", "--compare-model", "bench_fast")
    comparison = document["comparison"]
    assert comparison["pairs"] >= 2
    assert comparison["lower"] > 1.2
    assert comparison["upper"] < 3.0
    # Nothing was changed on a server that is not ours.
    states = {row[0]: row[2] for row in _index(embedded_sandbox)}
    assert states["bench_slow"] == states["bench_fast"] == "READY"
    for model in (slow, fast):
        embedded_sandbox.unload(model.name)


def _index(sandbox: Sandbox) -> list[tuple[str, str, str, str]]:
    from optimizer.triton.client import TritonClient

    with TritonClient(sandbox.info.grpc_url) as client:
        return client.repository_index()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "m"], "exactly one"),
        (["repo", "--server-url", "127.0.0.1:1", "--model", "m"], "exactly one"),
        (["repo", "--model", "m", "--check-with", "guesswork"], "guesswork"),
        (["--server-url", "127.0.0.1:1", "--model", "m"], "no Triton server answers"),
    ],
)
def test_bad_requests_say_what_to_do(arguments: list[str], words: str) -> None:
    command = [sys.executable, "-m", "optimizer", "bench", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (2, 3)
    assert words in done.stderr
    assert "remedy" in done.stderr
