from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.errors import InputError
from optimizer.load.estimators import (
    count_failures,
    mean_in_flight,
    samples_needed,
    spread,
    summarize,
    supported_percentiles,
)
from optimizer.load.loop import Report
from optimizer.load.request_log import RequestLog, load_request_log, merge_reports

MS = 1_000_000


def log_of(
    rows: list[tuple[float, float, float]], *, outcome: list[int] | None = None, duration_ms: float = 1000
) -> RequestLog:
    """Rows of (intended, sent, done) in ms."""
    table = np.array(rows, dtype=float).reshape(-1, 3) * MS
    count = len(rows)
    return RequestLog(
        table[:, 0].astype(np.int64),
        table[:, 1].astype(np.int64),
        table[:, 2].astype(np.int64),
        np.zeros(count, np.int32),
        np.array(outcome or [0] * count, np.int16),
        np.zeros(count, np.int16),
        ("OK", "INTERNAL: broken"),
        round(duration_ms * MS),
    )


ONE_ROW = np.array([1])


def test_closed_loop_counts_answers_inside_the_window() -> None:
    log = log_of([(-20, -20, -10), (-10, -10, 10), (10, 10, 30), (990, 990, 1010)])
    summary = summarize(log, np.array([3]), open_loop=False)
    assert (summary.requests, summary.inferences) == (2, 6)
    # Half of the second and of the last request lie inside the window.
    assert summary.throughput == pytest.approx(3 * (0.5 + 1 + 0.5))
    assert summary.latency_mean_us == 20_000
    assert summary.late_fraction == 0


@given(
    service_ms=st.floats(2, 60),
    slots=st.integers(1, 8),
    phase=st.floats(0, 1),
    clump=st.booleans(),
)
def test_closed_loop_throughput_has_no_error_from_where_the_window_falls(
    service_ms: float, slots: int, phase: float, clump: bool
) -> None:
    """Slots that are answered together, as by dynamic batching, or in turn."""
    rows = [
        (start, start, start + service_ms)
        for slot in range(slots)
        for start in np.arange(-2 + phase + (0 if clump else slot / slots), 2 + 300 / service_ms) * service_ms
    ]
    throughput = summarize(log_of(rows, duration_ms=200), ONE_ROW, open_loop=False).throughput
    assert throughput == pytest.approx(slots / (service_ms / 1e3), rel=1e-4)


def test_open_loop_throughput_is_what_was_answered_inside_the_window() -> None:
    """Of a server that does not keep up, what waits counts for nothing."""
    log = log_of([(10 * n, 10 * n, 20 * n + 20) for n in range(100)])
    assert summarize(log, ONE_ROW, open_loop=True).throughput == 49


def test_failed_requests_have_no_part_in_the_throughput() -> None:
    log = log_of([(-10, -10, 10), (10, 10, 30)], outcome=[0, 1])
    assert summarize(log, ONE_ROW, open_loop=False).throughput == pytest.approx(0.5)


def test_open_loop_times_what_was_due_in_the_window_from_when_it_was_due() -> None:
    """The request that is answered after the end is in the latency (and not in the throughput); the one that was due
    before the beginning is not."""
    log = log_of([(-10, -10, 10), (100, 150, 160), (900, 900, 1400)])
    summary = summarize(log, ONE_ROW, open_loop=True)
    assert summary.requests == 2
    assert summary.latency_mean_us == pytest.approx((60_000 + 500_000) / 2)
    assert summary.late_fraction == pytest.approx(1 / 2)


def test_requests_that_were_never_sent_count_as_late_and_as_failures() -> None:
    summary = summarize(log_of([(1, 1, 2)]), ONE_ROW, open_loop=True, unsent=3)
    assert summary.late_fraction == 3 / 4
    assert summary.failures == {"UNSENT: was due and never left": 3}


def test_failures_count_wherever_they_happen_and_never_as_answers() -> None:
    log = log_of([(-5, -5, -1), (1, 1, 2), (3, 3, 4), (999, 999, 1500)], outcome=[1, 1, 0, 1])
    summary = summarize(log, ONE_ROW, open_loop=False)
    assert summary.requests == 1
    assert summary.failures == {"INTERNAL: broken": 3}


def test_nothing_at_all() -> None:
    summary = summarize(log_of([]), ONE_ROW, open_loop=True)
    assert (summary.requests, summary.latency_mean_us, summary.percentiles_us, summary.spread) == (0, None, {}, None)
    assert count_failures(log_of([])) == {}


@pytest.mark.parametrize(("percentile", "needed"), [(50, 20), (90, 100), (95, 200), (99, 1000), (99.9, 10_000)])
def test_a_percentile_needs_ten_samples_beyond_it(percentile: float, needed: int) -> None:
    assert samples_needed(percentile) == needed
    name = f"p{percentile:g}"
    assert name not in supported_percentiles(np.arange(needed - 1))
    assert supported_percentiles(np.arange(1, needed + 1))[name] == needed * percentile / 100


@given(st.lists(st.floats(0, 1e6), min_size=20, max_size=300))
def test_percentiles_are_observed_values_with_enough_at_or_below(values: list[float]) -> None:
    array = np.array(values)
    for name, value in supported_percentiles(array).items():
        share = float(name[1:]) / 100
        assert value in array
        assert (array <= value).mean() >= share - 1e-12
        assert (array < value).mean() < share


def test_stability_is_over_thirds() -> None:
    steady = log_of([(10 * n, 10 * n, 10 * n + 5) for n in range(99)])
    assert summarize(steady, ONE_ROW, open_loop=False).spread == pytest.approx(0, abs=0.04)
    slowing = log_of([(10 * n, 10 * n, 10 * n + (5 if n < 66 else 9)) for n in range(99)])
    assert summarize(slowing, ONE_ROW, open_loop=False).spread == pytest.approx(9 / (19 / 3) - 1, abs=0.05)
    silent = log_of([(5 * n, 5 * n, 5 * n + 5) for n in range(60)])
    assert spread(silent, ONE_ROW, silent.ok, open_loop=False) == np.inf, "an empty third is not stable"


def report_of(sent: list[int], outcome: list[int], failures: list[str]) -> Report:
    report = Report(failures=failures)
    report.intended.extend(sent)
    report.sent.extend(sent)
    report.done.extend(value + 1 for value in sent)
    report.sample.extend(range(len(sent)))
    report.outcome.extend(outcome)
    return report


def test_reports_are_merged_in_order_of_sending_with_one_table_of_outcomes(tmp_path: Path) -> None:
    first = report_of([100, 300], [1, 0], ["INTERNAL: a"])
    second = report_of([200, 400, 500], [1, 2, 0], ["UNAVAILABLE: b", "INTERNAL: a"])
    log = merge_reports([first, second], window_start_ns=100, duration_ns=1000)
    assert log.sent_ns.tolist() == [0, 100, 200, 300, 400]
    assert log.worker.tolist() == [0, 1, 0, 1, 1]
    assert [log.outcomes[code] for code in log.outcome] == ["INTERNAL: a", "UNAVAILABLE: b", "OK", "INTERNAL: a", "OK"]
    assert count_failures(log) == {"INTERNAL: a": 2, "UNAVAILABLE: b": 1}
    log.save(tmp_path / "log.npz")
    read = load_request_log(tmp_path / "log.npz")
    assert read.outcomes == log.outcomes
    assert read.duration_ns == 1000
    assert (read.done_ns == log.done_ns).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.npz"]


def test_no_request_log(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="not a request log"):
        load_request_log(tmp_path / "x.npz")


def test_requests_in_flight_are_counted_by_their_own_times() -> None:
    """One before the window, one inside, one that outlasts it: 1 s + 0.5 s + 0.25 s of 2 s."""
    times = {"sent_ns": [-5e8, 5e8, 1.75e9], "done_ns": [1e9, 1e9, 5e9]}
    columns = {name: np.array(values, dtype=np.int64) for name, values in times.items()}
    zeros = np.zeros(3, dtype=np.int64)
    log = RequestLog(
        intended_ns=columns["sent_ns"], sample=zeros, outcome=zeros, worker=zeros, outcomes=("OK",),
        duration_ns=2_000_000_000, **columns,
    )  # fmt: skip
    assert mean_in_flight(log) == pytest.approx((1.0 + 0.5 + 0.25) / 2.0)
