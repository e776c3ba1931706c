"""Whole studies through the docker launcher: on a model, and with the engine stopped in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optimizer import container

pytestmark = pytest.mark.docker

Optimizer = Callable[..., "subprocess.CompletedProcess[str]"]


def ledger(study: Path) -> list[dict[str, Any]]:
    path = study / "ledger.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()[:-1]] if path.exists() else []


def left_containers() -> list[str]:
    import docker

    client = docker.from_env()
    try:
        found = client.containers.list(all=True, filters={"label": container.OWNER_LABEL})
        return [one.name for one in found]
    finally:
        client.close()


def test_a_study_goes_through_the_launcher_and_says_on_what(
    docker_image: str,
    optimizer: Optimizer,
    short: tuple[str, ...],
    tiny_repository: Path,
    tiny_samples: Path,
    tmp_path: Path,
) -> None:
    study = tmp_path / "study"
    done = optimizer(
        "optimize", tiny_repository, "--model", "tiny", "--inputs", tiny_samples, "--image", docker_image,
        "--study", study, *short, "--write-back",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    settings = json.loads((study / "study.json").read_text())
    facts = settings["fingerprint"]["facts"]
    assert facts["sandbox"] == "docker"
    assert facts["sandbox_image_id"].startswith("sha256:")
    assert facts["sandbox_triton"]
    decision = json.loads((study / "decision.json").read_text())
    assert "python-based" in json.dumps(decision)
    assert left_containers() == []


def test_an_engine_that_stops_in_the_middle_is_an_environment_failure_and_the_study_goes_on(
    docker_image: str,
    own_engine: Path,
    optimizer: Optimizer,
    short: tuple[str, ...],
    tiny_repository: Path,
    tiny_samples: Path,
    tmp_path: Path,
) -> None:
    study = tmp_path / "study"
    arguments = [
        "optimize", tiny_repository, "--model", "tiny", "--inputs", tiny_samples, "--image", docker_image,
        "--study", study, *short,
    ]  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", "optimizer", *map(str, arguments)],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
    ) as running:  # fmt: skip
        deadline = time.monotonic() + 120
        while not any(record["kind"] == "measurement" for record in ledger(study)):
            assert running.poll() is None, running.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        try:
            subprocess.run([own_engine, "stop"], check=True, timeout=120)
            _, errors = running.communicate(timeout=120)
        finally:
            subprocess.run([own_engine, "start"], check=True, timeout=120)
    print(errors)
    assert running.returncode == 3, errors
    assert "Traceback" not in errors
    assert "remedy: start it" in errors
    measured = {record["key"] for record in ledger(study) if record["kind"] == "measurement"}
    assert measured
    done = optimizer("resume", study)
    assert done.returncode == 0, done.stderr
    # What had been measured was not measured again.
    keys = [record["key"] for record in ledger(study) if record["kind"] == "measurement"]
    assert measured <= set(keys)
    assert len(keys) == len(set(keys))
    # The engine was not there to remove the container that it had killed.
    left = left_containers()
    assert left
    cleaned = optimizer("doctor", "--clean")
    for name in left:
        assert f"removed container {name} (exited)" in cleaned.stdout
    assert left_containers() == []
