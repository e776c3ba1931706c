"""Study directories: what a model's study is asked for, begun on disk, opened again later."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from optimizer.config import Settings, parse_settings
from optimizer.errors import InputError
from optimizer.ledger import STUDY_FILE, Ledger, StudyHeader, check_fingerprint, read_study, write_study
from optimizer.preparation import Preparation, prepare


def settings_of(settings: Settings, name: str) -> Settings:
    """What holds for model ``name``: its part of ``per_model``, and its samples in ``inputs.directory``.

    Raises :class:`InputError` where that directory has no samples of the model.
    """
    own = settings.of_model(name)
    directory = own.inputs.directory
    if directory is None or own.inputs.file is not None:
        return own
    return own.model_copy(update={"inputs": own.inputs.model_copy(update={"file": samples_file(directory, name)})})


def samples_file(directory: Path, name: str) -> Path:
    """``DIRECTORY/NAME.npz``, ``NAME.json``, or ``NAME/``, absolute. Raises :class:`InputError`."""
    for candidate in (directory / f"{name}.npz", directory / f"{name}.json", directory / name):
        if candidate.exists():
            return candidate.resolve()
    raise InputError(
        f"no samples: it has neither {name}.npz nor {name}.json nor {name}/",
        where=directory,
        field=name,
        remedy=f"put samples of real requests into {directory / name}.npz",
    )


def begin(preparation: Preparation) -> Ledger:
    """Owns the directory, writes ``study.json`` in it, and hands over the ledger, which holds the lock still: of two
    that begin at once, one is refused. A directory that holds a study already is resumed or left alone, never
    overwritten.

    Raises :class:`InputError`, and :class:`optimizer.errors.EnvironmentFailure` where nothing can be written.
    """
    return begin_run(preparation.plan.directory, STUDY_FILE, "a study", lambda: _write_header(preparation))


def begin_run(directory: Path, header: str, what: str, write: Callable[[], None]) -> Ledger:
    """The locked ledger of a new run in ``directory``, after ``write`` has written its file ``header``."""
    refuse_begun(directory, header, what)
    ledger = Ledger.open(directory)
    try:
        # Whoever owned it a moment ago may have begun a run.
        refuse_begun(directory, header, what)
        _refuse_records(ledger, header)
        write()
    except BaseException:
        ledger.close()
        raise
    return ledger


def refuse_begun(directory: Path, header: str, what: str) -> None:
    if (directory / header).exists():
        raise InputError(
            f"holds {what} already",
            where=directory,
            field="--study",
            remedy=f"go on with it (triton-optimizer resume {directory}), or name another directory",
        )


def _refuse_records(ledger: Ledger, header: str) -> None:
    """For who begins: records without ``header``, the file that says what they belong to, are of something else, and a
    decision among them would be taken for the new one. Raises :class:`InputError`."""
    if len(ledger):
        directory = ledger.path.parent
        raise InputError(
            f"holds {len(ledger)} records of an earlier run, whose {header} is gone",
            where=ledger.path,
            field="--study",
            remedy=f"put {header} back and go on with it (triton-optimizer resume {directory}), or name another "
            "directory",
        )


def _write_header(preparation: Preparation) -> None:
    header = StudyHeader(
        settings=preparation.settings.model_dump(mode="json"),
        fingerprint=preparation.fingerprint,
        created_at=time.time(),
        notes={
            "model": preparation.plan.model.name,
            "repository": str(preparation.repository),
            **{f"why_{subject}": reason for subject, reason in preparation.why.items()},
        },
    )
    write_study(preparation.plan.directory, header)


def reopen(directory: Path) -> Preparation:
    """The preparation of an earlier study, here and now. Raises when the fingerprint differs."""
    header = read_study(directory)
    settings = parse_settings(header.settings, where=directory / STUDY_FILE)
    preparation = prepare(Path(header.notes["repository"]), header.notes["model"], settings, directory)
    check_fingerprint(directory, header, preparation.fingerprint)
    return preparation


def studies_below(directory: Path) -> list[Path]:
    """Raises :class:`InputError` where there is none."""
    found = sorted(path.parent for path in directory.glob(f"*/{STUDY_FILE}"))
    if not found:
        raise InputError("holds no study", where=directory, remedy="name the directory of a study")
    return found
