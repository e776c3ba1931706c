"""What a write-back is about to do, on disk before it does it: ``.triton-optimizer.MODEL.journal`` beside the models.

The journal alone is enough to undo, or to finish, whatever was begun: it holds the old and the new config byte for
byte. States: PREPARED until everything is in place and verified, then COMMITTED, then the file is gone.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from optimizer.durable import fsync_directory
from optimizer.errors import WriteBackRefused

SCHEMA = 1
PREFIX = ".triton-optimizer."
JOURNAL_SUFFIX = ".journal"


class Kind(str, Enum):
    APPLY = "apply"
    ROLLBACK = "rollback"


class State(str, Enum):
    PREPARED = "prepared"
    COMMITTED = "committed"


class Way(str, Enum):
    """How the version directory comes into the model's directory."""

    RENAME = "rename"
    IN_PLACE = "in_place"


@dataclass(frozen=True)
class Image:
    """A config file: ``data`` is ``None`` where there is none."""

    data: bytes | None
    mode: int = 0o644
    uid: int = -1
    gid: int = -1

    @property
    def sha256(self) -> str | None:
        return None if self.data is None else hashlib.sha256(self.data).hexdigest()

    def as_json(self) -> dict[str, Any]:
        return {**bytes_to_json(self.data), "sha256": self.sha256, "mode": self.mode, "uid": self.uid, "gid": self.gid}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Image:
        return cls(bytes_from_json(document), int(document["mode"]), int(document["uid"]), int(document["gid"]))


def bytes_to_json(data: bytes | None) -> dict[str, Any]:
    """As text where it is UTF-8, for people; else base64."""
    if data is None:
        return {"absent": True}
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def bytes_from_json(document: Mapping[str, Any]) -> bytes | None:
    if document.get("absent"):
        return None
    return str(document["text"]).encode() if "text" in document else base64.b64decode(document["base64"])


@dataclass(frozen=True)
class Journal:
    """One transaction. ``old`` is the config before the write-back, ``new`` the one after it, in either direction;
    ``pinned`` is ``old`` serving exactly the versions that it serves now, ``None`` where ``old`` pins them itself."""

    transaction: str
    kind: Kind
    model: str
    config: str
    """Relative to the model's directory: ``config.pbtxt`` or ``configs/NAME.pbtxt``."""
    version: int
    way: Way
    stage: str
    """Absolute path of the directory outside of the repository that belongs to this transaction."""
    old: Image
    pinned: Image | None
    new: Image
    files: Mapping[str, str]
    """Of the version directory: relative path to sha256."""
    started_at: float = 0.0
    server_url: str | None = None
    state: State = State.PREPARED
    extra: Mapping[str, Any] = field(default_factory=dict)

    def committed(self) -> Journal:
        return replace(self, state=State.COMMITTED)

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "transaction": self.transaction,
            "kind": self.kind.value,
            "state": self.state.value,
            "model": self.model,
            "config": self.config,
            "version": self.version,
            "way": self.way.value,
            "stage": self.stage,
            "old": self.old.as_json(),
            "pinned": self.pinned.as_json() if self.pinned else None,
            "new": self.new.as_json(),
            "files": dict(self.files),
            "started_at": self.started_at,
            "server_url": self.server_url,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Journal:
        return cls(
            transaction=str(document["transaction"]),
            kind=Kind(document["kind"]),
            state=State(document["state"]),
            model=str(document["model"]),
            config=str(document["config"]),
            version=int(document["version"]),
            way=Way(document["way"]),
            stage=str(document["stage"]),
            old=Image.from_json(document["old"]),
            pinned=Image.from_json(document["pinned"]) if document["pinned"] else None,
            new=Image.from_json(document["new"]),
            files=dict(document["files"]),
            started_at=float(document["started_at"]),
            server_url=document["server_url"],
        )


def journal_path(repository: Path, model: str) -> Path:
    return repository / f"{PREFIX}{model}{JOURNAL_SUFFIX}"


def scratch_path(repository: Path, model: str) -> Path:
    """Where one file is completed before it is renamed to where it belongs. Known by name, so that it can be found
    after a crash; a file in the repository's root, so that no server takes it for anything."""
    return repository / f"{PREFIX}{model}.part"


def write_journal(repository: Path, journal: Journal) -> None:
    """Durable when it returns. Raises ``OSError``."""
    path = journal_path(repository, journal.model)
    scratch = path.with_name(path.name + ".part")
    content = json.dumps(journal.as_json(), indent=1, sort_keys=True).encode() + b"\n"
    write_file(scratch, content, mode=0o600)
    scratch.rename(path)
    fsync_directory(repository)


def write_file(path: Path, content: bytes, *, mode: int, uid: int = -1, gid: int = -1) -> None:
    """A complete, fsynced file under a name that nobody reads yet."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        written = 0
        while written < len(content):
            written += os.write(descriptor, content[written:])
        status = os.fstat(descriptor)
        if (uid not in (-1, status.st_uid)) or (gid not in (-1, status.st_gid)):
            os.fchown(descriptor, uid, gid)
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_journal(repository: Path, model: str) -> None:
    """The last step. Raises ``OSError``."""
    path = journal_path(repository, model)
    with contextlib.suppress(FileNotFoundError):
        path.with_name(path.name + ".part").unlink()
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    fsync_directory(repository)


def read_journal(repository: Path, model: str) -> Journal | None:
    """``None`` where nothing was begun. Raises :class:`WriteBackRefused` where it cannot be read."""
    path = journal_path(repository, model)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WriteBackRefused(
            f"cannot be read: {error.strerror}", where=path, remedy="give the right to read it"
        ) from None
    try:
        document = json.loads(content)
        if document["schema"] > SCHEMA:
            raise WriteBackRefused(
                f"has schema {document['schema']}, this version reads up to {SCHEMA}",
                where=path,
                remedy="use the version of triton-optimizer that wrote it",
            )
        journal = Journal.from_json(document)
    except (ValueError, KeyError, TypeError):
        raise WriteBackRefused(
            "is not a journal of triton-optimizer",
            where=path,
            remedy="it is written whole or not at all, so somebody has changed it: compare the model's files by hand, "
            "then remove it",
        ) from None
    if journal.way is Way.RENAME:
        # The repository may be seen under another path than the writer's, in another container.
        journal = replace(journal, stage=str(repository.parent / Path(journal.stage).name))
    return replace(journal, model=model)


def pending(repository: Path) -> list[str]:
    """Models with a journal, or with a file that was left before there was one. Raises ``OSError``."""
    names: dict[str, None] = {}
    for entry in sorted(repository.iterdir()):
        if not entry.name.startswith(PREFIX) or entry.is_dir():
            continue
        rest = entry.name.removeprefix(PREFIX)
        for suffix in (JOURNAL_SUFFIX + ".part", JOURNAL_SUFFIX, ".part"):
            if rest.endswith(suffix):
                names[rest.removesuffix(suffix)] = None
                break
    return list(names)
