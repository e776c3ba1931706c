"""Writes a decision into its model repository so that no moment is unsafe, takes it back, and says what is live.

Parts: ``winner`` and ``takeback`` are the two jobs; ``transaction`` changes files under a ``lock`` and a ``journal``;
``policy`` decides which versions the new config serves; ``checks`` refuses; ``load_test`` tries the staged version in a
sandbox; ``live`` talks to a running server; ``provenance`` and ``status`` remember and tell.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optimizer.preparation import Preparation
    from optimizer.records.model import Model

__all__ = ["already_applied", "apply_winner", "live_status", "recover", "rollback", "writer_of"]


def apply_winner(
    preparation: Preparation,
    *,
    dry_run: bool = False,
    server_url: str | None = None,
    replace_served_versions: bool = False,
    accept_unserved_baseline: bool = False,
) -> dict[str, Any]:
    """Writes the study's winner into its repository; see :func:`optimizer.apply.winner.apply_winner`."""
    from optimizer.apply import winner

    return winner.apply_winner(
        preparation,
        dry_run=dry_run,
        server_url=server_url,
        replace_served_versions=replace_served_versions,
        accept_unserved_baseline=accept_unserved_baseline,
    )


def already_applied(directory: Path, *, server_url: str | None = None) -> dict[str, Any] | None:
    """The document of a write-back that was done before and still stands; see :mod:`.already`."""
    from optimizer.apply import already

    return already.already_applied(directory, server_url=server_url)


def rollback(repository: Path, model: str, *, server_url: str | None = None) -> dict[str, Any]:
    """Takes the latest write-back of ``model`` back; see :func:`optimizer.apply.takeback.rollback`."""
    from optimizer.apply import takeback

    return takeback.rollback(repository, model, server_url=server_url)


def recover(repository: Path) -> list[str]:
    """Finishes or undoes what a killed write-back left; lines for people, empty where there was nothing.

    Raises :class:`optimizer.errors.WriteBackRefused` where somebody else has changed the files meanwhile.
    """
    from optimizer.apply import recovery

    return recovery.recover(repository)


def live_status(repository: Path, model: Model) -> dict[str, Any]:
    """What is live, since when, on which evidence, and whether that is stale here; see :mod:`.status`."""
    from optimizer.apply import status

    return status.live_status(repository, model)


def writer_of(repository: Path) -> str | None:
    """Who writes to the repository right now, ``None`` if nobody does."""
    from optimizer.apply import lock

    return lock.writer_of(repository)
