"""The load generator on a real Triton server, with models whose service time is known.

Service times are taken from the server's own statistics, so that a slow machine moves prediction and measurement alike.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from optimizer.load.generator import LoadGenerator, Window
from optimizer.load.honesty import code_of
from optimizer.load.shared_memory import NAME, SHARED_MEMORY
from optimizer.load.warmup import find_warmup
from optimizer.records.deployment import Deployment
from optimizer.records.measurement import Arrival, Workload
from optimizer.records.samples import Sample
from optimizer.testing.models import DATATYPES, ToyModel, null_model, sleep_model, stall_model
from optimizer.triton.client import TritonClient, parse_response

pytestmark = pytest.mark.system

SAMPLES = [Sample(f"s{number}", {"INPUT0": np.full((1, 4), number, np.float32)}) for number in range(32)]


def put(sandbox: Any, model: ToyModel, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    source = directory / f"{model.name}.py"
    source.write_text(model.source)
    failure = sandbox.load(Deployment(model.name, model.config_text, {"1/model.py": source}))
    assert failure is None, failure


@pytest.fixture
def serve(embedded_sandbox: Any, tmp_path: Path) -> Iterator[Callable[[ToyModel], str]]:
    names: list[str] = []

    def load(model: ToyModel) -> str:
        put(embedded_sandbox, model, tmp_path / "models")
        names.append(model.name)
        return model.name

    yield load
    for name in names:
        embedded_sandbox.unload(name)


@pytest.fixture
def generator(embedded_sandbox: Any, tmp_path: Path) -> Iterator[LoadGenerator]:
    info = embedded_sandbox.info
    with LoadGenerator(
        info.grpc_url,
        processes=1,
        directory=tmp_path / "load",
        metrics_url=info.metrics_url,
        memory=embedded_sandbox.memory_bytes,
    ) as made:
        made.prepare(SAMPLES, DATATYPES)
        yield made


def service_s(window: Window) -> float:
    server = window.measurement.server
    assert server is not None
    total_us = server.compute_input_us + server.compute_infer_us + server.compute_output_us
    return total_us / 1e6 / server.execution_count


def test_one_server_follows_queueing_theory(serve: Callable[[ToyModel], str], generator: LoadGenerator) -> None:
    """Closed loop of c on one server: throughput 1/s, latency c·s. Open loop, Poisson arrivals, constant service
    (Pollaczek-Khinchine for M/D/1): mean time in system s + ρ·s / (2·(1 − ρ))."""
    model = serve(sleep_model("load_sleep", service_s=0.01))
    assert find_warmup(generator, model, Workload(concurrency=2), candidate_id="w", limit_s=4).ramp_s >= 0.1
    for concurrency in (1, 4):
        window = generator.run(model, Workload(concurrency=concurrency, duration_s=2), candidate_id="closed")
        found = window.measurement
        assert found.latency_mean_us is not None
        assert found.server is not None
        assert found.throughput * found.latency_mean_us / 1e6 == pytest.approx(concurrency, rel=0.06)
        if concurrency == 4:
            assert found.throughput == pytest.approx(1 / service_s(window), rel=0.15)
            assert found.latency_mean_us / 1e6 == pytest.approx(4 * service_s(window), rel=0.2)
            assert found.resources.pending_mean is not None
            assert found.resources.pending_mean >= 1, "three of four wait, less those on their way"
        assert abs(found.server.inference_count - found.requests) <= 2 * concurrency + 2
        assert found.resources.server_rss_bytes is not None
        assert found.resources.server_rss_bytes > 10_000_000
    poisson = generator.run(model, Workload(Arrival.POISSON, rate_per_s=60, duration_s=5, seed=1), candidate_id="open")
    service = service_s(poisson)
    load = 60 * service
    predicted_us = (service + load * service / (2 * (1 - load))) * 1e6
    mean_us = poisson.measurement.latency_mean_us
    assert mean_us is not None
    # 300 arrivals at a load of about 0.65: the standard error of the mean is some 10%, on top comes the transport.
    assert 0.7 * predicted_us < mean_us < 1.6 * predicted_us
    steady = generator.run(model, Workload(Arrival.CONSTANT, rate_per_s=60, duration_s=2), candidate_id="constant")
    assert steady.measurement.latency_mean_us is not None
    assert steady.measurement.latency_mean_us < mean_us, "evenly spaced requests do not queue"


def test_batches_are_seen_from_both_sides(serve: Callable[[ToyModel], str], generator: LoadGenerator) -> None:
    """10 ms plus 0.5 ms a row, batched while the last batch runs: eight in flight share what one alone pays."""
    model = serve(
        sleep_model("load_batching", service_s=0.01, per_row_s=0.0005, dynamic_batching=True, queue_delay_us=2000)
    )
    alone = generator.run(model, Workload(concurrency=1, duration_s=1), candidate_id="one").measurement
    together = generator.run(model, Workload(concurrency=8, duration_s=1), candidate_id="eight").measurement
    assert alone.server is not None
    assert set(alone.server.batch_executions) == {1}
    assert together.server is not None
    assert together.server.mean_batch is not None
    assert together.server.mean_batch > 2
    assert together.throughput > 2 * alone.throughput


def test_a_stall_shows_in_the_open_loop_only(serve: Callable[[ToyModel], str], generator: LoadGenerator) -> None:
    """200 ms of stall a second: a fifth of the arrivals meet it, but only one of a single client's requests does."""
    model = serve(stall_model("load_stall", service_s=0.001, stall_s=0.2, every_s=1.0))
    open_loop = generator.run(model, Workload(Arrival.CONSTANT, rate_per_s=300, duration_s=4), candidate_id="open")
    naive = generator.run(model, Workload(concurrency=1, duration_s=4), candidate_id="naive")
    assert open_loop.measurement.percentiles_us["p99"] > 100_000
    assert naive.measurement.requests >= 1000
    assert naive.measurement.percentiles_us["p99"] < 100_000


def test_a_saturated_client_is_not_used(serve: Callable[[ToyModel], str], generator: LoadGenerator) -> None:
    model = serve(null_model("load_null", instances=2))
    window = generator.run(
        model, Workload(Arrival.CONSTANT, rate_per_s=60_000, duration_s=0.3), candidate_id="flood", drain_s=1.0,
        warmup_s=0.0,
    )  # fmt: skip
    assert not window.measurement.usable
    assert "late_sends" in [code_of(warning) for warning in window.measurement.warnings]


@pytest.mark.parametrize("kind", ["grpc", "http", "system"])
def test_every_transport_brings_the_right_answers(
    serve: Callable[[ToyModel], str], embedded_sandbox: Any, tmp_path: Path, kind: str
) -> None:
    model = serve(null_model("load_echo"))
    info = embedded_sandbox.info
    more: dict[str, Any] = {"transport": "http", "http_url": info.http_url} if kind == "http" else {}
    if kind == "system":
        more = {"shared_memory": "system"}
    with LoadGenerator(info.grpc_url, processes=2, directory=tmp_path, **more) as generator:
        generator.prepare(SAMPLES, DATATYPES, output_bytes={"OUTPUT0": 16})
        for workload in (
            Workload(concurrency=5, duration_s=0.5),
            Workload(Arrival.POISSON, rate_per_s=100, duration_s=0.6, seed=2),
        ):
            window = generator.run(model, workload, candidate_id=kind, keep_responses=20)
            log = window.records()
            assert log.ok.all()
            # Each of the two processes keeps ten, or all that it sent where the machine is too busy for ten.
            assert len(window.responses) == sum(min(10, int((log.worker == worker).sum())) for worker in range(2))
            for sample, body in window.responses:
                assert parse_response(body)[0]["OUTPUT0"].tolist() == SAMPLES[sample].inputs["INPUT0"].tolist()
    with TritonClient(info.grpc_url) as client:
        assert client.shared_memory_regions() == []
    assert not list(SHARED_MEMORY.glob(f"{NAME}_{os.getpid()}_*"))


OWNER = """
import sys, pathlib, numpy
from optimizer.load.generator import LoadGenerator
from optimizer.records.measurement import Workload
from optimizer.records.samples import Sample
url, directory = sys.argv[1], pathlib.Path(sys.argv[2])
with LoadGenerator(url, processes=2, directory=directory, shared_memory="system") as generator:
    generator.prepare([Sample("a", {"INPUT0": numpy.zeros((1, 4), "f4")})], {"INPUT0": "FP32"},
                      output_bytes={"OUTPUT0": 16})
    print(*generator.pids, flush=True)
    generator.run("load_killed", Workload(concurrency=4, duration_s=60), candidate_id="c")
"""


def test_nothing_survives_an_owner_that_is_killed(
    serve: Callable[[ToyModel], str], embedded_sandbox: Any, tmp_path: Path
) -> None:
    serve(sleep_model("load_killed", service_s=0.005))
    url = embedded_sandbox.info.grpc_url
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, url, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert owner.stdout is not None
    pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 2
    with TritonClient(url) as client:
        # One region of inputs and two of slots: the load is on.
        wait_until(lambda: len(client.shared_memory_regions()) == 3)
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
        assert client.shared_memory_regions() == []
    wait_until(lambda: not list(SHARED_MEMORY.glob(f"{NAME}_{owner.pid}_*")))


def wait_until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def kill_under_load(directory: Path, seed: int) -> None:
    from optimizer.sandbox._base import SandboxOptions
    from optimizer.sandbox.launchers import launcher

    delay_s = random.Random(seed).uniform(0.3, 2.0)
    directory.mkdir()
    with launcher("embedded").start(SandboxOptions(workdir=directory)) as sandbox:
        put(sandbox, null_model("load_victim"), directory / "models")
        pid = sandbox.info.pid
        assert pid is not None
        with LoadGenerator(sandbox.info.grpc_url, processes=2, directory=directory) as generator:
            generator.prepare(SAMPLES, DATATYPES)
            timer = threading.Timer(delay_s, os.kill, (pid, signal.SIGKILL))
            timer.start()
            window = generator.run("load_victim", Workload(concurrency=8, duration_s=60), candidate_id="v")
            timer.join()
            workers = generator.pids
            assert code_of(window.aborted) == "server_gone", (seed, window.measurement)
            assert not window.measurement.usable
            assert set(map(code_of, window.measurement.failures)) <= {"UNAVAILABLE", "ABORTED", "INTERNAL", "CANCELLED"}
            log = window.records()
            assert (log.outcome >= 0).all(), "every request has an outcome, answered or failed"
            counted = window.measurement.requests
            assert counted <= log.ok.sum()
            assert log.ok.sum() + window.measurement.failed == len(log)
            # One process's slots never hold two requests: each send follows the end of the one before it.
            for worker in range(2):
                mine = log.worker == worker
                edges = np.concatenate([log.sent_ns[mine], log.done_ns[mine]])
                steps = np.concatenate([np.ones(mine.sum(), int), -np.ones(mine.sum(), int)])
                assert np.cumsum(steps[np.lexsort((steps, edges))]).max() <= 4
        assert not [worker for worker in workers if psutil.pid_exists(worker)]


def test_a_killed_server_ends_the_window(tmp_path: Path) -> None:
    kill_under_load(tmp_path / "server", seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_a_server_killed_at_any_instant_ends_the_window(tmp_path: Path, seed: int) -> None:
    kill_under_load(tmp_path / "server", seed)
