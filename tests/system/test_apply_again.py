"""A study that is applied again, and commands that come after a killed write-back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from optimizer.config import parse_settings
from optimizer.durable import sha256_tree
from optimizer.errors import InputError
from optimizer.preparation import Preparation
from optimizer.progress import silent
from optimizer.records.route import Route
from optimizer.testing.decided import decided_study
from optimizer.testing.models import null_model
from optimizer.tuning import apply_study, resume_study


@pytest.fixture
def study(tmp_path: Path) -> Preparation:
    null_model("m").write(tmp_path / "models")
    settings = parse_settings({
        "tolerance": ["*:lInf<=1e-4"], "inputs": {"synthetic_count": 8}, "builder": {"family": "unchanged"},
        "search": {"routes": "-instances=[1|2]"},
    })  # fmt: skip
    return decided_study(
        tmp_path / "models", "m", tmp_path / "study", settings, lambda inputs: {"OUTPUT0": inputs["INPUT0"]},
        route=Route.of({"instances": "2"}),
    )  # fmt: skip


@pytest.mark.system
def test_applying_again_says_so_until_somebody_edits_the_config(study: Preparation) -> None:
    first = apply_study(study.plan.directory)
    assert first["changed"]
    after = sha256_tree(study.repository)
    second = apply_study(study.plan.directory)
    assert (second["changed"], second["already_applied"]) == (False, True)
    assert "already applied" in second["lines"][0]
    assert {key: second[key] for key in ("version", "engine_sha256", "transaction", "served")} == {
        key: first[key] for key in ("version", "engine_sha256", "transaction", "served")
    }
    resumed = resume_study(study.plan.directory, write_back=True, progress=silent)["models"][0]
    assert resumed["applied"]["already_applied"]
    assert sha256_tree(study.repository) == after
    config = study.repository / "m" / "config.pbtxt"
    config.write_text(config.read_text() + "# edited\n")
    with pytest.raises(InputError, match="has changed"):
        apply_study(study.plan.directory)


@pytest.mark.parametrize("command", ["status", "inspect"])
def test_what_a_killed_write_back_left_is_settled_by_commands_that_read(study: Preparation, command: str) -> None:
    before = sha256_tree(study.repository)
    (study.repository / ".triton-optimizer.m.journal.part").write_bytes(b"half")
    ran = subprocess.run(
        [sys.executable, "-m", "optimizer", command, str(study.repository), "--json"], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert sha256_tree(study.repository) == before
