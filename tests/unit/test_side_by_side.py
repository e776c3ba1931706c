"""A window of mixed load, by values."""

import numpy as np
import pytest

from optimizer.load.request_log import RequestLog
from optimizer.records.measurement import Arrival, Measurement, Workload
from optimizer.side_by_side import by_model

MS = 1_000_000
OWNERS = ("a", "a", "b")


def log_of(*rows: tuple[int, int, int], failed: tuple[int, ...] = ()) -> RequestLog:
    """Rows of (sent ms, done ms, sample) in a window of a second."""
    sent, done, sample = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    outcome = np.array([number in failed for number in range(len(rows))], np.int16)
    return RequestLog(
        sent * MS, sent * MS, done * MS, sample, outcome, np.zeros(len(rows), np.int16), ("OK", "broken"), 1000 * MS
    )


def measured(arrival: Arrival) -> Measurement:
    return Measurement("mixed", Workload(arrival), 0.0, 1.0, 0, 0, {}, 0.0, None, {}, warnings=("code: text",))


def test_requests_count_with_the_part_of_their_time_that_lies_in_a_closed_loops_window() -> None:
    log = log_of((-100, 100, 0), (100, 600, 1), (200, 500, 2), (600, 1400, 2))
    assert by_model(log, OWNERS, measured(Arrival.CLOSED_LOOP)).requests_per_s == pytest.approx(0.5 + 1 + 1 + 0.5)
    assert by_model(log, OWNERS, measured(Arrival.POISSON)).requests_per_s == 3


def test_latencies_and_failures_are_each_models_own() -> None:
    log = log_of((-100, 100, 0), (100, 600, 1), (200, 500, 2), (600, 1400, 2), (300, 400, 0), failed=(4,))
    found = by_model(log, OWNERS, measured(Arrival.CLOSED_LOOP))
    assert found.latency_us == {"a": 350_000, "b": 300_000}
    assert by_model(log, OWNERS, measured(Arrival.POISSON)).latency_us == {"a": 500_000, "b": 550_000}
    assert found.failures == {"a": 1}
    assert (found.usable, found.warnings) == (True, ("code: text",))
