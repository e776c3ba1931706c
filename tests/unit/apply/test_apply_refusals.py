"""What speaks against writing, each with its reason, its exit code and nothing changed. No server is started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from optimizer.apply import apply_winner, checks, live_status, rollback
from optimizer.apply.journal import Way
from optimizer.apply.lock import RepositoryLock
from optimizer.config import parse_settings
from optimizer.durable import sha256_tree
from optimizer.errors import InputError, OptimizerError, WriteBackRefused
from optimizer.ledger import Ledger
from optimizer.preparation import Preparation, references_file
from optimizer.records.route import Route
from optimizer.repository.reader import read_model
from optimizer.testing.decided import decided_study
from optimizer.testing.models import null_model

ROUTE = Route.of({"instances": "2"})


def study(tmp_path: Path, *, route: Route | None = ROUTE, served: bool = True, **settings: Any) -> Preparation:
    repository = tmp_path / "models"
    if not repository.exists():
        null_model("m").write(repository)
    given = {
        "tolerance": ["*:lInf<=1e-4"], "inputs": {"synthetic_count": 8}, "builder": {"family": "unchanged"},
        "search": {"routes": "-instances=[1|2]"}, **settings,
    }  # fmt: skip
    return decided_study(
        repository, "m", tmp_path / "study", parse_settings(given, where="test"),
        lambda inputs: {"OUTPUT0": inputs["INPUT0"]}, route=route, served=served,
    )  # fmt: skip


def refused(preparation: Preparation, match: str, **options: Any) -> OptimizerError:
    before = sha256_tree(preparation.repository)
    with pytest.raises(WriteBackRefused, match=match) as refusal:
        apply_winner(preparation, **options)
    assert sha256_tree(preparation.repository) == before
    assert refusal.value.remedy
    return refusal.value


def test_keeping_what_is_there_is_an_answer_and_not_an_error(tmp_path: Path) -> None:
    preparation = study(tmp_path, route=None)
    before = sha256_tree(preparation.repository)
    document = apply_winner(preparation)
    assert document["changed"] is False
    assert "kept" in document["lines"][0]
    assert sha256_tree(preparation.repository) == before


def test_a_study_without_a_decision(tmp_path: Path) -> None:
    preparation = study(tmp_path)
    ledger = preparation.plan.directory / "ledger.jsonl"
    lines = [line for line in ledger.read_text().splitlines(keepends=True) if '"decision"' not in line]
    ledger.write_text("".join(lines))
    with pytest.raises(InputError, match="has not reached a decision"):
        apply_winner(preparation)


def test_no_tolerance(tmp_path: Path) -> None:
    assert refused(study(tmp_path, tolerance=[]), "no tolerance").field == "--tolerance"


def test_a_baseline_that_was_not_served(tmp_path: Path) -> None:
    preparation = study(tmp_path, served=False)
    assert refused(preparation, "could not be served").field == "--accept-unserved-baseline"
    assert apply_winner(preparation, accept_unserved_baseline=True, dry_run=True)["version"] == 2


def test_a_model_that_was_changed_since(tmp_path: Path) -> None:
    preparation = study(tmp_path)
    (preparation.repository / "m" / "1" / "model.py").write_text("# other\n")
    refused(preparation, "changed since the study|is not the engine that was measured")
    with pytest.raises(WriteBackRefused):
        apply_winner(preparation, dry_run=True)


def test_a_config_that_was_changed_since(tmp_path: Path) -> None:
    preparation = study(tmp_path)
    config = preparation.repository / "m" / "config.pbtxt"
    config.write_text(config.read_text() + "# a note\n")
    refused(preparation, "changed since the study")


def test_an_engine_that_is_gone_or_another(tmp_path: Path) -> None:
    preparation = study(tmp_path)
    with Ledger.open(preparation.plan.directory) as ledger:
        entry = next(ledger.records("build"))
        other = tmp_path / "other"
        other.write_text("")
        ledger.append("build", entry.key, {**entry.data, "files": {"model.py": str(other)}})
    refused(preparation, "sha256 differs")
    other.unlink()
    refused(preparation, "is gone")


def test_expected_outputs_that_are_gone(tmp_path: Path) -> None:
    preparation = study(tmp_path)
    references_file(preparation.plan.directory).unlink()
    refused(preparation, "expected outputs")


@pytest.mark.parametrize("what", ["m", "m/1", "m/config.pbtxt"])
def test_links(tmp_path: Path, what: str) -> None:
    preparation = study(tmp_path)
    path = preparation.repository / what
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert str(path) in str(refused(preparation, "is a link to"))


def test_a_repository_that_another_process_is_writing(tmp_path: Path) -> None:
    preparation = study(tmp_path)
    with RepositoryLock(preparation.repository):
        refused(preparation, f"process {os.getpid()} ")
        with pytest.raises(WriteBackRefused, match=f"process {os.getpid()} "):
            rollback(preparation.repository, "m")
        assert str(os.getpid()) in live_status(preparation.repository, preparation.plan.model)["writer"]


def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    refused(study(tmp_path), "no Triton server answers", server_url="127.0.0.1:9")


def test_names_that_are_none(tmp_path: Path) -> None:
    null_model("m").write(tmp_path)
    for name in ("..", "a/b", "", "other"):
        with pytest.raises(InputError):
            rollback(tmp_path, name)
    with pytest.raises(WriteBackRefused, match="nothing to take back"):
        rollback(tmp_path, "m")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_an_owner_that_cannot_be_kept() -> None:
    with tempfile.TemporaryDirectory() as name:
        # Not below tmp_path, which is root's alone.
        repository = Path(name)
        repository.chmod(0o755)
        null_model("m").write(repository)
        os.chown(repository / "m" / "1" / "model.py", 1234, 4321)
        model = read_model(repository, "m")
        owner = checks.owner_like(model)
        assert (owner.uid, owner.gid) == (1234, 4321)
        os.seteuid(2345)
        try:
            with pytest.raises(WriteBackRefused, match="belongs to 1234:4321"):
                checks.owner_like(model)
        finally:
            os.seteuid(0)


def test_status_of_a_model_that_nobody_tuned(tmp_path: Path) -> None:
    null_model("m").write(tmp_path)
    row = live_status(tmp_path, read_model(tmp_path, "m"))
    assert (row["version"], row["written"], row["stale"], row["journal"]) == (1, False, None, None)
    (tmp_path / ".triton-optimizer.m.journal").write_text("{}")
    row = live_status(tmp_path, read_model(tmp_path, "m"))
    assert "is not a journal" in row["problems"][0]


MOUNTS = """
import json, subprocess, sys
from pathlib import Path
from optimizer.apply.checks import check_space, check_writable, choose_way, mount_id
from optimizer.errors import WriteBackRefused
from optimizer.repository.reader import read_model
top = Path(sys.argv[1])
def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)
def told(call, *arguments):
    try:
        return str(call(*arguments))
    except WriteBackRefused as refusal:
        return refusal.problem
facts = {}
repository = top / "models"
mount("-t", "tmpfs", "-o", "size=17m", "tmpfs", str(top / "small"))
way, stage, why = choose_way(top / "small", "x", top)
facts["tmpfs"] = [way.value, str(stage), why]
facts["space"] = told(check_space, way, top / "small", stage, 5_000_000)
# A bind mount of the same file system: the device is the same, and rename does not cross it.
(top / "bound").mkdir()
mount("--bind", str(repository), str(top / "bound"))
facts["bind"] = choose_way(top / "bound", "x", top)[0].value
model = read_model(top / "bound", "m")
mount("-o", "remount,ro,bind", str(top / "bound"))
facts["read_only"] = told(check_writable, top / "bound", model)
mount("--bind", str(repository / "m"), str(repository / "m"))
facts["model_mount"] = told(check_writable, repository, read_model(repository, "m"))
print(json.dumps(facts))
"""


def test_mount_points_read_only_and_full_file_systems(tmp_path: Path) -> None:
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode
    ):
        pytest.skip("no mount namespace can be made here (unshare --mount)")
    null_model("m").write(tmp_path / "models")
    (tmp_path / "small").mkdir()
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", MOUNTS, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    facts = json.loads(run.stdout)
    assert facts["tmpfs"][0] == "in_place"
    assert facts["tmpfs"][1].startswith(str(tmp_path))
    assert "mount point" in facts["tmpfs"][2]
    assert "MB are free" in facts["space"]
    assert facts["bind"] == "in_place"
    assert "cannot be written" in facts["read_only"]
    assert "a mount of its own" in facts["model_mount"]
    assert checks.choose_way(tmp_path / "models", "x", tmp_path)[0] is Way.RENAME
