"""``rollback``: the latest write-back of a model is taken back, to the byte, by what its provenance says."""

from __future__ import annotations

import hashlib
import secrets
import time
from pathlib import Path
from typing import Any

from optimizer.apply import checks, live, transaction
from optimizer.apply.journal import Image, Journal, Kind, Way
from optimizer.apply.lock import RepositoryLock
from optimizer.apply.provenance import Provenance, written_versions
from optimizer.apply.recovery import settle_all
from optimizer.errors import InputError, WriteBackRefused
from optimizer.repository.config_text import config_diff
from optimizer.repository.reader import check_model_name, list_models
from optimizer.repository.versions import PROVENANCE_FILE

SCHEMA = 1


def rollback(repository: Path, model: str, *, server_url: str | None = None) -> dict[str, Any]:
    """A document of kind ``applied``. Of several write-backs only the latest is taken back.

    Raises :class:`WriteBackRefused` where config or version were changed since, :class:`InputError` where there is no
    such model.
    """
    check_model_name(model)
    repository = repository.resolve()
    if model not in list_models(repository):
        raise InputError(
            f"there is no model '{model}'", where=repository, field="--model", remedy="`status` lists the models"
        )
    directory = repository / model
    if server_url is not None:
        live.check_explicit(server_url)
    try:
        with RepositoryLock(repository):
            lines = settle_all(repository)
            written = _latest(directory)
            journal = _journal(repository, written, server_url)
            _refuse_changed(repository, journal, written)
            transaction.take_version_back(repository, journal)
    except OSError as error:
        raise WriteBackRefused(
            f"could not be taken back: {error.strerror or error}",
            where=error.filename or directory,
            remedy="free space or give the right to write there; what was begun is completed by the next command",
        ) from None
    if server_url is not None:
        lines += _load(server_url, model, [int(each) for each in written.document["served_before"]], written.number)
    return _document(repository, written, journal, lines)


def _latest(directory: Path) -> Provenance:
    if directory.is_symlink():
        raise WriteBackRefused(
            f"is a link to {directory.readlink()}", where=directory, remedy="name the repository that holds the model"
        )
    written = written_versions(directory)
    if not written:
        raise WriteBackRefused(
            "no version of this model was written by triton-optimizer: there is nothing to take back",
            where=directory,
            remedy="`triton-optimizer status` shows what is live",
        )
    return written[0]


def _journal(repository: Path, written: Provenance, server_url: str | None) -> Journal:
    model = written.path.parent.name
    token = secrets.token_hex(6)
    way, stage, _ = checks.choose_way(repository, token, repository)
    if way is Way.IN_PLACE:
        # Nothing is staged: the version goes file by file.
        stage = repository / f"{transaction.STAGE_MARK}{token}"
    before, pinned = written.image("before"), written.image("pinned")
    content = (written.path / PROVENANCE_FILE).read_bytes()
    return Journal(
        transaction=token,
        kind=Kind.ROLLBACK,
        model=model,
        config=written.config,
        version=written.number,
        way=way,
        stage=str(stage),
        old=before,
        pinned=pinned if pinned.data != before.data else None,
        new=written.image("after"),
        files={**written.files, PROVENANCE_FILE: hashlib.sha256(content).hexdigest()},
        started_at=time.time(),
        server_url=server_url,
    )


def _refuse_changed(repository: Path, journal: Journal, written: Provenance) -> None:
    path = transaction.config_path(repository, journal)
    current: Image = transaction.read_image(path)
    version = transaction.version_path(repository, journal)
    wrong = transaction.version_differences(version, journal.files, complete=True)
    if version.is_symlink() or path.is_symlink():
        wrong.append("a link was put in its place")
    wrong += [
        f"version {number}, which was served before, is gone"
        for number in written.document["served_before"]
        if not (repository / journal.model / str(number)).is_dir()
    ]
    if current.data != journal.new.data:
        wrong.insert(0, f"{path} was edited since the write-back")
    if wrong:
        raise WriteBackRefused(
            "cannot be taken back without losing changes: " + "; ".join(wrong),
            where=repository / journal.model,
            remedy=f"undo them ({version / PROVENANCE_FILE} holds the config before and after), or go back by hand",
        )


def _load(server_url: str, model: str, versions: list[int], number: int) -> list[str]:
    line = live.load_again(server_url, model)
    ready = live.ready_now(server_url, model)
    missing = set(versions) - ready
    if number in ready:
        raise WriteBackRefused(
            f"the files are as they were, but the server still serves version {number}: {line}",
            where=server_url,
            remedy=f"look at the server's log, and load {model} again",
        )
    if missing:
        raise WriteBackRefused(
            f"the files are as they were, but the server lacks version {', '.join(map(str, sorted(missing)))}: {line}",
            where=server_url,
            remedy=f"look at the server's log, and load {model} again",
        )
    return [line]


def _document(repository: Path, written: Provenance, journal: Journal, lines: list[str]) -> dict[str, Any]:
    before = (journal.old.data or b"").decode(errors="replace")
    after = (journal.new.data or b"").decode(errors="replace")
    served = ", ".join(map(str, written.document["served_before"]))
    told = [
        f"{journal.model}: version {journal.version} is taken back; version {served} is what the config serves again",
        f"the config is as it was, byte for byte: {journal.config}",
        *lines,
    ]
    if journal.server_url is None:
        told.append(f"a server that runs serves it after an explicit load of {journal.model}, or its next start")
    return {
        "schema": SCHEMA,
        "kind": "applied",
        "changed": True,
        "lines": told,
        "diff": config_diff(after, before, old_name=journal.config, new_name=f"{journal.config} (as before)"),
        "model": journal.model,
        "repository": str(repository),
        "version": journal.version,
        "rolled_back": True,
        "served": list(written.document["served_before"]),
        "way": journal.way.value,
        "config": str(repository / journal.model / journal.config),
        "engine_sha256": written.document["engine"]["sha256"],
        "study": written.document["study"],
        "transaction": journal.transaction,
        "server_url": journal.server_url,
    }
