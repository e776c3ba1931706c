"""Requests with, where known, the answers they must get."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from optimizer.records.model import Array

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Sample:
    """One request. Arrays have the shape that goes over the wire: with the batch dimension first where the model
    batches (normally 1), without one where ``max_batch_size`` is 0. BF16 tensors are FP32 arrays, BYTES are object
    arrays of ``bytes``.
    """

    id: str
    inputs: Arrays
    expected: Arrays | None = None
    """Golden outputs by name, in the same form; ``None`` where there are none (yet)."""
    tags: frozenset[str] = frozenset()

    @property
    def batch(self) -> int:
        first = next(iter(self.inputs.values()))
        return int(first.shape[0]) if first.ndim else 1

    @property
    def content_hash(self) -> str:
        digest = hashlib.sha256()
        for name in sorted(self.inputs):
            array = self.inputs[name]
            digest.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
            if array.dtype == np.object_:
                for item in array.flat:
                    data = item if isinstance(item, bytes) else str(item).encode()
                    digest.update(len(data).to_bytes(8, "little") + data)
            else:
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class SampleSet:
    """Samples of one purpose: ``tune`` screens candidates, ``held_out`` judges finalists, once."""

    name: str
    samples: tuple[Sample, ...]
    origin: str
    """A file with its sha256, or ``synthetic (seed N)``."""
    synthetic: bool = False
    references: str = ""
    """Where ``expected`` comes from: ``golden``, ``as-found``, ``onnxruntime-fp32``."""
    details: Mapping[str, object] = field(default_factory=dict)
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    """Samples of another set that a trace names, by id: the sample of this set that is sent in their place."""

    def __len__(self) -> int:
        return len(self.samples)
