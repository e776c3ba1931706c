"""The sandbox's own model repository: a private directory per deployment. The user's files are linked, not touched."""

from __future__ import annotations

import re
import shutil
from pathlib import Path, PurePosixPath

from optimizer.errors import InputError
from optimizer.records.deployment import Deployment
from optimizer.triton.protobuf import parse_config, print_config

# Triton reads a name as a directory and python stubs as an argument: letters, digits and ._- are safe in both.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\Z")


def usable(name: str) -> bool:
    """Whether ``name`` is a directory name of its own: only then may it be joined to a path, or removed."""
    return _NAME.match(name) is not None


def check_name(name: str) -> None:
    """Raises :class:`InputError`."""
    if not usable(name):
        raise InputError(
            "not usable as a private model name",
            where=repr(name),
            field="name",
            remedy="use letters, digits, '_', '-' and '.', and start with a letter, a digit or '_'",
        )


def write(repository: Path, deployment: Deployment, *, copy: bool = False) -> Path:
    """Makes ``repository/<name>``; a directory of that name is replaced.

    Files are symbolic links, or copies where the server cannot follow links (another container). A hard link would
    change the ctime of the user's file, and a production server that polls its repository takes that for a new model.
    Raises :class:`InputError`.
    """
    check_name(deployment.name)
    config = parse_config(deployment.config_text, where=f"{deployment.name}/config.pbtxt")
    config.name = deployment.name
    directory = repository / deployment.name
    remove(repository, deployment.name)
    directory.mkdir()
    for relative, source in deployment.files.items():
        inside = PurePosixPath(relative)
        if inside.is_absolute() or ".." in inside.parts or not inside.parts:
            raise InputError(
                "not a path inside the model directory",
                where=deployment.name,
                field=relative,
                remedy="this is a bug: files lie inside the model directory",
            )
        if not source.exists():
            raise InputError(
                "no such file or directory",
                where=source,
                field=f"{deployment.name}/{relative}",
                remedy="the file was removed meanwhile: start anew",
            )
        target = directory / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        if not copy:
            target.symlink_to(source.resolve())
        elif source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
    # Triton wants a directory for every version that it shall serve, also where there is nothing in it (ensembles).
    if not any(path.is_dir() for path in directory.iterdir()):
        (directory / str(deployment.version)).mkdir(exist_ok=True)
    (directory / "config.pbtxt").write_text(print_config(config), encoding="utf-8")
    return directory


def remove(repository: Path, name: str) -> None:
    """Removes ``repository/<name>`` if it is there. Raises :class:`InputError` for a name that is none."""
    check_name(name)
    directory = repository / name
    if directory.is_symlink():
        directory.unlink()
    else:
        shutil.rmtree(directory, ignore_errors=True)
