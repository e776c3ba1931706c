"""What changes under a running study: files of the model, the disk it writes to."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from optimizer.config import Settings
from optimizer.errors import EnvironmentFailure, InputError, of_os_error
from optimizer.ledger import Ledger
from optimizer.preparation import prepare, refuse_changed
from optimizer.study import why_it_stopped
from optimizer.testing.models import null_model


def test_a_model_that_changes_while_it_is_measured_gets_no_decision(tmp_path: Path) -> None:
    directory = null_model("m").write(tmp_path / "models")
    preparation = prepare(tmp_path / "models", "m", Settings(), tmp_path / "study")
    refuse_changed(preparation)
    code = directory / "1" / "model.py"
    code.write_text(code.read_text() + "# quicker\n")
    with pytest.raises(InputError, match="changed while it was measured"):
        refuse_changed(preparation)


def test_a_relative_repository_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    null_model("m").write(tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    preparation = prepare(Path("models"), "m", Settings(), Path("study"))
    monkeypatch.chdir("/")
    assert preparation.plan.model.live_version is not None
    assert preparation.plan.model.live_version.file is not None
    assert preparation.plan.model.live_version.file.is_file()
    refuse_changed(preparation)


def test_what_the_system_refuses_stops_a_study_with_its_reason_on_record(tmp_path: Path) -> None:
    with (
        Ledger.open(tmp_path) as ledger,
        pytest.raises(EnvironmentFailure, match=r"gone: No such file[\s\S]*resume"),
        why_it_stopped(ledger),
    ):
        (tmp_path / "gone").read_bytes()
    assert Ledger.view(tmp_path).get("fact", "stopped")["exit_code"] == 3


def test_every_form_of_a_system_error_names_file_and_reason() -> None:
    full = of_os_error(OSError(errno.ENOSPC, "No space left on device", "/study/x"), remedy="free some")
    assert (full.problem, full.where) == ("No space left on device", "/study/x")
    copied = of_os_error(shutil.Error([("/a", "/b", "[Errno 28] No space left on device")]), remedy="free some")
    assert (copied.problem, copied.where) == ("[Errno 28] No space left on device", "/b")
    assert of_os_error(OSError("odd"), remedy="look").problem == "odd"
