"""Version directories as Triton sees them, and what is in them. Imports the standard library only.

The rules are those of Triton's model life cycle: a directory's name is read like C's ``strtoll``, so that ``2.tmp`` is
version 2, and the version's files are then looked for in ``2``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from optimizer.records.model import ModelFormat

RESERVED_DIRECTORIES = frozenset({"configs", "warmup", "initial_state"})
PROVENANCE_FILE = "optimizer.json"

BACKENDS: dict[str, tuple[str, str, ModelFormat]] = {
    "tensorrt": ("tensorrt_plan", "model.plan", ModelFormat.PLAN),
    "onnxruntime": ("onnxruntime_onnx", "model.onnx", ModelFormat.ONNX),
    "openvino": ("", "model.xml", ModelFormat.OPENVINO),
    "pytorch": ("pytorch_libtorch", "model.pt", ModelFormat.TORCHSCRIPT),
    "python": ("", "model.py", ModelFormat.PYTHON),
}
"""Backend to its platform, its default file name and the format of that file."""

KNOWN_FILES: dict[str, ModelFormat] = {
    "model.plan": ModelFormat.PLAN,
    "model.onnx": ModelFormat.ONNX,
    "model.xml": ModelFormat.OPENVINO,
    "model.pt": ModelFormat.TORCHSCRIPT,
    "model.pt2": ModelFormat.PYTORCH_EXPORT,
    "model.py": ModelFormat.PYTHON,
}
"""In the order in which Triton looks for them when the config names no backend."""

_STOLL = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class VersionDirectory:
    """A sub-directory that Triton takes for version ``number``. ``path`` is where Triton opens its files, which is
    another directory than ``found`` for a name such as ``2.tmp``.
    """

    number: int
    path: Path
    found: tuple[Path, ...]

    @property
    def misnamed(self) -> bool:
        return self.path not in self.found


@dataclass(frozen=True)
class VersionScan:
    versions: tuple[VersionDirectory, ...]
    """Highest first."""
    ignored: tuple[tuple[str, str], ...]
    """(directory name, why Triton ignores it)."""
    out_of_range: tuple[str, ...] = ()
    """Names whose number does not fit 64 bits: Triton does not catch that error."""


def parse_version(name: str) -> int | None:
    """The version number that ``std::stoll`` reads from a directory name, ``None`` where it reads none.

    Raises ``OverflowError`` where the number does not fit 64 bits.
    """
    match = _STOLL.match(name)
    if match is None:
        return None
    number = int(match.group(1))
    if number not in _INT64:
        raise OverflowError(name)
    return number


def scan_versions(directory: Path) -> VersionScan:
    """Raises ``OSError`` where the directory cannot be listed."""
    found: dict[int, list[Path]] = {}
    ignored: list[tuple[str, str]] = []
    out_of_range: list[str] = []
    for child in sorted(directory.iterdir()):
        if not child.is_dir() or child.name in RESERVED_DIRECTORIES:
            continue
        if len(child.name) > 1 and child.name.startswith("0"):
            ignored.append((child.name, "it has leading zeros"))
            continue
        try:
            number = parse_version(child.name)
        except OverflowError:
            out_of_range.append(child.name)
            continue
        if number is None:
            ignored.append((child.name, "it is no number"))
        else:
            found.setdefault(number, []).append(child)
    versions = tuple(
        VersionDirectory(number, directory / str(number), tuple(paths))
        for number, paths in sorted(found.items(), reverse=True)
    )
    return VersionScan(versions, tuple(ignored), tuple(out_of_range))


def first_version_directory(directory: Path) -> Path | None:
    """The directory whose content decides the backend where the config does not: the first by name, whatever it is."""
    children = sorted((child for child in directory.iterdir() if child.is_dir()), key=lambda child: child.name.encode())
    return children[0] if children else None


def select_versions(
    numbers: Iterable[int], *, latest: int | None = 1, specific: Sequence[int] | None = None
) -> frozenset[int]:
    """The versions that a policy serves: ``specific`` those of the list that are there, ``latest`` the highest so many,
    with neither all of them.
    """
    there = sorted(set(numbers), reverse=True)
    if specific is not None:
        return frozenset(there) & frozenset(specific)
    return frozenset(there if latest is None else there[: max(0, latest)])


def model_format(backend: str, platform: str, filename: str) -> ModelFormat:
    """The format of the file that ``backend`` opens."""
    if platform == "ensemble":
        return ModelFormat.ENSEMBLE
    if backend == "pytorch" and (platform == "torch_aoti" or filename.endswith(".pt2")):
        return ModelFormat.PYTORCH_EXPORT
    return BACKENDS[backend][2] if backend in BACKENDS else ModelFormat.UNKNOWN


def recognize(directory: Path) -> ModelFormat:
    """What a version directory holds that the config's own backend would not open."""
    for name, kind in KNOWN_FILES.items():
        if (directory / name).exists():
            return kind
    return ModelFormat.UNKNOWN


def size_bytes(directory: Path) -> int:
    """Of all files below, provenance left out; 0 for a directory that is not there."""
    return sum(path.stat().st_size for path in version_files(directory))


def version_files(directory: Path) -> list[Path]:
    """Every file below a version directory, links followed, sorted by relative name. Left out are provenance, and the
    bytecode that a server writes beside a model of the python backend: a version that was served is still the same.
    """
    if not directory.is_dir():
        return []
    return sorted(
        path
        for path in directory.rglob("*")
        if path.is_file()
        and path.relative_to(directory).as_posix() != PROVENANCE_FILE
        and "__pycache__" not in path.relative_to(directory).parts
    )
