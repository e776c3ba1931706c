"""``report`` as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from optimizer.testing.studies import write_invented_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_invented_study(tmp_path_factory.mktemp("command") / "study", candidates=12)


def report(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "optimizer", "report", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_text_markdown_json_and_a_page(study: Path, tmp_path: Path) -> None:
    text = report(study)
    assert (text.returncode, text.stderr) == (0, "")
    assert text.stdout.startswith("Study of classifier in /srv/models\n")
    assert "\x1b" not in text.stdout
    markdown = report(study, "--markdown")
    assert markdown.stdout.startswith("# classifier\n")
    page = tmp_path / "report.html"
    document = json.loads(report(study, "--json", "--html", page).stdout)
    assert document["page"] == str(page)
    assert document["state"] == "decided"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>\n")


def test_a_page_that_cannot_be_written_leaves_nothing(study: Path, tmp_path: Path) -> None:
    done = report(study, "--html", tmp_path / "missing" / "report.html")
    assert done.returncode in (2, 3)
    assert "missing" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_no_page(study: Path, tmp_path: Path) -> None:
    done = report(study, "--html", tmp_path)
    assert done.returncode == 2
    assert "--html" in done.stderr


def test_a_directory_without_a_study_is_named(tmp_path: Path) -> None:
    done = report(tmp_path)
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
    assert "remedy" in done.stderr


def test_a_torn_ledger_is_reported_and_said_to_be_torn(tmp_path: Path) -> None:
    directory = write_invented_study(tmp_path / "study", candidates=12, decided=False)
    ledger = directory / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-20])
    done = report(directory)
    assert done.returncode == 0
    assert "The end of the ledger was dropped" in done.stdout
