"""A trace names samples, and a study sends two sets, of which the search must not see the second. So while one set is
sent, a sample of the other is stood in for by one of the same shapes: the request weighs the same, at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from optimizer.errors import InputError
from optimizer.load.schedule import read_trace, samples_named
from optimizer.records.samples import Sample, SampleSet

Shapes: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]


def with_stand_ins(trace: Path, tune: SampleSet, held_out: SampleSet) -> tuple[SampleSet, SampleSet]:
    """Both sets with :attr:`SampleSet.stand_ins` for what ``trace`` names of the other.

    Raises :class:`InputError` for a trace that is broken or names a sample of neither set, where one set has no sample
    of the shapes of a sample that is named, and where an id is that of two samples of different shapes.
    """
    read_trace(trace, [sample.id for samples in (tune, held_out) for sample in samples.samples])
    named = samples_named(trace)
    return _standing_in(trace, named, tune, held_out), _standing_in(trace, named, held_out, tune)


def _standing_in(trace: Path, named: Sequence[str], own: SampleSet, other: SampleSet) -> SampleSet:
    """In turn: the samples of the same shapes, in the set's order, for those named, in the order of their first
    appearance in the file."""
    own_shapes = {sample.id: _shapes(sample) for sample in own.samples}
    other_shapes = {sample.id: _shapes(sample) for sample in other.samples}
    alike: dict[Shapes, list[str]] = {}
    for sample in own.samples:
        alike.setdefault(_shapes(sample), []).append(sample.id)
    taken: Counter[Shapes] = Counter()
    stand_ins: dict[str, str] = {}
    for identifier in named:
        shapes = other_shapes.get(identifier, own_shapes.get(identifier, ()))
        if own_shapes.get(identifier) == shapes:
            continue
        if identifier in own_shapes:
            raise InputError(
                f"names {identifier!r}, which is a sample of {own.name} and one of {other.name}, of different shapes",
                where=trace,
                field="sample",
                remedy="give the samples of the two files different ids",
            )
        if shapes not in alike:
            shown = ", ".join(f"{name} {list(shape)}" for name, shape in shapes)
            raise InputError(
                f"names {identifier!r} of the {other.name} set, and the {own.name} set has no sample of its shapes, "
                f"{shown}, to send in its place",
                where=trace,
                field="sample",
                remedy="give both sets samples of these shapes (--held-out names a file for the second one)",
            )
        stand_ins[identifier] = alike[shapes][taken[shapes] % len(alike[shapes])]
        taken[shapes] += 1
    return replace(own, stand_ins=stand_ins)


def _shapes(sample: Sample) -> Shapes:
    return tuple(sorted((name, tuple(array.shape)) for name, array in sample.inputs.items()))
