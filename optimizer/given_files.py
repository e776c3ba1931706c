"""Files that the user gives beside the model: a study is bound to their content, as it is to the model's.

Facts of the fingerprint, by role (:data:`GIVEN_FILES`): resuming and applying compare them, and so does the end of a
study. Imports the foundation, and the engines' view of ONNX files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from optimizer.config import Settings
from optimizer.engines.onnx_files import UnreadableOnnx, content_hash, external_files, onnx_file
from optimizer.errors import InputError
from optimizer.records.environment import GIVEN_FILES


def given_files(settings: Settings) -> dict[str, Path]:
    """What the settings name and a study uses, by role."""
    inputs, load = settings.inputs, settings.load
    paths = {
        "inputs": inputs.file,
        "held_out": inputs.held_out_file,
        "calibration": inputs.calibration_file,
        "trace": load.trace if load.arrival == "trace" else None,
        "onnx": settings.builder.onnx,
    }
    return {role: path for role in GIVEN_FILES if (path := paths[role]) is not None}


def given_facts(settings: Settings) -> dict[str, str]:
    """Path and sha256 of each, by role. Raises :class:`InputError` for one that cannot be read."""
    return {role: _fact(role, path) for role, path in given_files(settings).items()}


def refuse_changed_files(settings: Settings, before: Mapping[str, str]) -> None:
    """Raises :class:`InputError` for the first file whose content is not that of ``before`` (facts) any more."""
    for role, path in given_files(settings).items():
        if _fact(role, path) != before.get(role):
            raise InputError(
                "was changed during the study: what came before and after cannot be compared",
                where=path,
                field=role,
                remedy="start a new study, and leave the file alone until it ends",
            )


def _fact(role: str, path: Path) -> str:
    try:
        return f"{path} (sha256 {content_hash(_contents(role, path))})"
    except UnreadableOnnx as error:
        problem = str(error)
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    raise InputError(problem, where=path, field=role, remedy="put back the file that was there, or name another")


def _contents(role: str, path: Path) -> dict[str, Path]:
    """Everything that is read where ``path`` is named, by name; of a directory no more than that."""
    if role == "onnx":
        model = onnx_file(path)
        return {file.relative_to(model.parent).as_posix(): file for file in (model, *external_files(model))}
    if path.is_dir():
        return {file.name: file for file in path.glob("*.npz")}
    return {path.name: path}
