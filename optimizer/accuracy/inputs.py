"""Samples from files: ``.npz``, a directory of ``.npz``, or perf_analyzer's JSON.

**One ``.npz`` for all samples.** A key is an input's name; its array has a leading sample axis: ``[samples, *dims]``,
or ``[samples, batch, *dims]`` where the model batches and each sample is a request of several rows. Golden outputs are
``expected/NAME`` or ``output:NAME``, laid out the same way. ``tags`` (texts, ``[samples]``, several tags separated by
commas) and ``ids`` (texts, ``[samples]``) are optional, and reserved only where the model has no such input.

**A directory of ``.npz``.** One file is one sample (sorted by name, its stem is the id), so that shapes may vary:
arrays have the tensor's ``dims``, with or without the batch axis. ``tags`` is a text or an array of texts.

**perf_analyzer's JSON** (``.json``): see :mod:`optimizer.accuracy.perf_analyzer_json`.

Imports records, errors and durable only; NumPy never unpickles anything here.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from optimizer.accuracy.perf_analyzer_json import load_perf_analyzer_json
from optimizer.accuracy.splitting import check_disjoint, split
from optimizer.accuracy.synthetic import ShapeRange, parse_int_range, parse_shape, synthetic_samples
from optimizer.accuracy.tensors import Address, check_batches, check_complete, to_wire_form
from optimizer.durable import sha256_file, sha256_tree, write_atomically
from optimizer.errors import InputError
from optimizer.records.model import Array, Model, TensorSpec
from optimizer.records.samples import Sample, SampleSet

__all__ = [
    "ShapeRange",
    "check_disjoint",
    "load_samples",
    "parse_int_range",
    "parse_shape",
    "save_samples",
    "split",
    "synthetic_samples",
]

EXPECTED_PREFIXES = ("expected/", "output:")


def load_samples(path: Path, model: Model, *, name: str) -> SampleSet:
    """The samples of ``path`` as a set called ``name``; ``references`` is ``golden`` where it has outputs.

    Raises :class:`InputError` for a file that cannot be read, an unknown or missing tensor, and any array whose data
    type, shape or values do not fit the model.
    """
    if not path.exists():
        raise InputError(
            "no such file or directory", where=path, remedy="name an .npz, a directory of .npz, or a .json"
        )
    try:
        if path.is_dir():
            samples, digest = _load_directory(path, model), sha256_tree(path)
        elif path.suffix == ".npz":
            samples, digest = _load_npz(path, model), sha256_file(path)
        elif path.suffix == ".json":
            samples, digest = load_perf_analyzer_json(path, model), sha256_file(path)
        else:
            raise InputError(
                f"cannot tell the format from the suffix {path.suffix!r}",
                where=path,
                remedy="name an .npz, a directory of .npz, or a .json in perf_analyzer's format",
            )
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror or error}", where=path, remedy="make it readable for this user"
        ) from None
    if not samples:
        raise InputError("holds no samples", where=path, remedy="give at least one sample")
    seen: set[str] = set()
    for sample in samples:
        if sample.id in seen:
            raise InputError(
                f"sample id {sample.id!r} occurs more than once", where=path, field="ids", remedy="make the ids unique"
            )
        seen.add(sample.id)
    golden = samples[0].expected is not None
    return SampleSet(
        name=name,
        samples=samples,
        origin=f"{path} (sha256 {digest})",
        references="golden" if golden else "",
    )


def save_samples(path: Path, samples: SampleSet) -> None:
    """Writes samples of equal shapes as one ``.npz`` in the layout above (``[samples, batch, *dims]``), with their ids
    and tags unless an input has that name. Raises ``ValueError`` where shapes vary."""
    arrays: dict[str, Array] = {
        "ids": np.array([sample.id for sample in samples.samples]),
        "tags": np.array([",".join(sorted(sample.tags)) for sample in samples.samples]),
    }
    if all(sample.expected is not None for sample in samples.samples):
        for tensor in samples.samples[0].expected or {}:
            arrays[f"expected/{tensor}"] = _stack([(sample.expected or {})[tensor] for sample in samples.samples])
    for tensor in samples.samples[0].inputs:
        arrays[tensor] = _stack([sample.inputs[tensor] for sample in samples.samples])
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomically(path, buffer.getvalue())


def _stack(arrays: list[Array]) -> Array:
    stacked = np.stack(arrays)
    return stacked.astype(np.bytes_) if stacked.dtype == np.object_ else stacked


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of an ``.npz``. Raises :class:`InputError`; object arrays are refused, as they would be unpickled."""
    # Opened here, as numpy.load leaves a file open that turns out not to be an archive.
    with path.open("rb") as file:
        try:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise InputError(
                    "is a single array, not an .npz archive", where=path, remedy="save it with numpy.savez"
                )
            keys = list(archive.files)
        except (zipfile.BadZipFile, EOFError, ValueError) as error:
            raise InputError(f"is not a valid .npz: {error}", where=path, remedy="save it with numpy.savez") from None
        arrays: dict[str, Array] = {}
        for key in keys:
            try:
                arrays[key] = archive[key]
            except ValueError as error:
                raise InputError(
                    f"cannot be read without unpickling: {error}",
                    where=path,
                    field=f"tensor {key!r}",
                    remedy="save texts as a NumPy S or U array; object arrays are not read",
                ) from None
            except (zipfile.BadZipFile, EOFError, zlib.error) as error:
                raise InputError(
                    f"is damaged: {error}",
                    where=path,
                    field=f"tensor {key!r}",
                    remedy="write the file anew with numpy.savez",
                ) from None
        return arrays


def _load_npz(path: Path, model: Model) -> tuple[Sample, ...]:
    arrays = read_npz(path)
    inputs, expected, extras = sort_keys(arrays, model, str(path))
    address = Address(str(path))
    counts = {key: array.shape[0] if array.ndim else -1 for key, array in arrays.items()}
    count = next(iter(counts[key] for key in arrays if key not in extras), 0)
    for key, length in counts.items():
        if length != count:
            raise address.error(
                key,
                f"expected {count} samples along the first axis, got {'a scalar' if length < 0 else length}",
                "give every array a leading sample axis of the same length",
            )
    ids = [str(item) for item in arrays["ids"]] if "ids" in extras else [str(index) for index in range(count)]
    tags = [_tags(item) for item in arrays["tags"]] if "tags" in extras else [frozenset[str]()] * count
    samples = []
    for index in range(count):
        here = Address(str(path), ids[index])
        samples.append(
            Sample(
                id=ids[index],
                inputs={spec.name: to_wire_form(array[index, ...], model, spec, here) for spec, array in inputs},
                expected={spec.name: to_wire_form(array[index, ...], model, spec, here) for spec, array in expected}
                if expected
                else None,
                tags=tags[index],
            )
        )
        check_batches(samples[-1], model, here)
    return tuple(samples)


def _load_directory(path: Path, model: Model) -> tuple[Sample, ...]:
    samples = []
    for file in sorted(path.glob("*.npz")):
        arrays = read_npz(file)
        inputs, expected, extras = sort_keys(arrays, model, str(file))
        here = Address(str(file), file.stem)
        samples.append(
            Sample(
                id=file.stem,
                inputs={spec.name: to_wire_form(array, model, spec, here) for spec, array in inputs},
                expected={spec.name: to_wire_form(array, model, spec, here) for spec, array in expected} or None,
                tags=_tags(arrays["tags"]) if "tags" in extras else frozenset(),
            )
        )
        check_batches(samples[-1], model, here)
    without = [sample.id for sample in samples if sample.expected is None]
    if without and len(without) < len(samples):
        raise InputError(
            f"sample {without[0]} has no expected outputs while others have", where=path,
            remedy="give expected outputs for every sample or for none",
        )  # fmt: skip
    return tuple(samples)


def sort_keys(
    arrays: Mapping[str, Array], model: Model, where: str
) -> tuple[list[tuple[TensorSpec, Array]], list[tuple[TensorSpec, Array]], frozenset[str]]:
    """(inputs, expected outputs, which of ``ids`` and ``tags`` are there); raises for unknown and missing names."""
    input_specs = {spec.name: spec for spec in model.inputs}
    output_specs = {spec.name: spec for spec in model.outputs}
    inputs: list[tuple[TensorSpec, Array]] = []
    expected: list[tuple[TensorSpec, Array]] = []
    extras: set[str] = set()
    for key, array in arrays.items():
        prefix = next((prefix for prefix in EXPECTED_PREFIXES if key.startswith(prefix)), "")
        if key in input_specs:
            inputs.append((input_specs[key], array))
        elif prefix and key[len(prefix) :] in output_specs:
            if any(spec.name == key[len(prefix) :] for spec, _ in expected):
                raise InputError("is given twice", where=where, field=f"tensor {key!r}", remedy="keep one of them")
            expected.append((output_specs[key[len(prefix) :]], array))
        elif key in ("ids", "tags"):
            extras.add(key)
        else:
            raise InputError(
                f"the model has no {'output' if prefix else 'input'} of this name; "
                f"inputs: {', '.join(input_specs)}; outputs: {', '.join(output_specs)}",
                where=where,
                field=f"tensor {key!r}",
                remedy="name inputs as the model does, expected outputs expected/NAME",
            )
    check_complete({spec.name for spec, _ in inputs}, {spec.name for spec, _ in expected}, model, where)
    return inputs, expected, frozenset(extras)


def _tags(value: Array | str) -> frozenset[str]:
    items = [str(item) for item in np.atleast_1d(np.asarray(value)).reshape(-1)]
    return frozenset(tag.strip() for item in items for tag in item.split(",") if tag.strip())
