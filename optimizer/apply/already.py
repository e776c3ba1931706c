"""``apply`` asked for again: what a study has written already is told, not written a second time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optimizer.apply import live
from optimizer.apply.provenance import Provenance, written_versions
from optimizer.apply.recovery import recover
from optimizer.apply.transaction import read_image, version_differences
from optimizer.ledger import read_study
from optimizer.repository.versions import PROVENANCE_FILE

SCHEMA = 1


def already_applied(directory: Path, *, server_url: str | None = None) -> dict[str, Any] | None:
    """A document of kind ``applied`` where this study's winner is what was written last and is there as it was written;
    ``None`` otherwise. With ``server_url`` the server is told to load it, which may be why it is asked for again.

    What a killed write-back left is settled first: it may have been this one. Raises
    :class:`optimizer.errors.WriteBackRefused` where that cannot be done.
    """
    header = read_study(directory)
    repository, name = Path(header.notes["repository"]), header.notes["model"]
    model = repository / name
    if not model.is_dir():
        return None
    recover(repository)
    written = next(iter(written_versions(model)), None)
    if written is None or written.document["study"] != str(directory.resolve()) or not _untouched(model, written):
        return None
    served = ", ".join(map(str, written.document["served_after"]))
    lines = [
        f"{name}: already applied: version {written.number} was written on {written.document['written_at_utc']}, "
        f"nothing to do (served: {served})",
        written.document["decision"]["sentence"],
    ]
    if server_url is not None:
        live.check_explicit(server_url)
        lines.append(live.load_again(server_url, name))
    lines.append(f"take it back with: {written.document['roll_back']}")
    return {
        "schema": SCHEMA,
        "kind": "applied",
        "changed": False,
        "already_applied": True,
        "lines": lines,
        "diff": "",
        "model": name,
        "repository": str(repository),
        "version": written.number,
        "served": list(written.document["served_after"]),
        "way": written.document["way"],
        "config": str(model / written.config),
        "engine_sha256": written.document["engine"]["sha256"],
        "route": written.document["route"],
        "study": written.document["study"],
        "transaction": written.document["transaction"],
        "server_url": server_url,
    }


def _untouched(model: Path, written: Provenance) -> bool:
    files = {**written.files, PROVENANCE_FILE: ""}
    wrong = [
        line
        for line in version_differences(written.path, files, complete=True)
        if not line.startswith(str(written.path / PROVENANCE_FILE))
    ]
    return not wrong and read_image(model / written.config).data == written.image("after").data
