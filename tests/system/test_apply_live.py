"""Write-back on a server that goes on serving: no request fails, and every answer is the old or the new version's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from live_rounds import MARK, NAME, SOURCE, options_applied, rounds, study, write_model
from production_server import production_server

from optimizer.apply import recover, rollback
from optimizer.durable import sha256_tree
from optimizer.errors import WriteBackRefused

pytestmark = pytest.mark.system


def test_no_request_is_lost_while_versions_come_and_go(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_model(repository)
    preparation = study(repository, tmp_path / "study")
    with production_server(repository, tmp_path / "server", models=[NAME]) as server:
        traffic, rows = rounds(preparation, server.url, 3, 100.0)
        assert server.ready(NAME) == [1]
    assert traffic.failures == {}
    assert traffic.wrong == []
    # A number that the server still holds, unloading, is not given again.
    assert set(traffic.versions) == {"1", *(str(row["version"]) for row in rows)}
    assert all(row["same_tree"] for row in rows)
    assert sum(traffic.versions.values()) == traffic.sent


@pytest.mark.parametrize("mode", ["poll", "none"])
def test_a_server_that_does_not_load_on_request_is_refused(tmp_path: Path, mode: str) -> None:
    repository = tmp_path / "models"
    write_model(repository)
    preparation = study(repository, tmp_path / "study")
    with production_server(repository, tmp_path / "server", mode=mode) as server:
        # The server itself leaves bytecode beside model.py.
        before = sha256_tree(repository)
        with pytest.raises(WriteBackRefused, match="explicit"):
            options_applied(preparation, server.url)
        with pytest.raises(WriteBackRefused, match="explicit"):
            rollback(repository, NAME, server_url=server.url)
    assert sha256_tree(repository) == before


# A sandbox has its models below a directory of its own name; so a version can be good there and bad in production.
IN_PRODUCTION = 'int(args["model_version"]) > 1 and "/sandbox-" not in args["model_repository"]'
FAULTS = {
    "does not load": f"        if {IN_PRODUCTION}: raise RuntimeError('no such device')\n",
    "answers wrong": f"        if {IN_PRODUCTION}: self.mark = numpy.float32(9)\n",
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_what_the_server_does_not_take_is_taken_back(tmp_path: Path, fault: str) -> None:
    repository = tmp_path / "models"
    write_model(repository, source=SOURCE.replace("\n    def execute", FAULTS[fault] + "\n    def execute"))
    preparation = study(repository, tmp_path / "study")
    with production_server(repository, tmp_path / "server", models=[NAME]) as server:
        before = sha256_tree(repository)
        reason = {"does not load": "no such device|UNAVAILABLE state", "answers wrong": "lInf loss 9"}[fault]
        with pytest.raises(WriteBackRefused, match=reason):
            options_applied(preparation, server.url)
        assert sha256_tree(repository) == before
        assert server.ready(NAME) == [1]
        x = np.ones((1, 2), np.float32)
        np.testing.assert_array_equal(server.client.infer(NAME, {"X": x}, {"X": "FP32"})["Y"], x + np.float32(MARK))


def test_recovery_has_the_server_load_the_old_version_again(tmp_path: Path) -> None:
    """Killed after the server had loaded the new version, and before that was verified."""
    repository = tmp_path / "models"
    write_model(repository)
    preparation = study(repository, tmp_path / "study")
    with production_server(repository, tmp_path / "server", models=[NAME]) as server:
        before = sha256_tree(repository)
        program = (
            "import os, sys\n"
            "from optimizer.apply import apply_winner, live\n"
            "from optimizer.tuning import reopen\n"
            "from pathlib import Path\n"
            "live.validate = lambda *_: os.kill(os.getpid(), 9)\n"
            "apply_winner(reopen(Path(sys.argv[1])), server_url=sys.argv[2])\n"
        )
        command = [sys.executable, "-c", program, str(preparation.plan.directory), server.url]
        assert subprocess.run(command, timeout=120).returncode == -9
        assert server.ready(NAME) == [2]
        lines = recover(repository)
        assert "undone" in lines[0]
        assert "version 1 is ready" in lines[1]
        assert server.ready(NAME) == [1]
        assert sha256_tree(repository) == before
