"""What a killed write-back left is settled at the next command, by whoever comes first."""

from __future__ import annotations

import contextlib
from pathlib import Path

from optimizer.apply.journal import State, pending, read_journal, remove_journal, scratch_path
from optimizer.apply.lock import LOCK_FILE, RepositoryLock, writer_of
from optimizer.apply.transaction import settle
from optimizer.errors import EnvironmentFailure


def recover(repository: Path) -> list[str]:
    """Lines for people; empty where nothing was left, or where its owner is still at it.

    Raises :class:`optimizer.errors.WriteBackRefused` where somebody else has changed what was being written, and
    :class:`EnvironmentFailure` where the repository cannot be written.
    """
    try:
        if not repository.is_dir() or not (pending(repository) or (repository / LOCK_FILE).exists()):
            return []
        if writer_of(repository) is not None:
            return []
        with RepositoryLock(repository):
            return settle_all(repository)
    except OSError as error:
        raise EnvironmentFailure(
            f"what an interrupted write-back left cannot be settled: {error.strerror or error}",
            where=error.filename or repository,
            remedy="give the right to write there, or free space, then run the command again",
        ) from None


def settle_all(repository: Path) -> list[str]:
    """For whoever holds the lock. Raises ``OSError``."""
    lines = []
    for model in pending(repository):
        journal = read_journal(repository, model)
        if journal is None:
            # Killed before the journal was there, or after it went: nothing else was begun.
            with contextlib.suppress(FileNotFoundError):
                scratch_path(repository, model).unlink()
            remove_journal(repository, model)
            continue
        lines.append(settle(repository, journal))
        if journal.server_url and journal.state is State.PREPARED:
            from optimizer.apply.live import load_again

            lines.append(load_again(journal.server_url, model))
    return lines
