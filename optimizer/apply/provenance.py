"""``optimizer.json`` in a version directory: why this version is there, what was there before, and how to go back."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimizer import __version__
from optimizer.apply.journal import Image, Journal
from optimizer.errors import WriteBackRefused
from optimizer.records.codec import to_json
from optimizer.records.decision import Decision
from optimizer.records.engine import Engine
from optimizer.records.environment import Fingerprint
from optimizer.repository.versions import PROVENANCE_FILE

SCHEMA = 1


@dataclass(frozen=True)
class Provenance:
    """A version that this tool wrote; ``document`` is all of ``optimizer.json``."""

    path: Path
    number: int
    document: Mapping[str, Any]

    @property
    def files(self) -> dict[str, str]:
        """Of the version directory, without the provenance itself."""
        return dict(self.document["files"])

    def image(self, which: str) -> Image:
        """``before``, ``pinned`` or ``after``."""
        return Image.from_json(self.document["config"][which])

    @property
    def config(self) -> str:
        return str(self.document["config"]["path"])

    @property
    def written_at(self) -> float:
        return float(self.document["written_at"])


def provenance_bytes(
    journal: Journal, *, study: Path, route: str, decision: Decision, engine: Engine, fingerprint: Fingerprint,
    previous: tuple[int, ...], served: tuple[int, ...], repository: Path, load_test: list[str],
) -> bytes:  # fmt: skip
    pinned = journal.pinned or journal.old
    document = {
        "schema": SCHEMA,
        "tool": f"triton-optimizer {__version__}",
        "transaction": journal.transaction,
        "written_at": round(journal.started_at, 3),
        "written_at_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(journal.started_at)),
        "model": journal.model,
        "version": journal.version,
        "way": journal.way.value,
        "study": str(study.resolve()),
        "route": route,
        "decision": to_json(decision),
        "engine": {
            "id": engine.engine_id, "family": engine.family, "builder": engine.builder, "sha256": engine.sha256,
            "size_bytes": engine.size_bytes,
        },
        "fingerprint": to_json(fingerprint),
        "files": dict(journal.files),
        "served_before": list(previous),
        "served_after": list(served),
        "config": {
            "path": journal.config,
            "before": journal.old.as_json(),
            "pinned": pinned.as_json(),
            "after": journal.new.as_json(),
        },
        "load_test": load_test,
        "roll_back": f"triton-optimizer rollback {repository} --model {journal.model}",
    }  # fmt: skip
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"


def read_provenance(version: Path) -> Provenance | None:
    """``None`` where the version was not written by this tool. Raises :class:`WriteBackRefused` for a file that this
    version cannot read."""
    path = version / PROVENANCE_FILE
    try:
        document = json.loads(path.read_bytes())
        schema = document["schema"]
        found = Provenance(version, int(document["version"]), document)
        if schema <= SCHEMA:
            for which in ("before", "pinned", "after"):
                found.image(which)
            if found.written_at and found.files and found.config:
                return found
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise WriteBackRefused(
            f"cannot be read: {error.strerror}", where=path, remedy="make it readable for this user"
        ) from None
    except (ValueError, KeyError, TypeError):
        schema = "unknown"
    raise WriteBackRefused(
        f"schema {schema} cannot be read by this version, which reads up to {SCHEMA}",
        where=path,
        remedy="use the version of triton-optimizer that wrote it",
    )


def written_versions(directory: Path) -> list[Provenance]:
    """Of a model's directory, the latest first."""
    found = []
    for child in directory.iterdir():
        if child.name.isdigit() and child.is_dir():
            provenance = read_provenance(child)
            if provenance is not None:
                found.append(provenance)
    return sorted(found, key=lambda each: (each.written_at, each.number), reverse=True)
