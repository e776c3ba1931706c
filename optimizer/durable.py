"""The one place that writes files durably: complete or not at all, and still there after a power cut.

Imports the standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_atomically(path: Path, data: bytes | str, *, mode: int | None = None) -> None:
    """Writes beside ``path``, fsyncs, renames over it, fsyncs the directory. ``OSError`` leaves nothing behind."""
    content = data.encode() if isinstance(data, str) else data
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if mode is None:
                mode = path.stat().st_mode & 0o7777 if path.exists() else 0o666 & ~_umask()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    fsync_directory(path.parent)


def write_json(path: Path, document: Any) -> None:
    write_atomically(path, json.dumps(document, indent=2, sort_keys=True, allow_nan=False) + "\n")


def fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_tree(root: Path, *, exclude: Iterable[str] = ()) -> str:
    """Hash over relative names, kinds, modes, symlink targets and contents; equal hashes mean equal trees."""
    left_out = set(exclude)
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root).as_posix()
        if relative.split("/", 1)[0] in left_out:
            continue
        if path.is_symlink():
            entry = f"link\0{relative}\0{path.readlink()}"
        elif path.is_dir():
            entry = f"dir\0{relative}\0{path.stat().st_mode & 0o7777:o}"
        else:
            entry = f"file\0{relative}\0{path.stat().st_mode & 0o7777:o}\0{sha256_file(path)}"
        digest.update(entry.encode() + b"\n")
    return digest.hexdigest()


def _umask() -> int:
    # The umask can only be read by setting it; /proc tells it without a window for other threads.
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022
