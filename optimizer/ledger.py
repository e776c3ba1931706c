"""A study's memory: ``ledger.jsonl``, append-only, one record a line, and ``study.json``, what the study is tied to.

A record is on disk (fsync) before :meth:`Ledger.append` returns, so whatever was acted upon is known after kill −9 or
a power cut. A line that was being written then is torn: it is dropped when the study is opened again, and said so in
:attr:`Ledger.dropped`. One process at a time owns a study, by a lock that the kernel releases when that process ends,
however it ends.

A line is ``{"schema": 2, "at": unix seconds, "kind": …, "key": …, "data": {…}}``. Lines of an older schema are read
through :data:`MIGRATIONS`; a newer schema is refused, since guessing at it could repeat or lose work.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from optimizer import __version__
from optimizer.durable import fsync_directory, write_json
from optimizer.errors import EnvironmentFailure, InputError
from optimizer.records.codec import CodecError, from_json, to_json
from optimizer.records.environment import GIVEN_FILES, Fingerprint

SCHEMA = 2
LEDGER_FILE = "ledger.jsonl"
STUDY_FILE = "study.json"
LOCK_FILE = "study.lock"
OF_THE_USER = frozenset({"model", "shapes", *GIVEN_FILES})
"""What of a fingerprint the user gives; the rest is the environment."""

Line: TypeAlias = dict[str, Any]
T = TypeVar("T")


def _from_schema_1(line: Line) -> Line:
    """Schema 1 did not write when a record was made."""
    return {**line, "schema": 2, "at": 0.0}


MIGRATIONS: Mapping[int, Callable[[Line], Line]] = {1: _from_schema_1}
"""Schema to the function that lifts one line of it to the next schema."""


@dataclass(frozen=True)
class Entry:
    """One line. ``at`` is unix seconds, 0 where an old schema did not write it."""

    kind: str
    key: str
    data: dict[str, Any]
    at: float


class Ledger:
    """The records of one study, in order. Made by :meth:`open` (owns the study) or :meth:`view` (reads only)."""

    def __init__(self, path: Path, entries: list[Entry], dropped: str | None, descriptor: int, lock: int) -> None:
        self.path = path
        self.dropped = dropped
        """What was dropped from the end of the file when it was opened, for people; ``None`` when it was whole."""
        self._entries = entries
        self._latest = {(entry.kind, entry.key): entry for entry in entries}
        self._descriptor = descriptor
        self._lock = lock
        self._end = path.stat().st_size if descriptor >= 0 else 0

    @classmethod
    def open(cls, directory: Path) -> Ledger:
        """Owns the study in ``directory`` (made where missing) until :meth:`close`, or the end of this process.

        Raises :class:`InputError` where another process owns it, where a line in the middle is damaged, or where a
        newer version wrote it; :class:`EnvironmentFailure` where the directory cannot be written.
        """
        path = directory / LEDGER_FILE
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lock = _lock(directory)
        except OSError as error:
            raise EnvironmentFailure(
                f"the study directory cannot be used: {error.strerror}",
                where=directory,
                remedy="Choose a directory that this user may write, with --study.",
            ) from None
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                content = path.read_bytes()
                entries, good, dropped = _parse(path, content)
                if good < len(content):
                    os.ftruncate(descriptor, good)
                    os.fsync(descriptor)
                fsync_directory(directory)
                return cls(path, entries, dropped, descriptor, lock)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            os.close(lock)
            raise EnvironmentFailure(
                f"the ledger cannot be opened: {error.strerror}",
                where=path,
                remedy="Check the file's owner and the space on its file system.",
            ) from None
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    def view(cls, directory: Path) -> Ledger:
        """Reads a study, its owner alive or not, and changes nothing. :meth:`append` is refused."""
        path = directory / LEDGER_FILE
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(
                f"no ledger can be read: {error.strerror}", where=path, remedy="Name the directory of a study."
            ) from None
        entries, _, dropped = _parse(path, content)
        return cls(path, entries, dropped, -1, -1)

    def append(self, kind: str, key: str, data: Mapping[str, Any]) -> None:
        """Writes one record durably. ``data`` is JSON-compatible, for instance from :func:`to_json`.

        Raises :class:`EnvironmentFailure` where it cannot be written (full disk): the file then ends with the last
        whole record, and the record is not in memory either. Raises ``ValueError`` for data with no JSON form.
        """
        if self._descriptor < 0:
            raise ValueError(f"{self.path}: this ledger is closed, or open for reading only")
        line: Line = {"schema": SCHEMA, "at": round(time.time(), 3), "kind": kind, "key": key, "data": dict(data)}
        content = json.dumps(line, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        written = 0
        try:
            while written < len(content):
                written += os.pwrite(self._descriptor, content[written:], self._end + written)
            os.fsync(self._descriptor)
            self._end += len(content)
        except OSError as error:
            self._take_back()
            raise EnvironmentFailure(
                f"a record could not be written: {error.strerror}",
                where=self.path,
                remedy="Free space on this file system, then run: triton-optimizer resume " + str(self.path.parent),
            ) from None
        except BaseException:
            # Ctrl-C: the line is whole or it is not there.
            self._take_back()
            raise
        # Through JSON, so that this run sees what a resumed one would.
        entry = _entry(json.loads(content))
        self._entries.append(entry)
        self._latest[(kind, key)] = entry

    def get(self, kind: str, key: str) -> dict[str, Any] | None:
        """Data of the latest record of that kind and key."""
        entry = self._latest.get((kind, key))
        return entry.data if entry else None

    def save(self, kind: str, key: str, record: object) -> None:
        """:meth:`append` for a record (a dataclass of :mod:`optimizer.records`)."""
        self.append(kind, key, to_json(record))

    def load(self, kind: str, key: str, cls: type[T]) -> T | None:
        """:meth:`get` for a record. Raises :class:`InputError` where the data do not fit ``cls``."""
        data = self.get(kind, key)
        if data is None:
            return None
        try:
            return from_json(cls, data)
        except CodecError as error:
            raise InputError(
                f"the record {kind} {key} cannot be read: {error}",
                where=self.path,
                remedy="Use the version of triton-optimizer that wrote it, or start a new study.",
            ) from None

    def records(self, kind: str | None = None) -> Iterator[Entry]:
        """Every record in order, repeated keys included."""
        return (entry for entry in tuple(self._entries) if kind is None or entry.kind == kind)

    def __len__(self) -> int:
        return len(self._entries)

    def close(self) -> None:
        """Idempotent; gives the study free."""
        for descriptor in (self._descriptor, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._lock = -1

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_back(self) -> None:
        # Truncating needs no space. Where even that fails the tail is torn, and dropped by the next open().
        try:
            os.ftruncate(self._descriptor, self._end)
        except OSError:
            os.close(self._descriptor)
            self._descriptor = -1


def _lock(directory: Path) -> int:
    path = directory / LOCK_FILE
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        # flock and not a pid file: the kernel releases it whatever ends the process, and never leaves a stale one.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(descriptor, 64).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise InputError(
            f"this study is in use by process {owner}",
            where=directory,
            remedy="Wait until it ends, stop it, or choose another directory with --study.",
        ) from None
    except OSError:
        os.close(descriptor)
        raise
    os.ftruncate(descriptor, 0)
    # A full disk must not keep anyone from a study: without its pid the lock still holds.
    with contextlib.suppress(OSError):
        os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
    return descriptor


def _parse(path: Path, content: bytes) -> tuple[list[Entry], int, str | None]:
    """Entries, the length of the part that is whole, and what was dropped behind it."""
    entries: list[Entry] = []
    position = 0
    number = 0
    while position < len(content):
        number += 1
        end = content.find(b"\n", position)
        last = end < 0 or end + 1 == len(content)
        raw = content[position:] if end < 0 else content[position:end]
        entry = _read_line(path, number, raw) if end >= 0 else None
        if entry is None:
            if last:
                return entries, position, f"line {number}, {len(content) - position} bytes: torn while it was written"
            raise InputError(
                f"line {number} is damaged, and lines follow it",
                where=path,
                remedy="Restore the file from a copy, or start a new study.",
            )
        entries.append(entry)
        position = end + 1
    return entries, position, None


def _read_line(path: Path, number: int, raw: bytes) -> Entry | None:
    """``None`` for a line that is not a whole record."""
    try:
        line = json.loads(raw)
        schema = line["schema"]
        if isinstance(schema, int) and schema > SCHEMA:
            raise InputError(
                f"line {number} has schema {schema}, this version reads up to {SCHEMA}",
                where=path,
                remedy=f"Use the version of triton-optimizer that wrote it (this is {__version__}), or a later one.",
            )
        while schema < SCHEMA:
            line = MIGRATIONS[schema](line)
            schema = line["schema"]
        return _entry(line)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _entry(line: Line) -> Entry:
    entry = Entry(line["kind"], line["key"], line["data"], float(line["at"]))
    if not isinstance(entry.kind, str) or not isinstance(entry.key, str) or not isinstance(entry.data, dict):
        raise TypeError("kind and key are texts, data is an object")
    return entry


@dataclass(frozen=True)
class StudyHeader:
    """``study.json``: what a study was asked for, and what its results are tied to. Written once."""

    settings: Mapping[str, Any]
    """JSON-compatible, every default filled in."""
    fingerprint: Fingerprint
    version: str = __version__
    created_at: float = 0.0
    schema: int = SCHEMA
    notes: Mapping[str, str] = field(default_factory=dict)


def write_study(directory: Path, header: StudyHeader) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / STUDY_FILE, to_json(header))
    except OSError as error:
        raise EnvironmentFailure(
            f"the study cannot be written: {error.strerror}",
            where=directory / STUDY_FILE,
            remedy="Choose a directory that this user may write, with space, with --study.",
        ) from None


def read_study(directory: Path) -> StudyHeader:
    """Raises :class:`InputError` where there is no study, or not one that this version can read."""
    path = directory / STUDY_FILE
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"no study can be read: {error.strerror}", where=path, remedy="Name the directory of a study."
        ) from None
    except ValueError as error:
        raise InputError(f"not valid JSON: {error}", where=path, remedy="Start a new study.") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise InputError(
            f"schema {schema}, this version reads up to {SCHEMA}",
            where=path,
            remedy=f"Use the version of triton-optimizer that wrote it (this is {__version__}), or a later one.",
        )
    try:
        return from_json(StudyHeader, document)
    except CodecError as error:
        raise InputError(str(error), where=path, remedy="Start a new study.") from None


def check_fingerprint(directory: Path, header: StudyHeader, now: Fingerprint) -> None:
    """Refuses to go on with a study whose results no longer hold, and names every difference.

    A changed model, workload or given file is the user's to decide about: :class:`InputError`. The same request on
    another machine or under other versions (GPU, driver, TensorRT, tuner, Triton …): :class:`EnvironmentFailure`. Where
    both differ, the user's part decides the exit code, since going back to the old machine would not be enough.
    """
    differences = header.fingerprint.differences(now)
    if not differences:
        return
    own = not differences.keys().isdisjoint(OF_THE_USER)
    kind = InputError if own else EnvironmentFailure
    what = (
        "the model, its workload or a file given with it has changed"
        if own
        else "this is not the environment the study began in"
    )
    raise kind(
        f"{what}: " + "; ".join(differences.values()),
        where=directory / STUDY_FILE,
        field="fingerprint",
        remedy="Start a new study (--hints with this directory lets it order the candidates)"
        + (", or restore what has changed." if own else ", or resume where it began."),
    )
