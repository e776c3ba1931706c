"""What ``inspect`` shows, as one document. Pure: models in, JSON-compatible values out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optimizer.records.model import Model, ModelFormat, TensorSpec
from optimizer.repository.reader import UnreadableModel, onnx_path

SCHEMA = 1


def inspection_document(models: Sequence[Model | UnreadableModel], *, repository: Path | None = None) -> dict[str, Any]:
    """``{"schema", "repository", "models": […], "summary"}``; keys are stable, more may come.

    A model is ``{"name", "status", …}``; status is ``ready`` (nothing keeps it from being tuned), ``blocked`` (a fatal
    blocker) or ``unreadable`` (only ``name``, ``directory``, ``status`` and ``error`` are there).
    ``plan_possible`` is true where nothing is known that would keep a TensorRT plan from being built and served.
    """
    entries = [_unreadable(model) if isinstance(model, UnreadableModel) else _entry(model) for model in models]
    statuses = [entry["status"] for entry in entries]
    return {
        "schema": SCHEMA,
        "repository": str(repository) if repository is not None else None,
        "models": entries,
        "summary": {status: statuses.count(status) for status in ("ready", "blocked", "unreadable")},
    }


def _unreadable(model: UnreadableModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "directory": str(model.directory),
        "status": "unreadable",
        "error": model.error.as_json(),
    }


def _entry(model: Model) -> dict[str, Any]:
    live = model.live_version
    source = onnx_path(model)
    fatal = [blocker for blocker in model.blockers if blocker.fatal]
    return {
        "name": model.name,
        "directory": str(model.directory),
        "status": "blocked" if fatal else "ready",
        "plan_possible": plan_possible(model),
        "backend": model.backend,
        "platform": model.platform,
        "format": model.format.value,
        "served_by": _served_by(model),
        "max_batch_size": model.max_batch_size,
        "dynamic_batching": model.dynamic_batching,
        "sequence_batching": model.sequence_batching,
        "decoupled": model.decoupled,
        "config": {
            "path": str(model.config_path) if model.config_path else None,
            "completed": model.effective_config_text != model.config_text,
            "candidates": [str(path) for path in model.config_candidates],
            "default_model_filename": model.default_model_filename,
        },
        "version_policy": model.version_policy,
        "live_version": live.number if live else None,
        "versions": [
            {
                "number": version.number,
                "served": version.served,
                "format": version.format.value,
                "file": str(version.file) if version.file else None,
                "size_bytes": version.size_bytes,
            }
            for version in sorted(model.versions, key=lambda version: version.number)
        ],
        "inputs": [_tensor(tensor) for tensor in model.inputs],
        "outputs": [_tensor(tensor) for tensor in model.outputs],
        "onnx_source": str(source) if source else None,
        "ensemble_members": list(model.ensemble_members),
        "label_files": list(model.label_files),
        "warmup_files": list(model.warmup_files),
        "blockers": [
            {"code": blocker.code, "fatal": blocker.fatal, "reason": blocker.reason, "remedy": blocker.remedy}
            for blocker in model.blockers
        ],
        "notes": list(model.notes),
        "content_hash": model.content_hash,
    }


PLAN_ADVICE = frozenset(
    {"free_dimensions", "no_batch_dimension", "version_absent", "cc_model_file_missing", "custom_domains"}
)
"""Codes of blockers that ask for something before a plan, but do not rule one out."""


def plan_possible(model: Model) -> bool:
    return all(not blocker.fatal and blocker.code in PLAN_ADVICE for blocker in model.blockers)


def _served_by(model: Model) -> str | None:
    """One line: which file is opened by which backend."""
    live = model.live_version
    if model.format is ModelFormat.ENSEMBLE:
        return "ensemble of " + ", ".join(model.ensemble_members)
    if live is None or not model.backend:
        return None
    name = f"{live.number}/{model.default_model_filename}" if model.default_model_filename else str(live.number)
    return f"{model.backend} from {name}"


def _tensor(tensor: TensorSpec) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "dims": list(tensor.dims),
        "reshape": list(tensor.reshape) if tensor.reshape is not None else None,
        "optional": tensor.optional,
        "ragged": tensor.ragged,
        "shape_tensor": tensor.shape_tensor,
        "label_filename": tensor.label_filename,
    }
