"""``tune`` and ``held_out`` from one set of samples: stratified by tag, disjoint by content.

Imports records and errors only.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

from optimizer.errors import InputError
from optimizer.records.samples import Sample, SampleSet


def split(samples: SampleSet, held_out_fraction: float = 0.5, seed: int = 0) -> tuple[SampleSet, SampleSet]:
    """(tune, held_out). Samples with equal inputs stay on one side; every combination of tags is divided as nearly in
    proportion as whole samples allow. The same arguments give the same split.

    Raises :class:`InputError` where one side would be empty.
    """
    if not 0.0 < held_out_fraction < 1.0:
        raise InputError(
            f"expected a fraction between 0 and 1, got {held_out_fraction:g}",
            field="held_out_fraction",
            remedy="for instance --held-out-fraction 0.3",
        )
    strata: dict[tuple[str, ...], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    # A duplicate belongs to the stratum of its first occurrence, whatever its own tags say.
    stratum_of: dict[str, tuple[str, ...]] = {}
    for index, sample in enumerate(samples.samples):
        content = sample.content_hash
        stratum = stratum_of.setdefault(content, tuple(sorted(sample.tags)))
        strata[stratum][content].append(index)
    if len(stratum_of) < 2:
        raise InputError(
            f"{len(samples)} samples hold {len(stratum_of)} distinct input(s): the two sets would not be disjoint",
            where=samples.origin,
            remedy="give at least two samples with different inputs",
        )
    held_out: set[int] = set()
    # The part of a sample that a small stratum is owed is carried to the next one, so that the total comes out right.
    owed = 0.0
    chosen = 0
    for stratum in sorted(strata):
        contents = sorted(strata[stratum])
        random.Random(f"{seed}\0{stratum}").shuffle(contents)
        owed += len(contents) * held_out_fraction
        count = max(0, min(len(contents), round(owed) - chosen))
        chosen += count
        for content in contents[:count]:
            held_out.update(strata[stratum][content])
    if not held_out or len(held_out) == len(samples):
        contents = sorted(stratum_of)
        picked = random.Random(seed).choice(contents)
        group = {i for contents_of in strata.values() for i in contents_of.get(picked, ())}
        held_out = group if not held_out else held_out - group
    return (
        _part(samples, "tune", [s for i, s in enumerate(samples.samples) if i not in held_out]),
        _part(samples, "held_out", [s for i, s in enumerate(samples.samples) if i in held_out]),
    )


def _part(samples: SampleSet, name: str, members: list[Sample]) -> SampleSet:
    return replace(samples, name=name, samples=tuple(members))


def check_disjoint(*sets: SampleSet) -> None:
    """Raises :class:`InputError` naming two samples of different sets whose inputs are equal."""
    seen: dict[str, tuple[str, str]] = {}
    for samples in sets:
        for sample in samples.samples:
            name, other = seen.setdefault(sample.content_hash, (samples.name, sample.id))
            if name != samples.name:
                raise InputError(
                    f"sample {sample.id} of set {samples.name!r} has the same inputs as sample {other} of set {name!r}",
                    where=samples.origin,
                    remedy="calibration, tuning and held-out samples must differ: remove one of the two",
                )
