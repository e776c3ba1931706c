"""A trace over both sets of a study: what is sent for a sample that is not in the set at hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from optimizer.errors import InputError
from optimizer.load.schedule import read_trace
from optimizer.load.stand_ins import with_stand_ins
from optimizer.records.samples import Sample, SampleSet


def sample_set(name: str, **rows: int) -> SampleSet:
    samples = tuple(Sample(id, {"IN": np.zeros((batch, 4), np.float32)}) for id, batch in rows.items())
    return SampleSet(name, samples, "test")


def write(path: Path, *named: str | None) -> Path:
    rows = [{"at_s": 0.5 * number, "sample": identifier} for number, identifier in enumerate(named)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def ids_sent(trace: Path, samples: SampleSet) -> list[str]:
    ids = [sample.id for sample in samples.samples]
    return [ids[index] for index in read_trace(trace, ids, samples.stand_ins)[1]]


def test_samples_of_the_other_set_are_stood_in_for_in_turn(tmp_path: Path) -> None:
    trace = write(tmp_path / "trace", "h1", "t2", "h3", "h1", "h2", "t1")
    tune, held_out = with_stand_ins(trace, sample_set("tune", t1=1, t2=1), sample_set("held_out", h1=1, h2=1, h3=1))
    assert ids_sent(trace, tune) == ["t1", "t2", "t2", "t1", "t1", "t1"]
    assert ids_sent(trace, held_out) == ["h1", "h1", "h3", "h1", "h2", "h2"]
    times = [0, 500_000_000, 1_000_000_000, 1_500_000_000, 2_000_000_000, 2_500_000_000]
    assert read_trace(trace, ["t1", "t2"], tune.stand_ins)[0].tolist() == times


def test_a_stand_in_has_the_same_shapes(tmp_path: Path) -> None:
    trace = write(tmp_path / "trace", "h1", "h2", "h3", "h4")
    tune, held_out = with_stand_ins(
        trace, sample_set("tune", big=8, t1=1, t2=1), sample_set("held_out", h1=1, h2=8, h3=1, h4=8)
    )
    assert ids_sent(trace, tune) == ["t1", "big", "t2", "big"]
    assert held_out.stand_ins == {}


def test_without_a_sample_of_the_same_shapes_the_trace_is_refused(tmp_path: Path) -> None:
    trace = write(tmp_path / "trace", "t1", "wide")
    with pytest.raises(InputError, match=r"trace: sample: names 'wide' of the held_out set, and the tune set has no "
                       r"sample of its shapes, IN \[8, 4\], [\s\S]*--held-out"):  # fmt: skip
        with_stand_ins(trace, sample_set("tune", t1=1), sample_set("held_out", h1=1, wide=8))


def test_a_sample_of_neither_set_is_refused(tmp_path: Path) -> None:
    trace = write(tmp_path / "trace", "t1", "x")
    with pytest.raises(InputError, match=r"trace:2: sample: no sample has the id 'x'\n.*t1, h1"):
        with_stand_ins(trace, sample_set("tune", t1=1), sample_set("held_out", h1=1))


def test_an_id_that_both_sets_have_is_each_sets_own(tmp_path: Path) -> None:
    trace = write(tmp_path / "trace", "a", None)
    tune, held_out = with_stand_ins(trace, sample_set("tune", a=1, b=1), sample_set("held_out", c=1, a=1))
    assert tune.stand_ins == held_out.stand_ins == {}
    assert ids_sent(trace, held_out) == ["a", "a"]


def test_an_id_in_both_sets_is_each_sets_own_where_the_shapes_agree(tmp_path: Path) -> None:
    trace = write(tmp_path / "trace", "0", "1")
    tune, held_out = with_stand_ins(trace, sample_set("tune", **{"0": 1}), sample_set("held_out", **{"0": 1, "1": 1}))
    assert ids_sent(trace, tune) == ["0", "0"]
    assert ids_sent(trace, held_out) == ["0", "1"]
    with pytest.raises(InputError, match=r"trace: sample: names '0', which .* of different shapes\n.*different ids"):
        with_stand_ins(trace, sample_set("tune", **{"0": 1}), sample_set("held_out", **{"0": 2, "1": 1}))
