from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.errors import InputError
from optimizer.load.schedule import arrival_times, read_trace, sample_order
from optimizer.records.measurement import Arrival, Workload


def test_constant_arrivals() -> None:
    times = arrival_times(Workload(Arrival.CONSTANT, rate_per_s=10, duration_s=0.5), lead_s=0.2)
    assert times.tolist() == [(n * 100 - 200) * 1_000_000 for n in range(7)]


def test_poisson_arrivals_have_exponential_gaps() -> None:
    times = arrival_times(Workload(Arrival.POISSON, rate_per_s=1000, duration_s=20, seed=1), lead_s=0)
    gaps = np.diff(times) / 1e9
    # 20,000 gaps: the mean is known to 0.7%, the standard deviation equals it; six standard errors are allowed.
    assert gaps.mean() == pytest.approx(1e-3, rel=0.043)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.06)
    assert (gaps >= 0).all()
    assert times[0] >= 0
    assert times[-1] < 20e9


@given(st.floats(0.1, 500), st.floats(0.1, 5), st.integers(0, 2**31), st.floats(0, 1))
def test_poisson_arrivals_fill_the_window_and_repeat(rate: float, duration: float, seed: int, lead: float) -> None:
    workload = Workload(Arrival.POISSON, rate_per_s=rate, duration_s=duration, seed=seed)
    times = arrival_times(workload, lead_s=lead)
    assert (times == arrival_times(workload, lead_s=lead)).all()
    assert ((times >= -lead * 1e9 - 1) & (times <= duration * 1e9 + 1)).all()


@given(st.integers(1, 60), st.integers(0, 1000), st.integers(1, 200))
def test_every_sample_comes_once_a_round(samples: int, seed: int, length: int) -> None:
    order = sample_order(samples, seed, length=length)
    assert len(order) == length
    for start in range(0, length - samples + 1, samples):
        assert sorted(order[start : start + samples]) == list(range(samples))
    assert sorted(sample_order(samples, seed)) == list(range(samples))


def test_weights() -> None:
    order = sample_order(3, 0, length=4000, weights=[3, 0, 1])
    counts = np.bincount(order, minlength=3)
    assert counts[1] == 0
    assert counts[0] / 4000 == pytest.approx(0.75, abs=0.05)
    for bad in ([1, 1], [0, 0, 0], [1, -1, 1], [1, float("nan"), 1]):
        with pytest.raises(InputError, match="3 numbers of at least 0"):
            sample_order(3, 0, weights=bad)


def test_traces(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text('{"at_s": 5.5, "sample": "b"}\n\n{"at_s": 5.25, "sample": "a"}\n')
    times, samples = read_trace(path, ["a", "b"])
    assert times.tolist() == [0, 250_000_000]
    assert samples.tolist() == [0, 1]
    path.write_text('[{"at_s": 0}, {"at_s": 1}, {"at_s": 2}]')
    assert read_trace(path, ["a", "b"])[1].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("{", "not JSON"),
        ('{"at_s": "now"}', "trace:1: at_s: needs a number of seconds"),
        ('{"at_s": 1}\n{"at": 1}', "trace:2: at_s: needs a number"),
        ('{"at_s": NaN}', "needs a number"),
        ('{"at_s": true}', "needs a number"),
        ("[7]", "entry 1: at_s: needs a number"),
        ('{"at_s": 1, "sample": "c"}', "trace:1: sample: no sample has the id 'c'"),
    ],
)
def test_broken_traces_are_named(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_trace(path, ["a", "b"])
    assert problem in str(caught.value)
    assert "remedy" in str(caught.value)
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path / "missing", ["a"])
