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
