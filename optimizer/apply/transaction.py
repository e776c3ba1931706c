"""The file side of a write-back, forward and back. Knows nothing of studies, sandboxes and servers.

Forward (:func:`write_version`):

1. the journal, PREPARED; 2. the new version, complete and fsynced, outside of the repository; 3. the *pinned* config:
what is there, with a version policy that names the versions served today; 4. the version directory comes in;
5. the final config; 6. the journal, COMMITTED; 7. stage and journal go.

Back (:func:`take_version_back`, and whatever fails on the way forward): pinned config, version directory out, old
config. A server that starts at any moment finds a model that loads and answers as it did, because a version that comes
or goes is never one that the config selects.

Every step looks at what is there first and refuses to touch what is neither the old, nor the pinned, nor the new state.
So each function may be killed anywhere and called again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from optimizer.apply.journal import (
    Image,
    Journal,
    Kind,
    State,
    Way,
    journal_path,
    remove_journal,
    scratch_path,
    write_file,
    write_journal,
)
from optimizer.durable import fsync_directory, fsync_file, sha256_file
from optimizer.errors import OptimizerError, WriteBackRefused

STAGE_MARK = ".triton-optimizer-"
COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class Owner:
    """Of the files and directories of a new version: those of the version that was live."""

    uid: int
    gid: int
    file_mode: int
    directory_mode: int


def config_path(repository: Path, journal: Journal) -> Path:
    return repository / journal.model / journal.config


def version_path(repository: Path, journal: Journal) -> Path:
    return repository / journal.model / str(journal.version)


# Whole transactions, for whoever holds the lock


def write_version(
    repository: Path,
    journal: Journal,
    sources: Mapping[str, Path | bytes],
    owner: Owner,
    *,
    check_staged: Callable[[Path], None] = lambda _: None,
    verify: Callable[[], None] = lambda: None,
    reload: Callable[[], None] = lambda: None,
) -> None:
    """``check_staged`` looks at the staged version before anything in the repository is touched but the journal,
    ``verify`` at the finished state; either may raise. Everything is then taken back, and ``reload`` is called where
    the final config had been there.

    Raises what they raise, :class:`WriteBackRefused` for a foreign change, and ``OSError``.
    """
    try:
        begin(repository, journal)
        check_staged(stage_version(journal, sources, owner))
        carry_out(repository, journal, owner)
        verify()
        finish(repository, journal)
    except BaseException as error:
        _take_back(repository, journal, error, reload)
        raise


def take_version_back(repository: Path, journal: Journal) -> None:
    """A rollback. One that fails on the way is completed by the next command. Raises ``OSError``, and
    :class:`WriteBackRefused` for a foreign change."""
    begin(repository, journal)
    restore(repository, journal)
    finish(repository, journal)


def _take_back(repository: Path, journal: Journal, error: BaseException, reload: Callable[[], None]) -> None:
    """Where even that fails the journal stays, and the next command tries again."""
    try:
        if not journal_path(repository, journal.model).exists():
            clean(repository, journal)
            return
        final = read_image(config_path(repository, journal)).data == journal.new.data
        restore(repository, journal)
        clean(repository, journal)
    except (OSError, OptimizerError) as second:
        problem = second.strerror if isinstance(second, OSError) else str(second)
        raise WriteBackRefused(
            f"{error}; and it could not be taken back now: {problem}",
            where=repository / journal.model,
            remedy="the journal is kept: run `triton-optimizer status` when the cause is gone, which undoes it",
        ) from error
    if final:
        reload()


# Forward


def begin(repository: Path, journal: Journal) -> None:
    """From here on a crash is undone by the next command. Raises ``OSError``; nothing is there then, or a journal."""
    write_journal(repository, journal)


def stage_version(journal: Journal, sources: Mapping[str, Path | bytes], owner: Owner) -> Path:
    """Copies the version's files into the stage, durably, and returns that directory. Sources are files, or contents.

    Raises :class:`WriteBackRefused` where a file is not the one in the journal, and ``OSError``.
    """
    stage = Path(journal.stage)
    stage.mkdir(mode=0o700)
    version = stage / str(journal.version)
    _make_directory(version, owner)
    for relative, source in sources.items():
        target = version / PurePosixPath(relative)
        _make_parents(version, target, owner)
        _copy(source, target, owner)
        if sha256_file(target) != journal.files[relative]:
            raise WriteBackRefused(
                "changed while it was copied", where=source if isinstance(source, Path) else target,
                remedy="wait until whatever writes it has finished, then try again",
            )  # fmt: skip
    for directory, _, _ in os.walk(version, topdown=False):
        fsync_directory(Path(directory))
    fsync_directory(stage)
    fsync_directory(stage.parent)
    return version


def carry_out(repository: Path, journal: Journal, owner: Owner) -> None:
    """Pinned config, version, final config. Raises :class:`WriteBackRefused` for a foreign change, and ``OSError``."""
    refuse_taken(version_path(repository, journal))
    if journal.pinned is not None:
        replace_config(repository, journal, journal.pinned, expected=(journal.old,))
    bring_in(repository, journal, owner)
    replace_config(repository, journal, journal.new, expected=(journal.pinned or journal.old,))


def bring_in(repository: Path, journal: Journal, owner: Owner) -> None:
    target = version_path(repository, journal)
    staged = Path(journal.stage) / str(journal.version)
    refuse_taken(target)
    if journal.way is Way.RENAME:
        # Nobody waits for an empty directory of this name: rename would replace one, so it was looked for above.
        staged.rename(target)
    else:
        _complete_in_place(repository, journal, staged, target, owner)
    fsync_directory(target.parent)


def refuse_taken(version: Path) -> None:
    if version.exists() or version.is_symlink():
        raise _foreign(version, "appeared meanwhile")


def finish(repository: Path, journal: Journal) -> Journal:
    """What is there stays. Leftovers that cannot be removed now are removed by the next command."""
    done = journal.committed()
    write_journal(repository, done)
    with contextlib.suppress(OSError):
        clean(repository, done)
    return done


# Back


def restore(repository: Path, journal: Journal) -> None:
    """To the state before the write-back, from any state that :func:`carry_out` or this function left.

    Raises :class:`WriteBackRefused` where somebody else has changed config or version, before anything is touched.
    """
    check_own(repository, journal)
    version = version_path(repository, journal)
    if version.is_dir() and not _somebody_elses(repository, journal):
        quiet = journal.pinned or journal.old
        replace_config(repository, journal, quiet, expected=known_images(journal))
        _take_out(journal, version)
    replace_config(repository, journal, journal.old, expected=known_images(journal))


def check_own(repository: Path, journal: Journal) -> None:
    """Raises :class:`WriteBackRefused` naming everything that is neither the old, the pinned nor the new state."""
    config = config_path(repository, journal)
    wrong = []
    if read_image(config).data not in [image.data for image in known_images(journal)]:
        wrong.append(f"{config} was edited")
    version = version_path(repository, journal)
    if version.is_symlink() or (version.exists() and not version.is_dir()):
        wrong.append(f"{version} is no directory any more")
    elif version.is_dir() and not _somebody_elses(repository, journal):
        wrong += version_differences(version, journal.files)
    if wrong:
        raise WriteBackRefused(
            "changed by somebody else, so it is left alone: " + "; ".join(wrong),
            where=repository / journal.model,
            remedy="undo these changes, or keep them and remove the journal and the version directory by hand",
        )


def _somebody_elses(repository: Path, journal: Journal) -> bool:
    """Whether the version directory is none of ours: someone took the number before our version came in. Then the
    config does not name it, no file in it is one of ours, and it stays."""
    version = version_path(repository, journal)
    current = read_image(config_path(repository, journal)).data
    if journal.kind is Kind.ROLLBACK or (current == journal.new.data != journal.old.data):
        return False
    ours = [name for name, digest in journal.files.items()
            if (version / name).is_file() and sha256_file(version / name) == digest]  # fmt: skip
    # In place, a directory is empty for a moment.
    return not ours and (journal.way is Way.RENAME or bool(version_differences(version, journal.files)))


def version_differences(version: Path, files: Mapping[str, str], *, complete: bool = False) -> list[str]:
    """What is in a version directory and not in ``files``, or not the same; with ``complete``, what is missing too."""
    differences = []
    for folder, directories, names in os.walk(version):
        if "__pycache__" in directories:
            # A server that serves a model of the python backend leaves these.
            directories.remove("__pycache__")
        for name in [*names, *(each for each in directories if (Path(folder) / each).is_symlink())]:
            path = Path(folder) / name
            relative = path.relative_to(version).as_posix()
            if relative not in files:
                differences.append(f"{path} was added")
            elif path.is_symlink() or not path.is_file() or sha256_file(path) != files[relative]:
                differences.append(f"{path} was changed")
    if complete:
        differences += [f"{version / name} is gone" for name in files if not (version / name).is_file()]
    return sorted(differences)


def clean(repository: Path, journal: Journal) -> None:
    """Removes stage, scratch file and, last, the journal. Raises ``OSError``."""
    stage = Path(journal.stage)
    if STAGE_MARK in stage.name and stage.is_dir() and not stage.is_symlink():
        shutil.rmtree(stage)
        fsync_directory(stage.parent)
    with contextlib.suppress(FileNotFoundError):
        scratch_path(repository, journal.model).unlink()
    remove_journal(repository, journal.model)


def settle(repository: Path, journal: Journal) -> str:
    """Recovery of one model: a write-back that was not committed is undone, a rollback is completed, what was committed
    is cleaned up. Returns a line for people."""
    if journal.state is State.PREPARED:
        restore(repository, journal)
    clean(repository, journal)
    name = f"{journal.model}: version {journal.version}"
    if journal.state is State.COMMITTED:
        return f"{name}: a finished {journal.kind.value} left files behind, they are gone"
    if journal.kind.value == "apply":
        return f"{name}: a write-back that was interrupted is undone; what was live before is live"
    return f"{name}: a rollback that was interrupted is completed"


# Single steps


def known_images(journal: Journal) -> tuple[Image, ...]:
    return tuple(image for image in (journal.old, journal.pinned, journal.new) if image is not None)


def read_image(path: Path) -> Image:
    """Raises ``OSError`` other than that there is no such file."""
    try:
        status = path.lstat()
        return Image(path.read_bytes(), status.st_mode & 0o7777, status.st_uid, status.st_gid)
    except FileNotFoundError:
        return Image(None)


def replace_config(repository: Path, journal: Journal, image: Image, *, expected: tuple[Image, ...]) -> None:
    """The config becomes ``image``, by one rename (or unlink), durably; nothing happens where it is that already."""
    path = config_path(repository, journal)
    current = read_image(path)
    if current.data == image.data:
        # Perhaps from a moment ago, renamed and not yet on disk.
        fsync_directory(path.parent)
        return
    if current.data not in [each.data for each in expected]:
        raise _foreign(path, "was edited meanwhile")
    if image.data is None:
        path.unlink()
        fsync_directory(path.parent)
        return
    scratch = scratch_path(repository, journal.model)
    write_file(scratch, image.data, mode=image.mode, uid=image.uid, gid=image.gid)
    make_newest(scratch, repository / journal.model)
    scratch.rename(path)
    fsync_directory(path.parent)


def make_newest(path: Path, directory: Path) -> None:
    """Gives ``path`` a modification time later than anything's in ``directory``.

    A server compares times only: where a copied model's lie in the future, an explicit load would find nothing new and
    report success all the same.
    """
    newest = max(entry.lstat().st_mtime_ns for entry in (directory, *directory.rglob("*")))
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, max(status.st_mtime_ns, newest + 1_000_000)))
    fsync_file(path)


def _take_out(journal: Journal, version: Path) -> None:
    """By one rename; where that cannot be, file by file: the config does not select this version any more."""
    stage = Path(journal.stage)
    if journal.way is Way.RENAME:
        with contextlib.suppress(FileExistsError):
            stage.mkdir(mode=0o700)
        try:
            version.rename(stage / f"{journal.version}.out")
        except OSError as error:
            # A directory of a lower layer of an overlay cannot be renamed.
            if error.errno not in (errno.EXDEV, errno.ENOTEMPTY, errno.EEXIST, errno.EPERM, errno.EACCES):
                raise
            shutil.rmtree(version)
    else:
        shutil.rmtree(version)
    fsync_directory(version.parent)


def _complete_in_place(repository: Path, journal: Journal, staged: Path, target: Path, owner: Owner) -> None:
    """File by file, each of them whole: what a crash leaves is a part of the version, never a part of a file."""
    _make_directory(target, owner)
    scratch = scratch_path(repository, journal.model)
    for relative, digest in journal.files.items():
        destination = target / PurePosixPath(relative)
        _make_parents(target, destination, owner)
        _copy(staged / relative, scratch, owner)
        if sha256_file(scratch) != digest:
            raise WriteBackRefused(
                "does not hold what was written to it", where=scratch, remedy="check the file system"
            )
        scratch.rename(destination)
    for directory, _, _ in os.walk(target, topdown=False):
        fsync_directory(Path(directory))


def _make_directory(path: Path, owner: Owner) -> None:
    path.mkdir(mode=0o700)
    _own(path, owner, owner.directory_mode)


def _make_parents(top: Path, path: Path, owner: Owner) -> None:
    missing = []
    parent = path.parent
    while parent != top and not parent.is_dir():
        missing.append(parent)
        parent = parent.parent
    for directory in reversed(missing):
        _make_directory(directory, owner)


def _copy(source: Path | bytes, target: Path, owner: Owner) -> None:
    """Never a link: what is written back must not depend on the study's directory."""
    if isinstance(source, bytes):
        write_file(target, source, mode=owner.file_mode, uid=owner.uid, gid=owner.gid)
        return
    with source.open("rb") as reading, target.open("wb") as writing:
        shutil.copyfileobj(reading, writing, COPY_BYTES)
        writing.flush()
        _own(target, owner, owner.file_mode)
        os.fsync(writing.fileno())


def _own(path: Path, owner: Owner, mode: int) -> None:
    status = path.stat()
    if (status.st_uid, status.st_gid) != (owner.uid, owner.gid):
        os.chown(path, owner.uid, owner.gid)
    path.chmod(mode)


def _foreign(path: Path, what: str) -> WriteBackRefused:
    return WriteBackRefused(
        what, where=path, remedy="find out who writes to this repository; start a new study if the model has changed"
    )
