"""Expected outputs on disk, with their hash and where they come from: ``NAME.npz`` and ``NAME.json`` beside it.

Imports records, errors and durable only.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from optimizer.accuracy.comparison import as_bytes
from optimizer.accuracy.inputs import read_npz
from optimizer.durable import sha256_file, write_atomically, write_json
from optimizer.errors import InputError
from optimizer.records.model import Array
from optimizer.records.samples import SampleSet

SCHEMA = 1


def save_references(path: Path, samples: SampleSet) -> str:
    """Writes the samples' expected outputs to ``path`` (an ``.npz``) and returns its sha256, which the ``.json`` holds
    with the origin, every sample's content hash and its tags. Raises ``ValueError`` where a sample has none."""
    arrays: dict[str, Array] = {}
    for index, sample in enumerate(samples.samples):
        if sample.expected is None:
            raise ValueError(f"sample {sample.id} has no expected outputs")
        for name, array in sample.expected.items():
            if array.dtype == np.object_:
                items = [as_bytes(item) for item in array.reshape(-1)]
                arrays[f"{index}/lengths/{name}"] = np.array([len(item) for item in items], np.int64).reshape(
                    array.shape
                )
                arrays[f"{index}/text/{name}"] = np.frombuffer(b"".join(items), np.uint8)
            else:
                arrays[f"{index}/array/{name}"] = array
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomically(path, buffer.getvalue())
    digest = sha256_file(path)
    write_json(path.with_suffix(".json"), {
        "schema": SCHEMA, "sha256": digest, "references": samples.references, "origin": samples.origin,
        "set": samples.name, "samples": [[sample.id, sample.content_hash] for sample in samples.samples],
        "tags": [sorted(sample.tags) for sample in samples.samples],
    })  # fmt: skip
    return digest


def load_references(path: Path, samples: SampleSet) -> SampleSet:
    """``samples`` with the expected outputs, and the tags, of ``path``. Raises :class:`InputError` where the file was
    changed, or belongs to other samples."""
    notes = path.with_suffix(".json")
    try:
        document: Mapping[str, Any] = json.loads(notes.read_text(encoding="utf-8"))
        listed = [tuple(entry) for entry in document["samples"]]
        schema, wanted, references = document["schema"], document["sha256"], document["references"]
        tags = document.get("tags", [[]] * len(listed))
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror or error}", where=notes, remedy="start a new study"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"does not describe kept references: {error}", where=notes, remedy="start a new study"
        ) from None
    if schema != SCHEMA:
        raise InputError(f"has schema {schema}, this version reads {SCHEMA}", where=notes, remedy="start a new study")
    if not path.is_file() or sha256_file(path) != wanted:
        raise InputError(f"is not the file with sha256 {wanted}", where=path, remedy="make the references anew")
    if listed != [(sample.id, sample.content_hash) for sample in samples.samples]:
        raise InputError(
            f"belongs to other samples than {samples.origin}", where=path, remedy="make the references anew"
        )
    expected: list[dict[str, Array]] = [{} for _ in samples.samples]
    arrays = read_npz(path)
    for key, array in arrays.items():
        number, kind, name = key.split("/", 2)
        if kind == "array":
            expected[int(number)][name] = array
        elif kind == "lengths":
            expected[int(number)][name] = _texts(array, arrays[f"{number}/text/{name}"].tobytes())
    return replace(
        samples,
        samples=tuple(
            replace(sample, expected=outputs, tags=sample.tags | frozenset(own))
            for sample, outputs, own in zip(samples.samples, expected, tags, strict=True)
        ),
        references=references,
    )


def _texts(lengths: Array, data: bytes) -> Array:
    result = np.empty(lengths.size, dtype=np.object_)
    offset = 0
    for index, length in enumerate(lengths.reshape(-1).tolist()):
        result[index] = data[offset : offset + length]
        offset += length
    return result.reshape(lengths.shape)
