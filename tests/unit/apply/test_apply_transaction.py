"""Foreign changes: whatever is neither the old, the pinned nor the new state is left alone, and named."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from crash_driver import CONTENTS, MODEL, NEW, OLD, PINNED, journal_of, make_repository

from optimizer.apply import recover
from optimizer.apply.journal import Image, Kind, Way, journal_path, read_journal, write_journal
from optimizer.apply.transaction import (
    Owner,
    begin,
    carry_out,
    read_image,
    restore,
    stage_version,
    take_version_back,
    write_version,
)
from optimizer.durable import sha256_tree
from optimizer.errors import EnvironmentFailure, WriteBackRefused

OWNER = Owner(os.getuid(), os.getgid(), 0o640, 0o750)


@pytest.fixture(params=["rename", "in_place"])
def way(request: pytest.FixtureRequest) -> Way:
    return Way(request.param)


def test_there_and_back(tmp_path: Path, way: Way) -> None:
    repository = make_repository(tmp_path)
    before = sha256_tree(repository)
    seen = []

    def look(staged: Path) -> None:
        # Nothing in the repository has changed yet but for the journal.
        seen.append(sorted(path.relative_to(staged).as_posix() for path in staged.rglob("*") if path.is_file()))
        assert sha256_tree(repository, exclude=[journal_path(repository, MODEL).name]) == before

    write_version(repository, journal_of(repository, Kind.APPLY, way), CONTENTS, OWNER, check_staged=look)
    assert seen == [sorted(CONTENTS)]
    version = repository / MODEL / "2"
    assert {name: (version / name).read_bytes() for name in CONTENTS} == CONTENTS
    assert stat.S_IMODE((version / "weights").stat().st_mode) == 0o750
    assert stat.S_IMODE((version / "model.onnx").stat().st_mode) == 0o640
    assert (version / "model.onnx").stat().st_nlink == 1
    assert (repository / MODEL / "config.pbtxt").read_bytes() == NEW
    take_version_back(repository, journal_of(repository, Kind.ROLLBACK, way))
    assert sha256_tree(repository) == before


def test_every_state_on_the_way_serves_the_old_version(
    tmp_path: Path, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 2 is never there, in part or whole, under a config that does not name its versions."""
    repository = make_repository(tmp_path)
    states = []
    config, version = repository / MODEL / "config.pbtxt", repository / MODEL / "2"
    names = {OLD: "old", PINNED: "pinned", NEW: "new"}
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        complete = version.is_dir() and all((version / name).exists() for name in CONTENTS)
        state = (names[config.read_bytes()], "whole" if complete else "part" if version.exists() else "none")
        if not states or states[-1] != state:
            states.append(state)

    monkeypatch.setattr(os, "fsync", watched)
    write_version(repository, journal_of(repository, Kind.APPLY, way), CONTENTS, OWNER)
    take_version_back(repository, journal_of(repository, Kind.ROLLBACK, way))
    forward = [("old", "none"), ("pinned", "none"), ("pinned", "part"), ("pinned", "whole"), ("new", "whole")]
    back = [("pinned", "whole"), ("pinned", "none"), ("old", "none")]
    wanted = [state for state in forward + back if way is Way.IN_PLACE or state[1] != "part"]
    assert states == wanted


def test_a_failed_check_takes_everything_back(tmp_path: Path, way: Way) -> None:
    repository = make_repository(tmp_path)
    before = sha256_tree(repository)
    reloaded = []

    def fail() -> None:
        assert (repository / MODEL / "config.pbtxt").read_bytes() == NEW
        raise WriteBackRefused("the server says no")

    with pytest.raises(WriteBackRefused, match="says no"):
        write_version(
            repository, journal_of(repository, Kind.APPLY, way), CONTENTS, OWNER, verify=fail,
            reload=lambda: reloaded.append((repository / MODEL / "config.pbtxt").read_bytes()),
        )  # fmt: skip
    assert sha256_tree(repository) == before
    assert reloaded == [OLD]
    assert [path.name for path in tmp_path.iterdir() if path.name != "elsewhere"] == ["models"]


def foreign_config(repository: Path) -> Path:
    path = repository / MODEL / "config.pbtxt"
    path.write_text("somebody's own\n")
    return path


def foreign_file(repository: Path) -> Path:
    path = repository / MODEL / "2" / "notes.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("somebody's own\n")
    return path


def foreign_engine(repository: Path) -> Path:
    path = repository / MODEL / "2" / "model.onnx"
    path.parent.mkdir(exist_ok=True)
    path.write_text("somebody's own\n")
    return path


@pytest.mark.parametrize("change", [foreign_config, foreign_file, foreign_engine])
def test_recovery_leaves_foreign_changes_alone(tmp_path: Path, way: Way, change: Callable[[Path], Path]) -> None:
    """Killed when all was in place but not committed; then somebody edits."""
    repository = make_repository(tmp_path)
    journal = journal_of(repository, Kind.APPLY, way)
    begin(repository, journal)
    stage_version(journal, CONTENTS, OWNER)
    carry_out(repository, journal, OWNER)
    path = change(repository)
    before = sha256_tree(repository, exclude=[".triton-optimizer.lock"])
    for _ in range(2):
        with pytest.raises(WriteBackRefused) as refusal:
            recover(repository)
        assert str(path) in str(refusal.value)
        assert refusal.value.exit_code == 6
        assert sha256_tree(repository) == before


@pytest.mark.parametrize("change", [foreign_file, foreign_engine])
def test_a_version_that_somebody_else_put_there_stays(tmp_path: Path, way: Way, change: Callable[[Path], Path]) -> None:
    """The number is taken while the load test runs: the write-back is refused, and theirs is not touched."""
    repository = make_repository(tmp_path)
    with pytest.raises(WriteBackRefused, match="appeared meanwhile"):
        write_version(
            repository, journal_of(repository, Kind.APPLY, way), CONTENTS, OWNER,
            check_staged=lambda _: change(repository) and None,
        )  # fmt: skip
    theirs = make_repository(tmp_path / "twin")
    change(theirs)
    assert sha256_tree(repository) == sha256_tree(theirs)


def test_a_config_edited_between_two_steps_is_not_overwritten(tmp_path: Path, way: Way) -> None:
    repository = make_repository(tmp_path)
    with pytest.raises(WriteBackRefused, match="left alone"):
        write_version(
            repository, journal_of(repository, Kind.APPLY, way), CONTENTS, OWNER,
            check_staged=lambda _: foreign_config(repository) and None,
        )  # fmt: skip
    assert (repository / MODEL / "config.pbtxt").read_text() == "somebody's own\n"


def test_bytecode_of_a_server_is_no_foreign_change(tmp_path: Path, way: Way) -> None:
    repository = make_repository(tmp_path)
    before = sha256_tree(repository)
    write_version(repository, journal_of(repository, Kind.APPLY, way), CONTENTS, OWNER)
    cache = repository / MODEL / "2" / "__pycache__"
    cache.mkdir()
    (cache / "model.cpython-311.pyc").write_bytes(b"\0")
    take_version_back(repository, journal_of(repository, Kind.ROLLBACK, way))
    assert sha256_tree(repository) == before


def test_where_there_was_no_config_there_is_none_again(tmp_path: Path, way: Way) -> None:
    repository = make_repository(tmp_path)
    (repository / MODEL / "config.pbtxt").unlink()
    before = sha256_tree(repository)
    forward = replace(journal_of(repository, Kind.APPLY, way), old=Image(None), new=Image(NEW), pinned=Image(PINNED))
    write_version(repository, forward, CONTENTS, OWNER)
    take_version_back(repository, replace(forward, kind=Kind.ROLLBACK))
    assert sha256_tree(repository) == before


def test_a_config_that_does_not_change_is_still_pinned(tmp_path: Path, way: Way) -> None:
    """Only the engine differs: old and new config are the same bytes, and recovery must still take the version out."""
    repository = make_repository(tmp_path)
    before = sha256_tree(repository)
    journal = journal_of(repository, Kind.APPLY, way)
    journal = replace(journal, new=journal.old)
    write_version(repository, journal, CONTENTS, OWNER)
    assert (repository / MODEL / "2").is_dir()
    restore(repository, replace(journal, stage=str(tmp_path / ".models.triton-optimizer-two")))
    assert sha256_tree(repository) == before


def test_a_config_always_gets_a_newer_time(tmp_path: Path, way: Way) -> None:
    """A server compares times: one that lies in the future must not hide the change from it."""
    repository = make_repository(tmp_path)
    future = 4_000_000_000
    for path in (repository / MODEL).rglob("*"):
        os.utime(path, (future, future))
    journal = journal_of(repository, Kind.APPLY, way)
    config = repository / MODEL / "config.pbtxt"
    write_version(repository, journal, CONTENTS, OWNER)
    applied = config.stat().st_mtime_ns
    assert applied > future * 10**9
    take_version_back(repository, replace(journal, kind=Kind.ROLLBACK))
    assert config.stat().st_mtime_ns > applied
    assert config.read_bytes() == OLD


def test_bytes_that_are_no_text_come_back(tmp_path: Path) -> None:
    repository = make_repository(tmp_path)
    journal = replace(journal_of(repository, Kind.APPLY, Way.RENAME), old=Image(b"\xff\r\n\0", 0o600, 1, 2))
    write_journal(repository, journal)
    assert read_journal(repository, MODEL) == replace(journal)


def test_a_damaged_journal_is_not_guessed_at(tmp_path: Path) -> None:
    repository = make_repository(tmp_path)
    for content in (b"{}", b"", b'{"schema": 1, "state"', b'{"schema": 99}'):
        journal_path(repository, MODEL).write_bytes(content)
        with pytest.raises(WriteBackRefused):
            recover(repository)
        assert read_image(repository / MODEL / "config.pbtxt").data == OLD


def test_a_stage_that_is_not_ours_is_not_removed(tmp_path: Path) -> None:
    repository = make_repository(tmp_path)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("")
    write_journal(repository, replace(journal_of(repository, Kind.APPLY, Way.IN_PLACE), stage=str(precious)))
    assert len(recover(repository)) == 1
    assert (precious / "file").exists()


def test_recovery_that_cannot_write_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = make_repository(tmp_path)
    write_journal(repository, journal_of(repository, Kind.APPLY, Way.RENAME))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(EnvironmentFailure, match="No space left"):
            recover(repository)
    assert len(recover(repository)) == 1
