"""The load generator, its processes included, against a small gRPC server of ours."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from optimizer.errors import EnvironmentFailure, InputError
from optimizer.load.generator import LoadGenerator
from optimizer.load.honesty import code_of
from optimizer.load.pairs import pair_order, run_pair
from optimizer.records.measurement import Arrival, Workload
from optimizer.records.samples import Sample
from optimizer.triton.client import parse_response

SAMPLES = [Sample(f"s{number}", {"IN": np.full((1, 4), number, np.float32)}) for number in range(40)]


@pytest.fixture
def generator(fake_server: Any, tmp_path: Path) -> Iterator[LoadGenerator]:
    with LoadGenerator(fake_server.url, processes=2, directory=tmp_path) as made:
        made.prepare(SAMPLES, {"IN": "FP32"})
        yield made


def test_closed_loop_counts_what_the_server_saw(generator: LoadGenerator, fake_server: Any) -> None:
    window = generator.run(
        "slow", Workload(concurrency=4, duration_s=0.5), candidate_id="c", keep_responses=7, warmup_s=0.1
    )
    log = window.records()
    assert len(log) == sum(fake_server.received.values())
    assert log.ok.all()
    inside = (log.done_ns >= 0) & (log.done_ns < 500_000_000)
    assert window.measurement.requests == inside.sum() > 0
    # Four requests are under way at each end of the window.
    assert window.measurement.throughput == pytest.approx(inside.sum() / 0.5, abs=4 / 0.5)
    assert (log.sent_ns <= log.done_ns).all()
    assert (log.intended_ns == log.sent_ns).all()
    # Never more in flight than slots: at every sending, the answers before it leave at most three open.
    open_then = [int(((log.sent_ns <= sent) & (log.done_ns > sent)).sum()) for sent in log.sent_ns]
    assert max(open_then) <= 4
    assert fake_server.in_flight_together == 1
    assert len(window.responses) == 7
    for sample, body in window.responses:
        assert (parse_response(body)[0]["OUT"] == sample).all()
    assert window.measurement.failures == {}
    assert window.measurement.server is None, "the fake has no statistics: unknown, not zero"
    assert window.measurement.resources.client_cpu is not None
    assert window.measurement.resources.gpu_power_w is None


def test_closed_loop_keeps_its_level_until_what_was_out_at_the_end_is_answered(
    generator: LoadGenerator, fake_server: Any
) -> None:
    log = generator.run("slow", Workload(concurrency=8, duration_s=0.3), candidate_id="c", warmup_s=0.1).records()
    end = 300_000_000
    assert log.ok.all()
    for worker in (0, 1):
        own = log.worker == worker
        out = own & (log.sent_ns < end) & (log.done_ns >= end)
        after = own & (log.sent_ns >= end)
        # Whoever is answered in the meantime is followed by another, and nobody after that (but for answers that were
        # read together with the last).
        assert (log.sent_ns[after] <= log.done_ns[out].max() + 5_000_000).all()
        answered_before_the_last = log.done_ns[out] < log.done_ns[out].max()
        assert after.sum() >= answered_before_the_last.sum()


def test_rows_count_only_where_the_model_batches(fake_server: Any, tmp_path: Path) -> None:
    three = [Sample("s", {"IN": np.zeros((3, 4), np.float32)})]
    workload = Workload(concurrency=1, duration_s=0.2)
    with LoadGenerator(fake_server.url, processes=1, directory=tmp_path) as made:
        for batched, rows in ((True, 3), (False, 1)):
            made.prepare(three, {"IN": "FP32"}, batched=batched)
            measured = made.run("slow", workload, candidate_id="c", warmup_s=0.0).measurement
            assert measured.inferences == rows * measured.requests > 0


def test_open_loop_sends_each_due_request_once(generator: LoadGenerator, fake_server: Any) -> None:
    workload = Workload(Arrival.POISSON, rate_per_s=200, duration_s=0.5, seed=3)
    first = generator.run("echo", workload, candidate_id="a", warmup_s=0.1).records()
    assert len(first) == sum(fake_server.received.values())
    second = generator.run("echo", workload, candidate_id="b", warmup_s=0.1).records()
    assert (np.sort(first.intended_ns) == np.sort(second.intended_ns)).all(), "the same seed is the same load"
    assert (first.sent_ns >= first.intended_ns).all()
    other = Workload(Arrival.POISSON, rate_per_s=200, duration_s=0.5, seed=4)
    third = generator.run("echo", other, candidate_id="c", warmup_s=0.1).records()
    assert not np.array_equal(np.sort(first.intended_ns), np.sort(third.intended_ns))


def test_a_trace_is_replayed(generator: LoadGenerator, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f'{{"at_s": {10 + 0.02 * n}, "sample": "s{39 - n}"}}\n' for n in range(10)))
    log = generator.run("echo", Workload(Arrival.TRACE, trace=str(trace), duration_s=0.3), candidate_id="t").records()
    order = np.argsort(log.intended_ns)
    assert log.intended_ns[order].tolist() == [20_000_000 * n for n in range(10)]
    assert log.sample[order].tolist() == [39 - n for n in range(10)]


def test_a_trace_that_is_longer_than_the_window_is_cut_and_said_to_be(generator: LoadGenerator, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f'{{"at_s": {0.05 * n}}}\n' for n in range(40)))
    window = generator.run(
        "echo", Workload(Arrival.TRACE, trace=str(trace), duration_s=0.2), candidate_id="t", drain_s=0.3
    )
    assert np.sort(window.records().intended_ns).tolist() == [50_000_000 * n for n in range(4)]
    assert window.measurement.failures == {}
    assert any(text.startswith("trace_cut: 36 requests") for text in window.measurement.warnings)


def test_samples_of_another_set_are_stood_in_for(generator: LoadGenerator, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f'{{"at_s": {0.02 * n}, "sample": "{name}"}}\n' for n, name in enumerate(("s7", "other"))))
    workload = Workload(Arrival.TRACE, trace=str(trace), duration_s=0.2)
    with pytest.raises(InputError, match="no sample has the id 'other'"):
        generator.run("echo", workload, candidate_id="t")
    generator.prepare(SAMPLES, {"IN": "FP32"}, stand_ins={"other": "s3"})
    log = generator.run("echo", workload, candidate_id="t").records()
    assert log.sample[np.argsort(log.intended_ns)].tolist() == [7, 3]


def test_weights_choose_the_samples(generator: LoadGenerator, fake_server: Any) -> None:
    weights = [0.0] * 40
    weights[5] = weights[6] = 1.0
    generator.run("echo", Workload(concurrency=2, duration_s=0.2), candidate_id="w", sample_weights=weights)
    assert set(fake_server.received) == {SAMPLES[5].inputs["IN"].tobytes(), SAMPLES[6].inputs["IN"].tobytes()}
    with pytest.raises(InputError, match="40 numbers"):
        generator.run("echo", Workload(), candidate_id="w", sample_weights=[1.0])


def test_failures_are_typed_and_not_throughput(generator: LoadGenerator) -> None:
    window = generator.run("fail", Workload(concurrency=4, duration_s=5), candidate_id="f")
    reasons = {reason for reason in window.measurement.failures if not reason.startswith("ABORTED: ")}
    assert reasons == {"INVALID_ARGUMENT: näh: not today"}
    assert window.measurement.throughput == 0
    assert window.measurement.percentiles_us == {}
    assert window.measurement.latency_mean_us is None
    assert not window.measurement.usable
    assert code_of(window.aborted) == "nothing_succeeds"
    assert window.measurement.duration_s == 5
    # The processes are ready for the next model.
    assert generator.run("echo", Workload(concurrency=2, duration_s=0.2), candidate_id="e").measurement.requests > 0


def test_answers_that_never_come_are_failures(generator: LoadGenerator) -> None:
    window = generator.run("never", Workload(concurrency=3, duration_s=0.2), candidate_id="n", drain_s=0.3)
    assert window.measurement.failures == {"DEADLINE_EXCEEDED: no answer within 0.3 s after the window": 3}
    assert not window.measurement.usable
    assert code_of(window.measurement.warnings[0]) == "no_answers"
    log = generator.run("echo", Workload(concurrency=3, duration_s=0.2), candidate_id="e").records()
    assert log.ok.all(), "nothing of the last window reaches this one"


@pytest.mark.timeout(45)
def test_a_server_that_goes_is_a_typed_failure(generator: LoadGenerator, fake_server: Any) -> None:
    fake_server.stop()
    # Shorter than the window: it must not wait for the end of one that is lost.
    window = generator.run("echo", Workload(concurrency=3, duration_s=60), candidate_id="g")
    assert code_of(window.aborted) == "server_gone"
    assert not window.measurement.usable


def test_a_dead_load_process_is_said(generator: LoadGenerator) -> None:
    os.kill(generator.pids[1], signal.SIGKILL)
    with pytest.raises(EnvironmentFailure, match="load process ended unexpectedly with status 137"):
        generator.run("echo", Workload(concurrency=2, duration_s=0.2), candidate_id="d")


def test_closing_leaves_no_process(fake_server: Any, tmp_path: Path) -> None:
    with LoadGenerator(fake_server.url, processes=2, directory=tmp_path) as generator:
        generator.prepare(SAMPLES, {"IN": "FP32"})
        pids = generator.pids
        assert len(pids) == 2
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    generator.close()


def test_pairs_alternate_and_share_the_load(generator: LoadGenerator) -> None:
    assert [pair_order(index) for index in range(4)] == ["AB", "BA", "AB", "BA"]
    workload = Workload(Arrival.CONSTANT, rate_per_s=100, duration_s=0.2)
    for index in (0, 1):
        pair = run_pair(
            generator, "slow", "echo", workload, pair_order(index), reference_id="r", candidate_id="c",
            reference_warmup_s=0.0, candidate_warmup_s=0.0, keep_responses=2,
        )  # fmt: skip
        started = (pair.reference.measurement.started_at, pair.candidate.measurement.started_at)
        assert (started[0] < started[1]) == (pair.order == "AB")
        assert pair.reference.measurement.candidate_id == "r"
        assert len(pair.candidate.responses) == 2
        reference, candidate = pair.reference.records(), pair.candidate.records()
        assert (np.sort(reference.intended_ns) == np.sort(candidate.intended_ns)).all()
        assert (reference.done_ns - reference.sent_ns).min() >= 20_000_000, "the reference is the slow one"


def test_what_cannot_be_run_is_refused(generator: LoadGenerator, fake_server: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="concurrency of at least 1"):
        generator.run("echo", Workload(concurrency=0), candidate_id="x")
    with pytest.raises(InputError, match="rate above 0"):
        generator.run("echo", Workload(Arrival.POISSON), candidate_id="x")
    with pytest.raises(InputError, match="needs a file"):
        generator.run("echo", Workload(Arrival.TRACE), candidate_id="x")
    with pytest.raises(InputError, match="no samples"):
        generator.prepare([], {})
    with pytest.raises(InputError, match="needs an address"):
        LoadGenerator(fake_server.url, directory=tmp_path, transport="http")
    with (
        LoadGenerator(fake_server.url, processes=1, directory=tmp_path / "other") as unprepared,
        pytest.raises(InputError, match="call prepare"),
    ):
        unprepared.run("echo", Workload(), candidate_id="x")
