"""What a model directory holds beside the config's own words: files that must be there, names that mislead."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from optimizer.errors import InputError
from optimizer.records.model import Blocker, ModelFormat, ModelVersion
from optimizer.repository.versions import KNOWN_FILES, PROVENANCE_FILE, VersionScan, first_version_directory

if TYPE_CHECKING:
    from optimizer.triton.protobuf import ModelConfig

Snapshot: TypeAlias = dict[str, tuple[int, int, int]]


def snapshot(directory: Path) -> Snapshot:
    """Size, modification and change time of everything below, to see whether somebody writes. Raises ``OSError``."""
    found: Snapshot = {}

    def fail(error: OSError) -> None:
        raise error

    for folder, _, files in os.walk(directory, onerror=fail, followlinks=False):
        for path in (Path(folder), *(Path(folder) / name for name in files)):
            status = path.lstat()
            found[str(path.relative_to(directory))] = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return found


def difference(before: Snapshot, after: Snapshot) -> str | None:
    """The first entry that is not the same."""
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            return name
    return None


def live_config(directory: Path, config_name: str | None) -> tuple[Path | None, tuple[Path, ...]]:
    """The config that a server with ``--model-config-name`` reads, and all that are there."""
    candidates = [directory / "config.pbtxt"] if (directory / "config.pbtxt").is_file() else []
    folder = directory / "configs"
    if folder.is_dir():
        candidates += sorted(path for path in folder.iterdir() if path.suffix == ".pbtxt" and path.is_file())
    named = folder / f"{config_name}.pbtxt" if config_name else None
    if named is not None and named in candidates:
        return named, tuple(candidates)
    main = directory / "config.pbtxt"
    return (main if main in candidates else None), tuple(candidates)


def read_config_text(path: Path) -> str:
    """Byte for byte: line ends are not translated. Raises :class:`InputError` where it is not UTF-8."""
    data = path.read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise InputError(
            f"byte 0x{data[error.start]:02x} is not UTF-8",
            where=f"{path}:{line}:{column}",
            remedy="save the config as UTF-8",
        ) from None


def version_blockers(
    directory: Path, config: ModelConfig, scan: VersionScan, versions: Sequence[ModelVersion], kind: ModelFormat
) -> Iterator[Blocker]:
    """Version directories that are missing, misnamed or without the file that the backend opens."""
    for child in sorted(directory.iterdir()):
        if child.is_symlink() and not child.exists():
            yield Blocker(
                "dangling_link",
                f"'{child.name}' is a link to {child.readlink()}, which is not there: Triton cannot list the versions",
                "remove the link, or bring its target back",
            )
    if scan.out_of_range:
        yield Blocker(
            "version_number",
            f"directory '{scan.out_of_range[0]}' is a version number beyond 64 bits: loading the model ends the server",
            "rename or move it",
        )
    if not versions:
        yield Blocker(
            "no_version",
            "there is no version directory",
            "put the model file in a directory named by a number, such as 1"
            + (", empty for an ensemble" if kind is ModelFormat.ENSEMBLE else ""),
        )
        return
    served = [version for version in versions if version.served]
    if not served:
        numbers = ", ".join(str(version.number) for version in versions)
        yield Blocker(
            "no_served_version",
            f"the version policy serves none of the versions that are there ({numbers})",
            "correct version_policy",
        )
    misnamed = {version.number: version for version in scan.versions if version.misnamed}
    for version in served:
        if version.number < 0:
            yield Blocker(
                "version_number",
                f"directory '{version.path.name}' counts as a negative version, whose files Triton does not find",
                "rename or move it",
            )
        elif version.number in misnamed:
            name = misnamed[version.number].found[0].name
            yield Blocker(
                "version_directory_name",
                f"Triton takes directory '{name}' for version {version.number} and then looks for its files in "
                f"'{version.number}', which is not there: the whole model does not load",
                f"move '{name}' out of the model directory, or rename it",
            )
        elif version.file is None and config.default_model_filename and kind is not ModelFormat.ENSEMBLE:
            yield from _missing_file(directory, config, version)
    specific = list(config.version_policy.specific.versions)
    absent = sorted(set(specific) - {version.number for version in versions})
    if absent and served:
        yield Blocker(
            "version_absent",
            f"version_policy names version {', '.join(map(str, absent))}, which is not there; Triton skips it",
            "correct version_policy",
            fatal=False,
        )


def _missing_file(directory: Path, config: ModelConfig, version: ModelVersion) -> Iterator[Blocker]:
    there = [name for name in KNOWN_FILES if (version.path / name).exists()]
    found = f"; it has {', '.join(there)}" if there else ""
    yield Blocker(
        "model_file_missing",
        f"version {version.number} is served, but {version.path.relative_to(directory)}/"
        f"{config.default_model_filename} is not there{found}",
        "add the file, correct default_model_filename and backend, or leave the version out by version_policy",
    )


def referenced_file_blockers(
    directory: Path, config: ModelConfig, label_files: Sequence[str], warmup_files: Sequence[str]
) -> Iterator[Blocker]:
    """Label files, warm-up data and initial states: Triton does not load a model without them."""
    for name in label_files:
        if ".." in Path(name).parts or Path(name).is_absolute():
            yield Blocker(
                "label_file_outside",
                f"label file '{name}' is outside the model directory, which Triton refuses",
                "move it into the model directory",
            )
        elif not (directory / name).is_file():
            yield Blocker("label_file_missing", f"label file '{name}' is not there", "add it, or remove label_filename")
    for name in warmup_files:
        if not (directory / name).is_file():
            yield Blocker("warmup_file_missing", f"warm-up data '{name}' is not there", "add it, or remove the warm-up")
    for state in config.sequence_batching.state:
        for initial in state.initial_state:
            name = f"initial_state/{initial.data_file}"
            if initial.data_file and not (directory / name).is_file():
                yield Blocker("initial_state_missing", f"'{name}' is not there", "add it")
    for capability, filename in sorted(config.cc_model_filenames.items()):
        if not any(path.is_dir() and (path / filename).exists() for path in directory.iterdir()):
            yield Blocker(
                "cc_model_file_missing",
                f"cc_model_filenames names '{filename}' for compute capability {capability}; no version has it",
                "add the file, or remove the entry",
                fatal=False,
            )


def warmup_files(config: ModelConfig) -> tuple[str, ...]:
    """Relative to the model directory."""
    names = (
        f"warmup/{entry.input_data_file}"
        for warmup in config.model_warmup
        for entry in warmup.inputs.values()
        if entry.WhichOneof("input_data_type") == "input_data_file"
    )
    return tuple(dict.fromkeys(names))


def external_data_blockers(onnx_path: Path, locations: Sequence[str]) -> Iterator[Blocker]:
    """Files that the ONNX file keeps its weights in."""
    for location in locations:
        target = onnx_path.parent / location
        if Path(location).is_absolute() or ".." in Path(location).parts:
            yield Blocker(
                "external_data_outside",
                f"{onnx_path.name} keeps weights in '{location}', outside its own directory",
                "save the model again with its external data beside it",
            )
        elif not target.is_file():
            yield Blocker(
                "external_data_missing",
                f"{onnx_path.name} keeps weights in '{location}', which is not there",
                f"copy '{location}' beside {onnx_path.name}",
            )


def directory_notes(
    directory: Path,
    config: ModelConfig,
    scan: VersionScan,
    versions: Sequence[ModelVersion],
    config_path: Path | None,
) -> Iterator[str]:
    """What surprises in Triton and blocks nothing."""
    for name, reason in scan.ignored:
        yield f"directory '{name}' is ignored by Triton: {reason}"
    for found in scan.versions:
        extra = [path.name for path in found.found if path != found.path]
        if extra and not found.misnamed:
            yield f"directory '{extra[0]}' counts as version {found.number} too: keep copies out of the repository"
    if directory.is_symlink():
        yield f"the model directory is a link to {directory.resolve()}"
    for version in versions:
        provenance = version.path / PROVENANCE_FILE
        if provenance.is_file():
            yield f"version {version.number} was written by triton-optimizer{_decision(provenance)}"
    named = config.backend or config.platform or config.default_model_filename
    first = first_version_directory(directory)
    if not named and first is not None:
        there = [name for name in KNOWN_FILES if (first / name).exists()]
        if len(there) > 1:
            yield f"the config names no backend and '{first.name}' has {' and '.join(there)}: Triton takes {there[0]}"
        if versions and first.name != str(versions[0].number):
            yield f"the config names no backend: Triton tells it from directory '{first.name}', the first by name"
    if config.HasField("model_repository_agents"):
        yield "a repository agent may have the server read the model from another place than this directory"
    if config.response_cache.enable:
        yield "the response cache is on: it is switched off while measuring"
    if config_path is not None:
        # The server finds the config's own time stamp by a prefix match of paths, and drops all of them on two hits.
        top = "configs" if config_path.parent.name == "configs" else config_path.name
        for child in directory.iterdir():
            if child.name != top and top.startswith(child.name):
                yield f"'{child.name}' beside '{top}' keeps Triton from noticing changes of this model"


def _decision(provenance: Path) -> str:
    try:
        document = json.loads(provenance.read_bytes())
    except (OSError, ValueError):
        return f" ({PROVENANCE_FILE} cannot be read)"
    decision = document.get("decision") if isinstance(document, dict) else None
    winner = decision.get("winner") if isinstance(decision, dict) else None
    return f" ({winner})" if isinstance(winner, str) else ""
