"""What speaks against writing here, found before anything is written. Every refusal names its reason and a remedy."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from optimizer.apply.journal import Way
from optimizer.apply.transaction import STAGE_MARK, Owner
from optimizer.errors import WriteBackRefused
from optimizer.records.model import Model

MARGIN_BYTES = 16 << 20
"""Free space that must remain beside the files themselves: journal, directories, and whoever else writes."""


def check_links(model: Model) -> None:
    """A link leads out of the transaction: what is behind it may be on another file system, or shared."""
    live = model.live_version
    paths = [model.directory]
    if model.config_path is not None:
        paths += [
            model.config_path,
            *([model.config_path.parent] if model.config_path.parent != model.directory else []),
        ]
    if live is not None:
        paths.append(live.path)
    for path in paths:
        if path.is_symlink():
            raise WriteBackRefused(
                f"is a link to {path.readlink()}",
                where=path,
                remedy="write back to a repository of real files, or replace the link by what it points to",
            )


def check_writable(repository: Path, model: Model) -> None:
    config = model.config_path or model.directory / "config.pbtxt"
    for directory in dict.fromkeys((repository, model.directory, config.parent)):
        if not os.access(directory, os.W_OK | os.X_OK):
            raise WriteBackRefused(
                "cannot be written (read-only, or not this user's)",
                where=directory,
                remedy="mount it for writing, or run as the user that owns it",
            )
    if mount_id(repository) != mount_id(model.directory):
        raise WriteBackRefused(
            "is a mount of its own: nothing can be renamed into it from the repository",
            where=model.directory,
            remedy="mount the whole repository instead of single models",
        )


def choose_way(repository: Path, token: str, elsewhere: Path) -> tuple[Way, Path, str]:
    """How the version comes in, the stage's directory, and why. The stage is beside the repository, never in it; where
    that is another file system or cannot be written, it is below ``elsewhere`` and the version is completed in place.
    """
    parent = repository.parent
    if mount_id(parent) != mount_id(repository):
        why = "the repository is a mount point"
    elif not os.access(parent, os.W_OK | os.X_OK):
        why = f"{parent} cannot be written"
    else:
        return Way.RENAME, parent / f".{repository.name}{STAGE_MARK}{token}", "one rename brings the version in"
    return Way.IN_PLACE, elsewhere.resolve() / f"{STAGE_MARK}{token}", f"{why}: the version is completed in place"


def check_space(way: Way, repository: Path, stage: Path, needed_bytes: int) -> None:
    """``needed_bytes``: of the version's files."""
    places = {repository if way is Way.RENAME else stage.parent: needed_bytes}
    if way is Way.IN_PLACE:
        places[repository] = needed_bytes
    for place, needed in places.items():
        status = os.statvfs(place)
        free = status.f_bavail * status.f_frsize
        if free < needed + MARGIN_BYTES:
            raise WriteBackRefused(
                f"{free / 1e6:,.0f} MB are free, {(needed + MARGIN_BYTES) / 1e6:,.0f} MB are needed",
                where=place,
                remedy="free space on this file system",
            )
        if status.f_files and not status.f_favail:
            raise WriteBackRefused("has no free inodes", where=place, remedy="free some on this file system")


def owner_like(model: Model) -> Owner:
    """Owner and modes of the live version, for the new one. Raises :class:`WriteBackRefused` where this user cannot
    give files to that owner: a server that runs as somebody else could not read them."""
    live = model.live_version
    assert live is not None, "a model without a live version is refused before"
    directory = live.path.stat()
    files = sorted(path for path in live.path.rglob("*") if path.is_file())
    file = (live.file if live.file is not None and live.file.is_file() else files[0] if files else live.path).stat()
    owner = Owner(file.st_uid, file.st_gid, file.st_mode & 0o777 & ~(0 if files else 0o111), directory.st_mode & 0o7777)
    wanted = [(live.path, file.st_uid, file.st_gid)]
    if model.config_path is not None:
        config = model.config_path.stat()
        wanted.append((model.config_path, config.st_uid, config.st_gid))
    for path, uid, gid in wanted:
        if os.geteuid() == 0:
            continue
        if uid != os.geteuid() or (gid != os.getegid() and gid not in os.getgroups()):
            raise WriteBackRefused(
                f"belongs to {uid}:{gid}, and this user ({os.geteuid()}:{os.getegid()}) cannot give files to it",
                where=path,
                remedy=f"run as user {uid}, in group {gid}",
            )
    return owner


def hashed_files(files: Mapping[str, Path]) -> dict[str, Path]:
    """Names inside the version directory to single files; directories (ONNX with external data) taken apart."""
    flat: dict[str, Path] = {}
    for name, path in files.items():
        if path.is_dir():
            flat |= {f"{name}/{file.relative_to(path).as_posix()}": file for file in _files_below(path)}
        else:
            flat[name] = path
    return {name: path for name, path in sorted(flat.items()) if "__pycache__" not in name.split("/")}


def mount_id(path: Path) -> str:
    """Of the mount that ``path`` is on; a bind mount of the same file system has another one, and rename(2) does not
    cross it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        text = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii")
    finally:
        os.close(descriptor)
    return next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("mnt_id:")), "")


def _files_below(path: Path) -> Iterable[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())
