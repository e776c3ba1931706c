"""Inputs of the magika classifier from real files: magika's own feature rule, without its package.

The rule (magika 1.0, model standard_v3_3): read the first and the last 4096 bytes, or all of a smaller file; strip
blanks from the left of the first block and from the right of the last one; keep the first 1024 bytes of the one and the
last 1024 of the other; fill up with 256, the first behind and the last in front. Files whose first block has fewer
than 8 bytes after stripping never reach the model.
"""

from __future__ import annotations

import os
import random
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from optimizer.accuracy.hard_cases import tag_lowest_margin
from optimizer.accuracy.inputs import save_samples
from optimizer.errors import InputError
from optimizer.records.model import Array
from optimizer.records.samples import Sample, SampleSet

BLOCK = 4096
HALF = 1024
PADDING = 256
FEWEST_BYTES = 8

INPUT, OUTPUT = "bytes", "target_label"

FILES_PER_ROOT = 20_000
"""Enough of each place, so that looking takes seconds."""

COMMON_KINDS = 24
"""File name suffixes that get a tag of their own; the others share ``other``."""


def features(content: bytes) -> Array | None:
    """INT32 [2048], or ``None`` for content that magika does not show to its model."""
    return _features(content[:BLOCK], content[-BLOCK:])


def file_features(path: Path) -> Array | None:
    """As :func:`features`, reading two blocks only. Raises ``OSError``."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        first = file.read(BLOCK)
        file.seek(max(0, size - BLOCK))
        return _features(first, file.read(BLOCK))


def _features(first: bytes, last: bytes) -> Array | None:
    head, tail = first.lstrip()[:HALF], last.rstrip()[-HALF:]
    if len(head) < FEWEST_BYTES:
        return None
    values = np.full(2 * HALF, PADDING, dtype=np.int32)
    values[: len(head)] = np.frombuffer(head, dtype=np.uint8)
    if tail:
        values[len(values) - len(tail) :] = np.frombuffer(tail, dtype=np.uint8)
    return values


def default_roots() -> list[Path]:
    """Places with files of many kinds on any machine: Python's library, installed packages, /usr/share, /usr/lib."""
    paths = sysconfig.get_paths()
    roots = [Path(paths["stdlib"]), Path(paths["purelib"]), Path(sys.base_prefix) / "bin"]
    roots += [Path(place) for place in ("/usr/share", "/usr/lib", "/usr/bin", "/etc")]
    return [root for root in dict.fromkeys(roots) if root.is_dir()]


def real_files(roots: list[Path] | None = None, *, seed: int = 0) -> Iterator[Path]:
    """Regular files below ``roots`` in an order that depends on their paths and the seed alone: one of every kind in
    turn, common kinds first, so that a few dozen hold many kinds and a few thousand are mostly ordinary files."""
    by_kind: dict[str, list[Path]] = {}
    for root in default_roots() if roots is None else roots:
        for path in islice(_walk(root), FILES_PER_ROOT):
            by_kind.setdefault(kind_of(path), []).append(path)
    generator = random.Random(seed)
    kinds = sorted(by_kind, key=lambda kind: (-len(by_kind[kind]), kind))
    for kind in kinds:
        generator.shuffle(by_kind[kind])
    queues = [iter(by_kind[kind]) for kind in kinds]
    while queues:
        remaining = []
        for queue in queues:
            for path in islice(queue, 1):
                yield path
                remaining.append(queue)
        queues = remaining


def _walk(root: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(root):
        # Sorted, as the order of a directory depends on its file system.
        names.sort()
        for name in sorted(files):
            path = Path(directory, name)
            if not path.is_symlink():
                yield path


def kind_of(path: Path) -> str:
    """The suffix in lower case where it looks like one (``py``, ``7z``), else ``none`` (``libc.so.6``, ``README``)."""
    suffix = path.suffix.lower().lstrip(".")
    return suffix if re.fullmatch(r"[a-z0-9]{1,10}", suffix) and not suffix.isdigit() else "none"


def real_file_samples(count: int, seed: int = 0, *, roots: list[Path] | None = None, name: str = "files") -> SampleSet:
    """``count`` samples from distinct real files, one row each, tagged by suffix (``py``, ``none``, ``other``).

    Files that cannot be read, are too short, or look to the model like an earlier one are passed over. Raises
    :class:`InputError` where there are not enough.
    """
    seen: set[bytes] = set()
    samples: list[Sample] = []
    for path in real_files(roots, seed=seed):
        if len(samples) == count:
            break
        try:
            values = file_features(path) if path.is_file() else None
        except OSError:
            continue
        if values is None or values.tobytes() in seen:
            continue
        seen.add(values.tobytes())
        samples.append(Sample(id=str(path), inputs={INPUT: values[np.newaxis, :]}, tags=frozenset({kind_of(path)})))
    if len(samples) < count:
        raise InputError(
            f"found {len(samples)} usable files, {count} are wanted", field="count", remedy="ask for fewer"
        )
    return SampleSet(
        name=name, samples=_rare_kinds_together(samples), origin=f"real files of this machine (seed {seed})"
    )


def _rare_kinds_together(samples: list[Sample]) -> tuple[Sample, ...]:
    counts: dict[str, int] = {}
    for sample in samples:
        for tag in sample.tags:
            counts[tag] = counts.get(tag, 0) + 1
    common = set(sorted(counts, key=lambda tag: (-counts[tag], tag))[:COMMON_KINDS])
    return tuple(replace(sample, tags=frozenset(tag if tag in common else "other" for tag in sample.tags))
                 for sample in samples)  # fmt: skip


def write_samples(path: Path, count: int, seed: int = 0, *, onnx: Path | None = None) -> SampleSet:
    """Writes ``count`` samples as an ``.npz`` for ``--inputs``. With ``onnx``, the tenth of them on which the model is
    least sure (the smallest margin between its two best labels) is tagged ``hard``."""
    samples = real_file_samples(count, seed)
    if onnx is not None:
        answered = replace(
            samples,
            samples=tuple(
                replace(sample, expected={OUTPUT: row})
                for sample, row in zip(samples.samples, probabilities(samples, onnx), strict=True)
            ),
        )
        tagged = tag_lowest_margin(answered, OUTPUT, count=max(1, count // 10))
        samples = replace(tagged, samples=tuple(replace(sample, expected=None) for sample in tagged.samples))
    save_samples(path, samples)
    return samples


def probabilities(samples: SampleSet, onnx: Path, *, batch: int = 1, optimize: bool = True) -> list[Array]:
    """The model's output for every sample, FP32 [1, 214] each, from ONNX Runtime on one CPU thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(onnx), options, providers=["CPUExecutionProvider"])
    rows: list[Array] = []
    for start in range(0, len(samples), batch):
        block = np.concatenate([sample.inputs[INPUT] for sample in samples.samples[start : start + batch]])
        answer = np.asarray(session.run([OUTPUT], {INPUT: block})[0])
        rows += [answer[index : index + 1] for index in range(len(block))]
    return rows
