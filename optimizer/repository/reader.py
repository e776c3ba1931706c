"""Reads a model repository: which models are there, which config is live, what is served, and what blocks a plan.

Nothing is changed, and nothing is loaded. Rules follow Triton's own repository manager; where only a backend or a
running server could know, the model says so in a blocker.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optimizer.durable import sha256_file
from optimizer.errors import InputError, OptimizerError
from optimizer.records.model import Blocker, Model, ModelFormat, ModelVersion, TensorSpec
from optimizer.repository import checks, on_disk
from optimizer.repository.completion import DEFAULT_MAX_BATCH_SIZE, complete_backend, complete_from_onnx
from optimizer.repository.config_text import check_syntax, edit_config
from optimizer.repository.onnx_signature import OnnxSignature, OnnxUnreadable, onnx_file, read_signature
from optimizer.repository.versions import (
    VersionScan,
    model_format,
    recognize,
    scan_versions,
    select_versions,
    size_bytes,
    version_files,
)
from optimizer.triton.protobuf import datatype_name, new_config, parse_config, print_config

if TYPE_CHECKING:
    from optimizer.triton.protobuf import ModelConfig


@dataclass(frozen=True)
class UnreadableModel:
    """An entry that cannot be read, with the error that :func:`read_model` would raise."""

    name: str
    directory: Path
    error: OptimizerError


def list_models(repository: Path) -> list[str]:
    """Names of all entries, sorted: every sub-directory is a model to Triton, also one whose name starts with a dot.

    Raises :class:`InputError` for a repository that is missing, unreadable or no directory.
    """
    _check_repository(repository)
    try:
        return sorted(child.name for child in repository.iterdir() if child.is_dir())
    except OSError as error:
        raise _unreadable(repository, error) from None


def read_repository(
    repository: Path, *, config_name: str | None = None, with_hash: bool = True
) -> list[Model | UnreadableModel]:
    """Every entry; one that cannot be read is a value, so that the others are still shown."""
    entries: list[Model | UnreadableModel] = []
    for name in list_models(repository):
        try:
            entries.append(read_model(repository, name, config_name=config_name, with_hash=with_hash))
        except InputError as error:
            entries.append(UnreadableModel(name, repository / name, error))
    return entries


def read_model(repository: Path, name: str, *, config_name: str | None = None, with_hash: bool = True) -> Model:
    """One entry. ``config_name`` is the server's ``--model-config-name``. Without ``with_hash`` no weights are read but
    those inside an ONNX file, and ``content_hash`` is ``""``.

    Raises :class:`InputError` for a name that is none, an entry that is missing or unreadable, a config that does not
    parse, and a directory that another process changes meanwhile. Whatever else is wrong is in ``Model.blockers``.
    """
    check_model_name(name)
    _check_repository(repository)
    directory = repository / name
    if not directory.is_dir():
        raise _no_such_model(repository, name)
    try:
        before = on_disk.snapshot(directory)
        model = _read(repository, name, directory, config_name, with_hash)
        changed = on_disk.difference(before, on_disk.snapshot(directory))
    except OSError as error:
        raise _unreadable(Path(error.filename) if error.filename else directory, error) from None
    if changed:
        raise InputError(
            f"'{changed}' changed while the model was being read",
            where=directory,
            remedy="wait until whatever writes to the repository has finished, then try again",
        )
    return model


def check_model_name(name: str) -> None:
    """Raises :class:`InputError` for a name that is no single directory name."""
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        shown = name.replace("\0", "\\0")
        raise InputError(
            f"'{shown}' is no model name: it is one directory below the repository, without '/' and not '..'",
            field="model",
            remedy="name a model as `triton-optimizer inspect REPO` lists it",
        )


def onnx_path(model: Model) -> Path | None:
    """The ONNX file that a plan can be built from: the live version's own, one beside its plan, or that of the highest
    other version that has one; ``None`` where there is none.
    """
    live = model.live_version
    ordered = ([live] if live else []) + sorted(
        (version for version in model.versions if version is not live), key=lambda version: -version.number
    )
    for version in ordered:
        candidates = [version.file] if version.file is not None and version.format is ModelFormat.ONNX else []
        candidates += [version.path / "model.onnx"]
        for candidate in candidates:
            path = onnx_file(candidate)
            if path.is_file():
                return path
    return None


def content_hash(config_text: str, version: ModelVersion | None) -> str:
    """sha256 over the live config and every file of the live version but provenance; names count, times do not."""
    digest = hashlib.sha256(b"config\0" + config_text.encode())
    if version is not None:
        for path in version_files(version.path):
            digest.update(f"\0{path.relative_to(version.path).as_posix()}\0{sha256_file(path)}".encode())
    return digest.hexdigest()


def version_policy_text(config: ModelConfig) -> str:
    """``latest(1)``, ``all`` or ``specific(1,3)``."""
    policy = config.version_policy
    choice = _policy_choice(config)
    if choice == "all":
        return "all"
    if choice == "specific":
        return f"specific({','.join(str(number) for number in policy.specific.versions)})"
    return f"latest({policy.latest.num_versions if choice == 'latest' else 1})"


def _policy_choice(config: ModelConfig) -> str | None:
    """A version_policy that is there and empty serves all versions (seen on the server); none at all, the latest."""
    choice: str | None = config.version_policy.WhichOneof("policy_choice")
    return "all" if choice is None and config.HasField("version_policy") else choice


def ensembles_using(repository: Path, name: str, *, config_name: str | None = None) -> list[str]:
    """Ensembles of the repository that have ``name`` as a member; a config that does not parse has none."""
    found = []
    for other in list_models(repository):
        try:
            path, _ = on_disk.live_config(repository / other, config_name)
            if path is None:
                continue
            text = path.read_bytes().decode()
            if "ensemble_scheduling" in text and name in text:
                steps = parse_config(text, where=path).ensemble_scheduling.step
                if any(step.model_name == name for step in steps):
                    found.append(other)
        except (OSError, UnicodeDecodeError, InputError):
            continue
    return found


def _read(repository: Path, name: str, directory: Path, config_name: str | None, with_hash: bool) -> Model:
    blockers: list[Blocker] = []
    notes: list[str] = []
    config_path, candidates = on_disk.live_config(directory, config_name)
    if config_name and (config_path is None or config_path.stem != config_name):
        notes.append(f"there is no configs/{config_name}.pbtxt: config.pbtxt is live instead")
    config_text = on_disk.read_config_text(config_path) if config_path else ""
    config = parse_config(config_text, where=config_path) if config_path else new_config()
    if config_path:
        check_syntax(config_text, where=config_path)

    scan = scan_versions(directory)
    completed = complete_backend(config, name, directory)
    kind = model_format(completed.backend, completed.platform, completed.default_model_filename)
    versions = _versions(completed, scan, kind)
    served = [version for version in versions if version.served]
    live = max(served, key=lambda version: version.number) if served else None

    blockers += on_disk.version_blockers(directory, completed, scan, versions, kind)
    notes += on_disk.directory_notes(directory, config, scan, versions, config_path)
    signature: OnnxSignature | None = None
    if kind is ModelFormat.ONNX and live is not None and live.file is not None:
        signature = _signature(live.file, blockers)
        if signature is not None:
            before = completed
            completed = complete_from_onnx(completed, signature)
            if not before.max_batch_size and completed.max_batch_size:
                notes.append(
                    f"the config gives no tensors: auto-complete sets max_batch_size to {DEFAULT_MAX_BATCH_SIZE} "
                    "(the server's default-max-batch-size) and switches dynamic batching on"
                )
            blockers += checks.onnx_blockers(completed, signature, f"{live.path.name}/{live.file.name}")
    if not config_path:
        notes.append("there is no config.pbtxt: Triton completes one, unless it runs with auto-complete off")
    elif completed != config and not (len(config.input) and len(config.output)) and signature is not None:
        notes.append("the config lists no inputs or no outputs: Triton completes them from the ONNX file")
    has_onnx = signature is not None or any((version.path / "model.onnx").exists() for version in versions)
    blockers += checks.config_blockers(completed, name)
    blockers += checks.tuning_blockers(completed, kind, has_onnx)

    members = tuple(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))
    blockers += _member_blockers(repository, members)
    warmup_files = on_disk.warmup_files(completed)
    label_files = tuple(dict.fromkeys(output.label_filename for output in config.output if output.label_filename))
    blockers += on_disk.referenced_file_blockers(directory, completed, label_files, warmup_files)
    users = ensembles_using(repository, name, config_name=config_name)
    if users:
        notes.append(f"used by ensemble{'s' if len(users) > 1 else ''} {', '.join(users)}")

    effective = new_config()
    effective.CopyFrom(completed)
    if not config.name:  # the directory's name counts, whatever that is where the config goes
        effective.ClearField("name")
    if effective == config:
        effective_text = config_text
    else:
        effective_text = edit_config(config_text, effective) if config_path else print_config(effective)
    return Model(
        name=name,
        directory=directory,
        config_path=config_path,
        config_text=config_text,
        effective_config_text=effective_text,
        platform=effective.platform,
        backend=effective.backend,
        max_batch_size=max(0, effective.max_batch_size),
        inputs=tuple(_tensor_spec(tensor) for tensor in effective.input),
        outputs=tuple(_tensor_spec(tensor) for tensor in effective.output),
        versions=tuple(versions),
        version_policy=version_policy_text(effective),
        default_model_filename=effective.default_model_filename,
        config_candidates=candidates,
        ensemble_members=members,
        warmup_files=warmup_files,
        label_files=label_files,
        sequence_batching=effective.HasField("sequence_batching"),
        dynamic_batching=effective.HasField("dynamic_batching"),
        decoupled=effective.model_transaction_policy.decoupled,
        blockers=tuple(dict.fromkeys(blockers)),
        notes=tuple(notes),
        content_hash=content_hash(config_text, live) if with_hash else "",
    )


def _versions(config: ModelConfig, scan: VersionScan, kind: ModelFormat) -> list[ModelVersion]:
    choice = _policy_choice(config)
    latest: int | None = 1
    if choice == "all":
        latest = None
    elif choice == "latest":
        latest = config.version_policy.latest.num_versions
    specific = list(config.version_policy.specific.versions) if choice == "specific" else None
    served = select_versions((version.number for version in scan.versions), latest=latest, specific=specific)
    versions = []
    for version in scan.versions:
        file: Path | None = version.path / config.default_model_filename if config.default_model_filename else None
        if file is not None and not _is_model_file(file, kind):
            file = None
        versions.append(
            ModelVersion(
                number=version.number,
                path=version.path,
                file=file,
                format=kind if file is not None or kind is ModelFormat.ENSEMBLE else recognize(version.path),
                size_bytes=size_bytes(version.path),
                served=version.number in served,
            )
        )
    return versions


def _is_model_file(path: Path, kind: ModelFormat) -> bool:
    if kind is ModelFormat.ONNX:
        return onnx_file(path).is_file()
    return path.is_file() if kind in (ModelFormat.PLAN, ModelFormat.TORCHSCRIPT) else path.exists()


def _signature(file: Path, blockers: list[Blocker]) -> OnnxSignature | None:
    path = onnx_file(file)
    try:
        signature = read_signature(path)
    except OnnxUnreadable as error:
        blockers.append(
            Blocker("onnx_unreadable", f"{path} is no ONNX model: {error}", "export the model again, or copy it whole")
        )
        return None
    blockers += on_disk.external_data_blockers(path, signature.external_files)
    return signature


def _member_blockers(repository: Path, members: tuple[str, ...]) -> Iterator[Blocker]:
    for member in members:
        if "/" in member or not (repository / member).is_dir():
            yield Blocker(
                "ensemble_member_missing",
                f"the ensemble uses model '{member}', which the repository does not have",
                f"add '{member}', or correct model_name",
            )


def model_of_config(name: str, config: ModelConfig) -> Model:
    """What a running server says of a model: tensors and batching, no files."""
    return Model(
        name=name,
        directory=Path(),
        config_path=None,
        config_text="",
        effective_config_text="",
        platform=config.platform,
        backend=config.backend,
        max_batch_size=config.max_batch_size,
        inputs=tuple(_tensor_spec(tensor) for tensor in config.input),
        outputs=tuple(_tensor_spec(tensor) for tensor in config.output),
        versions=(),
        version_policy=version_policy_text(config),
        default_model_filename=config.default_model_filename,
    )


def _tensor_spec(tensor: Any) -> TensorSpec:
    is_input = "optional" in tensor.DESCRIPTOR.fields_by_name
    return TensorSpec(
        name=tensor.name,
        datatype=datatype_name(tensor.data_type),
        dims=tuple(tensor.dims),
        reshape=tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None,
        optional=bool(is_input and tensor.optional),
        ragged=bool(is_input and tensor.allow_ragged_batch),
        shape_tensor=tensor.is_shape_tensor,
        label_filename=None if is_input else tensor.label_filename or None,
    )


def _check_repository(repository: Path) -> None:
    text = str(repository)
    if text.startswith(("s3:/", "gs:/", "as:/")):
        raise InputError(
            "a repository in cloud storage cannot be read directly",
            where=repository,
            remedy="mount or copy it, and name the directory",
        )
    try:
        if not repository.exists():
            raise InputError("there is no such directory", where=repository, remedy="name the model repository")
        if not repository.is_dir():
            raise InputError("it is a file, not a model repository", where=repository, remedy="name the directory")
        if (repository / "config.pbtxt").is_file():
            raise InputError(
                "it is one model's directory, not a repository of models",
                where=repository,
                remedy=f"name the directory above it ({repository.absolute().parent}) and --model {repository.name}",
            )
        if not os.access(repository, os.R_OK | os.X_OK):
            raise PermissionError(13, "Permission denied", text)
    except OSError as error:
        raise _unreadable(repository, error) from None


def _no_such_model(repository: Path, name: str) -> InputError:
    models = list_models(repository)
    if (repository / name).is_symlink():
        problem = f"model '{name}' is a link that leads nowhere ({(repository / name).readlink()})"
    elif (repository / name).exists():
        problem = f"'{name}' is a file; a model is a directory"
    else:
        problem = f"there is no model '{name}'"
    nearest = difflib.get_close_matches(name, models, 1)
    remedy = f"did you mean '{nearest[0]}'?" if nearest else f"models there: {', '.join(models) or 'none'}"
    return InputError(problem, where=repository, field="model", remedy=remedy)


def _unreadable(path: Path, error: OSError) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(
            "it went while the model was being read",
            where=path,
            remedy="wait until whatever writes to the repository has finished, then try again",
        )
    return InputError(
        f"cannot be read: {error.strerror or error}", where=path, remedy="give this user the right to read it"
    )
