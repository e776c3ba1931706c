"""From a study's winner to a promoted plan on a live server: the second model is made, judged, applied, removed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from production_server import production_server

from optimizer.config import parse_settings
from optimizer.records.route import Route
from optimizer.testing.decided import decided_study

pytestmark = pytest.mark.system


def canary(verb: str, state: Path, *more: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "optimizer", "canary", verb, "--state", str(state), "--json", *more],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def plan(server: Any, study: Path, state: Path, *more: str) -> dict[str, Any]:
    status, document = canary(
        "plan", state, "--baseline", server.url, "--from-study", str(study), "--tolerance", "lInf<=1e-4",
        "--synthetic", "--synthetic-count", "16", "--detect", "1/50", "--concurrency", "2", "--window-s", "0.3",
        "--min-pairs", "2", "--max-pairs", "32", "--confidence", "0.6", "--no-memory",
        "--margin", "latency=300%,p99=900%,throughput=90%", "--steps", "shadow,50,100", *more,
    )  # fmt: skip
    assert status == 0, document
    return document


@pytest.fixture
def study(tiny_repository: Path, tmp_path: Path) -> Path:
    settings = parse_settings(
        {
            "tolerance": ["*:lInf<=1e-4"],
            "inputs": {"synthetic_count": 12},
            "search": {"routes": "-instances=[1|2]"},
            "builder": {"family": "unchanged"},
        },
        where="test",
    )
    decided_study(
        tiny_repository, "tiny", tmp_path / "study", settings,
        lambda inputs: {"Y": (inputs["X"] * 2 + 1).astype(np.float32)}, route=Route.of({"instances": "2"}),
    )  # fmt: skip
    return tmp_path / "study"


def models(server: Any) -> set[str]:
    return {row[0] for row in server.client.repository_index() if row[2] == "READY"}


def test_a_studys_winner_is_tried_beside_the_baseline_promoted_and_applied(tiny_repository, study, tmp_path):
    with production_server(tiny_repository, tmp_path / "server", models=["tiny"]) as server:
        state = tmp_path / "canary"
        name = plan(server, study, state)["plan"]["candidate"]["model"]
        assert name.startswith("tiny_canary_")
        status, document = canary("run", state, "--quiet", "--apply")
        assert "state" in document, document
        assert (status, document["state"], document["applied"]) == (0, "promoted", True), document
        assert models(server) == {"tiny"}
        assert not (tiny_repository / name).exists()
        assert server.ready("tiny") == [2]
        assert canary("run", state, "--quiet")[1]["state"] == "promoted"


def test_aborted_or_killed_the_second_model_is_gone(tiny_repository, study, tmp_path):
    with production_server(tiny_repository, tmp_path / "server", models=["tiny"]) as server:
        state = tmp_path / "canary"
        name = plan(server, study, state, "--window-s", "60")["plan"]["candidate"]["model"]
        for end in ("kill", "abort"):
            owner = subprocess.Popen(
                [sys.executable, "-m", "optimizer", "canary", "run", "--state", str(state), "--quiet"]
            )
            while name not in models(server):
                assert owner.poll() is None
                owner_alive_wait()
            if end == "kill":
                os.kill(owner.pid, signal.SIGKILL)
                owner.wait()
                while (state / "armed").exists():
                    owner_alive_wait()
            else:
                assert canary("abort", state)[1]["state"] == "aborted"
                assert owner.wait(60) == 5
            assert models(server) == {"tiny"}
            assert not (tiny_repository / name).exists()


def owner_alive_wait() -> None:
    import time

    time.sleep(0.05)
