"""A study, or a run over several models, begins once: under the directory's lock, which it then keeps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from optimizer.config import Settings
from optimizer.errors import InputError
from optimizer.fleet import FLEET_FILE, begin_fleet
from optimizer.ledger import STUDY_FILE, Ledger
from optimizer.preparation import Preparation, prepare
from optimizer.progress import silent
from optimizer.studies import begin
from optimizer.testing.models import null_model

IN_USE = f"in use by process {os.getpid()}"


@pytest.fixture
def preparation(tmp_path: Path) -> Preparation:
    null_model("m").write(tmp_path / "models")
    return prepare(tmp_path / "models", "m", Settings(), tmp_path / "study")


def test_nothing_is_written_into_a_directory_that_another_owns(preparation: Preparation) -> None:
    directory = preparation.plan.directory
    with Ledger.open(directory), pytest.raises(InputError, match=IN_USE):
        begin(preparation)
    assert not (directory / STUDY_FILE).exists()


def test_a_study_that_begins_owns_its_directory_until_it_ends(preparation: Preparation) -> None:
    directory = preparation.plan.directory
    with begin(preparation) as ledger:
        ledger.append("fact", "mine", {})
        with pytest.raises(InputError, match=IN_USE):
            Ledger.open(directory)
        written = (directory / STUDY_FILE).read_bytes()
        with pytest.raises(InputError, match="holds a study already"):
            begin(preparation)
        assert (directory / STUDY_FILE).read_bytes() == written
    with Ledger.open(directory) as ledger:
        assert ledger.get("fact", "mine") == {}


def test_a_study_that_another_began_at_the_last_moment_is_not_overwritten(
    preparation: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = preparation.plan.directory
    take = Ledger.open

    def after_the_other(where: Path) -> Ledger:
        where.mkdir(exist_ok=True)
        (where / STUDY_FILE).write_text("the other's")
        return take(where)

    monkeypatch.setattr(Ledger, "open", after_the_other)
    with pytest.raises(InputError, match="holds a study already"):
        begin(preparation)
    assert (directory / STUDY_FILE).read_text() == "the other's"
    take(directory).close()


def test_records_that_a_deleted_header_leaves_behind_are_not_taken_for_the_new_studys(preparation: Preparation) -> None:
    directory = preparation.plan.directory
    with begin(preparation) as ledger:
        ledger.append("decision", "final", {})
    (directory / STUDY_FILE).unlink()
    told = (
        r"ledger\.jsonl: --study: holds 1 records of an earlier run, whose study\.json is gone\n  remedy: put .* back"
    )
    with pytest.raises(InputError, match=told):
        begin(preparation)
    assert not (directory / STUDY_FILE).exists()
    Ledger.open(directory).close()


def test_a_study_whose_begin_was_cut_short_begins_again(preparation: Preparation) -> None:
    Ledger.open(preparation.plan.directory).close()
    begin(preparation).close()
    assert (preparation.plan.directory / STUDY_FILE).exists()


def test_a_run_over_several_models_begins_once_as_well(tmp_path: Path) -> None:
    repository, directory = tmp_path / "models", tmp_path / "studies"
    for name in ("a", "b"):
        null_model(name).write(repository)
    with Ledger.open(directory), pytest.raises(InputError, match=IN_USE):
        begin_fleet(repository, Settings(), ["a", "b"], directory, silent)
    assert not (directory / FLEET_FILE).exists()
    ledger, _ = begin_fleet(repository, Settings(), ["a", "b"], directory, silent)
    with ledger, pytest.raises(InputError, match=IN_USE):
        Ledger.open(directory)
    with pytest.raises(InputError, match="holds a tuning of several models already"):
        begin_fleet(repository, Settings(), ["a", "b"], directory, silent)
    (directory / FLEET_FILE).unlink()
    with Ledger.open(directory) as ledger:
        ledger.append("fact", "together", {})
    with pytest.raises(InputError, match=r"whose fleet\.json is gone"):
        begin_fleet(repository, Settings(), ["a", "b"], directory, silent)
