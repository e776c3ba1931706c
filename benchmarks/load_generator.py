"""What a request costs the load generator, beside what it costs gRPC's own Python client on the same server.

    python -m benchmarks.load_generator [--seconds S] [--repeats N] [--output FILE]

A real Triton server, a python model that answers at once, prebuilt requests of 16 bytes and of 150 KB. Client CPU is
user and system time of the client's process; on loopback that includes the kernel's share of both directions. Medians
over repeats whose order is shuffled. Absolute numbers belong to the machine; the ratios are the result.

Second table: memory of the request log, per million requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from optimizer.durable import write_json
from optimizer.load.generator import LoadGenerator
from optimizer.load.loop import Report
from optimizer.load.request_log import merge_reports
from optimizer.records.deployment import Deployment
from optimizer.records.measurement import Workload
from optimizer.records.samples import Sample
from optimizer.testing.models import DATATYPES, null_model
from optimizer.triton.client import INFER_METHOD, build_request

WIDTHS = {"16 B": 4, "150 KB": 37_500}
CONCURRENCIES = (1, 8, 32)
OURS = ("grpc", "http", "system")
PEERS = ("grpcio threads", "grpcio futures", "grpcio aio")


def peer(url: str, kind: str, body: bytes, concurrency: int, seconds: float) -> dict[str, float]:
    """A closed loop with gRPC's client, raw bytes in and out; runs in a process of its own."""
    import grpc

    done = 0
    options = [("grpc.max_receive_message_length", -1)]

    def threads() -> None:
        call = grpc.insecure_channel(url, options=options).unary_unary(INFER_METHOD)

        def work() -> None:
            nonlocal done
            while time.monotonic() < end:
                call(body)
                done += 1

        workers = [threading.Thread(target=work) for _ in range(concurrency)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def futures() -> None:
        call = grpc.insecure_channel(url, options=options).unary_unary(INFER_METHOD)
        finished = threading.Semaphore(0)

        def go() -> None:
            if time.monotonic() >= end:
                finished.release()
                return
            call.future(body).add_done_callback(answered)

        def answered(_: Any) -> None:
            nonlocal done
            done += 1
            go()

        for _ in range(concurrency):
            go()
        for _ in range(concurrency):
            finished.acquire()

    async def aio() -> None:
        async with grpc.aio.insecure_channel(url, options=options) as channel:
            call = channel.unary_unary(INFER_METHOD)

            async def work() -> None:
                nonlocal done
                while time.monotonic() < end:
                    await call(body)
                    done += 1

            await asyncio.gather(*(work() for _ in range(concurrency)))

    cpu, started = time.process_time(), time.monotonic()
    end = started + seconds
    {"grpcio threads": threads, "grpcio futures": futures, "grpcio aio": lambda: asyncio.run(aio())}[kind]()
    wall = time.monotonic() - started
    return {"cpu_us": (time.process_time() - cpu) / max(done, 1) * 1e6, "rate": done / wall}


def ours(info: Any, kind: str, width: int, concurrency: int, seconds: float, directory: Path) -> dict[str, float]:
    more: dict[str, Any] = {"transport": "http", "http_url": info.http_url} if kind == "http" else {}
    if kind == "system":
        more = {"shared_memory": "system"}
    samples = [Sample(str(number), {"INPUT0": np.full((1, width), number, np.float32)}) for number in range(16)]
    with LoadGenerator(info.grpc_url, processes=1, directory=directory, **more) as generator:
        generator.prepare(samples, DATATYPES, output_bytes={"OUTPUT0": 4 * width})
        load = Workload(concurrency=concurrency, duration_s=seconds)
        measurement = generator.run(model_name(width), load, candidate_id="bench").measurement
    cpu_us = measurement.resources.client_cpu_us_per_request
    return {"cpu_us": cpu_us if cpu_us is not None else float("nan"), "rate": measurement.requests / seconds}


def model_name(width: int) -> str:
    return f"null_{width}"


def client_costs(info: Any, seconds: float, repeats: int, directory: Path, seed: int) -> list[dict[str, Any]]:
    cells: dict[tuple[str, str, int], list[dict[str, float]]] = {}
    jobs: list[tuple[tuple[str, str, int], Callable[[], dict[str, float]]]] = []
    for size, width in WIDTHS.items():
        for concurrency in CONCURRENCIES:
            for kind in OURS:
                jobs.append(
                    (
                        (size, kind, concurrency),
                        lambda kind=kind, width=width, concurrency=concurrency: ours(  # type: ignore[misc]
                            info, kind, width, concurrency, seconds, directory
                        ),
                    )
                )
            for kind in PEERS:
                command = [
                    sys.executable, "-m", "benchmarks.load_generator", "--peer", info.grpc_url, kind, str(width),
                    str(concurrency), str(seconds),
                ]  # fmt: skip
                jobs.append(
                    (
                        (size, kind, concurrency),
                        lambda command=command: json.loads(subprocess.check_output(command)),  # type: ignore[misc]
                    )
                )
    order = random.Random(seed)
    for _ in range(repeats):
        order.shuffle(jobs)
        for key, job in jobs:
            cells.setdefault(key, []).append(job())
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    rows = []
    for (size, kind, concurrency), found in sorted(cells.items()):
        best_peer = min(statistics.median(one["cpu_us"] for one in cells[size, name, concurrency]) for name in PEERS)
        cpu_us = statistics.median(one["cpu_us"] for one in found)
        rows.append(
            {
                "request": size,
                "client": kind if kind in PEERS else f"load generator, {kind}",
                "concurrency": concurrency,
                "client_cpu_us_per_request": round(cpu_us, 1),
                "requests_per_s": round(statistics.median(one["rate"] for one in found), 1),
                "cpu_over_cheapest_grpcio": round(cpu_us / best_peer, 3),
            }
        )
    return rows


def memory_per_million(records: int = 1_000_000) -> dict[str, float]:
    """Bytes a request: columns in a load process, merged columns in the owner, file on disk."""
    process = psutil.Process()
    before = process.memory_info().rss
    report = Report()
    for number in range(records):
        report.intended.append(number)
        report.sent.append(number)
        report.done.append(number)
        report.sample.append(number % 100)
        report.outcome.append(0)
    columns = process.memory_info().rss - before
    log = merge_reports([report], window_start_ns=0, duration_ns=records)
    merged = sum(
        getattr(log, name).nbytes for name in ("intended_ns", "sent_ns", "done_ns", "sample", "outcome", "worker")
    )
    with tempfile.TemporaryDirectory() as name:
        log.save(Path(name) / "log.npz")
        size = (Path(name) / "log.npz").stat().st_size
    mb = 1e6 * (records / 1e6)
    return {"load_process_mb": columns / mb, "owner_mb": merged / mb, "file_mb": size / mb}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--peer", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        url, kind, width, concurrency, seconds = arguments.peer
        tensor = {"INPUT0": np.zeros((1, int(width)), np.float32)}
        body = build_request(model_name(int(width)), tensor, DATATYPES)
        print(json.dumps(peer(url, kind, body, int(concurrency), float(seconds))))
        return 0
    from optimizer.sandbox._base import SandboxOptions
    from optimizer.sandbox.launchers import launcher

    with tempfile.TemporaryDirectory(prefix="load-benchmark-") as name:
        directory = Path(name)
        with launcher("embedded").start(SandboxOptions(workdir=directory)) as sandbox:
            for width in WIDTHS.values():
                model = null_model(model_name(width), width=width, instances=2)
                source = directory / f"{model.name}.py"
                source.write_text(model.source)
                failure = sandbox.load(Deployment(model.name, model.config_text, {"1/model.py": source}))
                if failure is not None:
                    print(failure.message, file=sys.stderr)
                    return 3
            rows = client_costs(sandbox.info, arguments.seconds, arguments.repeats, directory, arguments.seed)
    memory = memory_per_million()
    print(
        f"{'request':>8} {'c':>3}  {'client':<24} {'CPU us/request':>14} {'requests/s':>11} {'CPU / best grpcio':>18}"
    )
    for row in sorted(rows, key=lambda row: (row["request"], row["concurrency"], row["client_cpu_us_per_request"])):
        print(
            f"{row['request']:>8} {row['concurrency']:>3}  {row['client']:<24} "
            f"{row['client_cpu_us_per_request']:>14.1f} {row['requests_per_s']:>11.1f} "
            f"{row['cpu_over_cheapest_grpcio']:>18.2f}"
        )
    print("memory per million requests: " + ", ".join(f"{key} {value:.1f}" for key, value in memory.items()))
    if arguments.output:
        write_json(
            arguments.output,
            {
                "command": shlex.join(["python", "-m", "benchmarks.load_generator", *sys.argv[1:]]),
                "machine": {
                    "cores": os.cpu_count(),
                    "python": platform.python_version(),
                    "system": platform.platform(),
                },
                "client_cost": rows,
                "memory_per_million_requests": memory,
            },
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
