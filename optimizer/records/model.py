"""A Model: one entry of a Triton model repository, as read from disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

TRITON_TO_NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    # NumPy has no bfloat16: BF16 tensors are carried as FP32 arrays whose values are representable in BF16.
    "BF16": np.dtype(np.float32),
    "BYTES": np.dtype(np.object_),
}
"""Triton data type (as in the inference protocol) to the NumPy type that carries it here."""

ITEM_BYTES: dict[str, int] = {
    "BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8,
    "FP16": 2, "FP32": 4, "FP64": 8, "BF16": 2,
}  # fmt: skip
"""Bytes of one element on the wire; BYTES has no fixed size."""


class ModelFormat(str, Enum):
    """What a version directory holds, by the file Triton would open."""

    ONNX = "onnx"
    PLAN = "plan"
    TORCHSCRIPT = "torchscript"
    PYTORCH_EXPORT = "pytorch_export"
    OPENVINO = "openvino"
    PYTHON = "python"
    ENSEMBLE = "ensemble"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a model, as clients see it.

    ``dims`` excludes the batch dimension when ``Model.max_batch_size`` > 0; ``-1`` is a free dimension.
    ``reshape`` is what the backend sees instead of ``dims`` (``None``: the same).
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False
    ragged: bool = False
    shape_tensor: bool = False
    label_filename: str | None = None

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return TRITON_TO_NUMPY[self.datatype]


@dataclass(frozen=True)
class ModelVersion:
    """One numeric version directory. ``file`` is what Triton opens (a directory for ONNX with external data)."""

    number: int
    path: Path
    file: Path | None
    format: ModelFormat
    size_bytes: int
    served: bool
    """Selected by the version policy."""


@dataclass(frozen=True)
class Blocker:
    """Something that stands in the way of a plan or of tuning. ``code`` is stable, ``reason`` is for people."""

    code: str
    reason: str
    remedy: str
    fatal: bool = True


@dataclass(frozen=True)
class Model:
    """A repository entry: live config, versions, tensors.

    ``config_text`` is the live config's text exactly as on disk, ``""`` where there is none (Triton auto-completes;
    ``effective_config_text`` then holds what it would complete to). The protobuf message itself is made from text on
    demand by :func:`optimizer.triton.protobuf.parse_config`, so that records need no protobuf.
    """

    name: str
    directory: Path
    config_path: Path | None
    config_text: str
    effective_config_text: str
    platform: str
    backend: str
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    versions: tuple[ModelVersion, ...]
    version_policy: str
    """Text such as ``latest(1)``, ``all`` or ``specific(1,3)``."""
    default_model_filename: str
    config_candidates: tuple[Path, ...] = ()
    ensemble_members: tuple[str, ...] = ()
    warmup_files: tuple[str, ...] = ()
    label_files: tuple[str, ...] = ()
    sequence_batching: bool = False
    dynamic_batching: bool = False
    decoupled: bool = False
    blockers: tuple[Blocker, ...] = ()
    notes: tuple[str, ...] = ()
    content_hash: str = field(default="", compare=False)
    """sha256 over the live version's files and the live config."""

    @property
    def live_version(self) -> ModelVersion | None:
        """The version that an unversioned request reaches: the highest served one."""
        served = [version for version in self.versions if version.served]
        return max(served, key=lambda version: version.number) if served else None

    @property
    def format(self) -> ModelFormat:
        return self.live_version.format if self.live_version else ModelFormat.UNKNOWN

    @property
    def batched(self) -> bool:
        return self.max_batch_size > 0
