"""``optimize --suggest-tolerance`` on the real server: texts that can be used, and nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from optimizer.accuracy.tolerances import parse_tolerances
from optimizer.durable import sha256_tree

pytestmark = pytest.mark.system


def test_tolerances_are_suggested_and_nothing_is_written(tiny_repository: Path, tmp_path: Path) -> None:
    before = sha256_tree(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "optimizer", "optimize", str(tiny_repository), "--model", "tiny",
         "--suggest-tolerance", "--synthetic-count", "16", "--json"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (model,) = document["models"]
    assert parse_tolerances(model["tolerance"])
    assert document["rows"] == [["tiny", text] for text in model["tolerance"]]
    assert any("noise" in line or "candidate" in line or "rounding" in line for line in model["explanation"])
    assert sha256_tree(tmp_path) == before
