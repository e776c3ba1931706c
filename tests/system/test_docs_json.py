"""docs/json.md against the documents that the commands print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documented import SCHEMAS, check

from optimizer.config import parse_settings
from optimizer.records.route import Route
from optimizer.records.samples import Arrays
from optimizer.testing.decided import decided_study

pytestmark = pytest.mark.system


def run(*arguments: str | Path, cwd: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "optimizer", *map(str, arguments), "--json"], cwd=cwd, capture_output=True, text=True,
        check=False, timeout=120, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def doubled_plus_one(inputs: Arrays) -> Arrays:
    return {"Y": np.asarray(2 * inputs["X"] + 1)}


def test_the_tables_are_read() -> None:
    assert len(SCHEMAS) >= 11
    assert all(len(fields) >= 5 for fields in SCHEMAS.values())


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("error", ["inspect", "absent"]),
        ("inspect", ["inspect", "{repository}"]),
        ("dry_run", ["optimize", "{repository}", "--dry-run"]),
        ("doctor", ["doctor"]),
        ("knobs", ["knobs", "--layer", "serving"]),
        ("routes", ["routes", "-concat_elim=[on|off]"]),
        ("bench", ["bench", "{repository}", "--model", "tiny", "--windows", "1", "--duration-s", "0.2"]),
    ],
)
def test_a_document_is_what_the_page_says(
    tiny_repository: Path, tmp_path: Path, name: str, arguments: list[str]
) -> None:
    check(name, run(*(word.format(repository=tiny_repository) for word in arguments), cwd=tmp_path))


def test_a_finished_study_and_its_write_back_are_what_the_page_says(tiny_repository: Path, tmp_path: Path) -> None:
    settings = parse_settings({"tolerance": ["lInf<=1e-3"]})
    route = Route.parse("-instances=2")
    decided_study(tiny_repository, "tiny", tmp_path / "study", settings, doubled_plus_one, route=route)
    check("report", run("report", "study", cwd=tmp_path))
    check("apply", run("apply", "study", "--dry-run", cwd=tmp_path))
    check("apply", run("apply", "study", cwd=tmp_path))
    check("status", run("status", tiny_repository, cwd=tmp_path))
    check("apply", run("rollback", tiny_repository, "--model", "tiny", cwd=tmp_path))
