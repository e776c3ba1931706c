"""The load generator beside perf_analyzer: the same loads on the same server, one table.

    python -m benchmarks.generator_witness [--window-s 4] [--service-ms 0,2,10,50] [--concurrency 1,2,4,8,16,32,64]
                                           [--output FILE]

Python models that answer at once or take 2, 10 or 50 ms (8 instances, no batching), closed loop: a window of the load
generator, perf_analyzer, a second window, so that a drift shows. perf_analyzer counts the answers in its windows (of
which it takes three or more), so the slower loads get longer windows than ``--window-s``: see :func:`window_s`.

Client CPU is user and system time of the processes that send, per answer; on loopback that includes the kernel's share
of both directions. Needs no GPU, but ``perf_analyzer`` on PATH (glibc 2.38). The whole table takes about 15 minutes.
``python -m tests.gpu.generator_witness`` makes it in pieces on a GPU host.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from optimizer import processes
from optimizer.durable import write_json
from optimizer.errors import EnvironmentFailure
from optimizer.load.generator import LoadGenerator
from optimizer.load.perf_analyzer import MOST_TRIALS, find, run_perf_analyzer
from optimizer.records.deployment import Deployment
from optimizer.records.measurement import Workload
from optimizer.records.samples import Sample
from optimizer.sandbox._base import Sandbox
from optimizer.testing.models import DATATYPES, INPUT, ToyModel, null_model, sleep_model
from optimizer.triton.client import TritonClient, TritonError

SERVICE_MS = (0, 2, 10, 50)
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
INSTANCES = 8
ANSWERS = 400
"""One answer more or less at a window's edge is then 0.25%."""
LONGEST_WINDOW_S = 12.0


def toy(service_ms: int) -> ToyModel:
    if service_ms:
        return sleep_model(f"takes_{service_ms}_ms", service_s=service_ms / 1e3, instances=INSTANCES)
    return null_model(instances=INSTANCES)


def load_name(service_ms: int, concurrency: int) -> str:
    return f"{toy(service_ms).name}, c={concurrency}"


def window_s(service_ms: int, concurrency: int, shortest_s: float) -> float:
    """Seconds that ``ANSWERS`` answers take, within ``shortest_s`` and ``LONGEST_WINDOW_S``."""
    answers_s = ANSWERS * service_ms / 1e3 / min(concurrency, INSTANCES)
    return max(shortest_s, min(LONGEST_WINDOW_S, answers_s))


def estimated_s(service_ms: int, concurrency: int, shortest_s: float) -> float:
    """Two windows of the load generator and four of perf_analyzer: three is its least, on a quiet machine."""
    return 6 * window_s(service_ms, concurrency, shortest_s) + 4


class SendersCpu:
    """CPU time per answer of the processes that are started inside the ``with`` block, while they send to ``model``.

    From the first answers on, so that their start is not in it; ``None`` when they were gone too soon.
    """

    INTERVAL_S = 0.5

    def __init__(self, grpc_url: str, model: str) -> None:
        self._grpc_url, self._model = grpc_url, model
        self._readings: list[tuple[float, int]] = []
        """(CPU seconds, answers since the block was entered)."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read_on, daemon=True)

    def __enter__(self) -> SendersCpu:
        self._others = set(processes.descendants(os.getpid()))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def us_per_answer(self) -> float | None:
        if len(self._readings) < 2:
            return None
        (first_s, first), (last_s, last) = self._readings[0], self._readings[-1]
        return (last_s - first_s) / (last - first) * 1e6

    def _read_on(self) -> None:
        senders: list[psutil.Process] = []
        answers = 0
        with TritonClient(self._grpc_url, timeout_s=2.0) as client:
            try:
                before = client.statistics(self._model)
                while not self._stop.wait(self.INTERVAL_S):
                    now = client.statistics(self._model).since(before).inference_count
                    if now == answers:
                        continue  # Not sending yet, or no longer: what is spent now belongs to no answer.
                    answers = now
                    senders = senders or [
                        psutil.Process(pid) for pid in processes.descendants(os.getpid()) if pid not in self._others
                    ]
                    self._readings.append((sum(sum(one.cpu_times()[:2]) for one in senders), answers))
            except (psutil.NoSuchProcess, TritonError):
                return


class Witnesses:
    """``samples`` of 16 bytes to models on ``sandbox``, by ``generator`` and by perf_analyzer (``tool``: on PATH)."""

    def __init__(self, sandbox: Sandbox, generator: LoadGenerator, folder: Path, tool: Path | None = None) -> None:
        self._sandbox, self._generator, self._folder, self._tool = sandbox, generator, folder, tool
        self._samples = [Sample(str(n), {INPUT: np.full((1, 4), n, np.float32)}) for n in range(16)]
        generator.prepare(self._samples, DATATYPES)
        self._loaded: set[str] = set()

    def compare(self, service_ms: int, concurrency: int, shortest_s: float) -> dict[str, Any]:
        """One load. ``ratio`` and ``p50_ratio`` are ours over theirs; what perf_analyzer's count may be off by one
        answer at a window's edge is ``one_answer``."""
        name = self._load(service_ms)
        seconds = window_s(service_ms, concurrency, shortest_s)
        first = self._ours(name, concurrency, seconds)
        theirs = self._theirs(name, concurrency, seconds)
        second = self._ours(name, concurrency, seconds)
        per_s = mean(first["per_s"], second["per_s"])
        result: dict[str, Any] = {"window_s": seconds, "per_s": per_s, "ours": [first, second], "perf_analyzer": theirs}
        result["drift"] = round(second["per_s"] / first["per_s"] - 1, 4) if first["per_s"] else None
        if theirs.get("per_s"):
            result["ratio"] = round(per_s / theirs["per_s"], 4)
            result["one_answer"] = round(1 / (theirs["per_s"] * seconds), 4)
            p50_us = theirs["percentiles_us"].get("p50")
            if p50_us and first["p50_us"] and second["p50_us"]:
                result["p50_ratio"] = round(mean(first["p50_us"], second["p50_us"]) / p50_us, 4)
        return result

    def _load(self, service_ms: int) -> str:
        model = toy(service_ms)
        if model.name not in self._loaded:
            source = self._folder / f"{model.name}.py"
            source.write_text(model.source, encoding="utf-8")
            failure = self._sandbox.load(Deployment(model.name, model.config_text, {"1/model.py": source}))
            if failure is not None:
                raise RuntimeError(failure.message)
            self._loaded.add(model.name)  # It stays: unloading takes a second, and an idle instance costs nothing.
            self._generator.run(model.name, Workload(concurrency=16, duration_s=0.5), candidate_id=model.name)
        return model.name

    def _ours(self, name: str, concurrency: int, seconds: float) -> dict[str, Any]:
        load = Workload(concurrency=concurrency, duration_s=seconds)
        measured = self._generator.run(name, load, candidate_id=name).measurement
        return {
            "per_s": measured.throughput,
            "requests": measured.requests,
            "mean_us": measured.latency_mean_us,
            "p50_us": measured.percentiles_us.get("p50"),
            "p99_us": measured.percentiles_us.get("p99"),
            "client_cpu_us_per_request": measured.resources.client_cpu_us_per_request,
            "client_cpu": measured.resources.client_cpu,
            "usable": measured.usable,
            "warnings": list(measured.warnings),
        }

    def _theirs(self, name: str, concurrency: int, seconds: float) -> dict[str, Any]:
        grpc_url = self._sandbox.info.grpc_url
        try:
            with SendersCpu(grpc_url, name) as cpu:
                witness = run_perf_analyzer(
                    grpc_url, name, self._samples, DATATYPES, Workload(concurrency=concurrency), batched=True,
                    command=self._tool, window_s=seconds, timeout_s=MOST_TRIALS * seconds + 30,
                )  # fmt: skip
        except EnvironmentFailure as error:
            return {"missing": str(error)[-600:]}
        return {
            "per_s": witness.throughput,
            "mean_us": witness.latency_mean_us,
            "percentiles_us": dict(witness.percentiles_us),
            "client_cpu_us_per_request": cpu.us_per_answer,
            "stable": witness.stable,
        }


def mean(*values: float) -> float:
    return sum(values) / len(values)


def table(loads: Mapping[str, Any]) -> str:
    """Markdown, one line a load."""
    heads = (
        "load", "window, s", "ours/s", "perf_analyzer/s", "ratio", "one answer", "drift", "p50 ratio",
        "client us, ours", "theirs", "said",
    )  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 2) + "|---|"]
    for name, result in loads.items():
        if "ours" not in result:
            continue
        theirs = result["perf_analyzer"]
        cpu = [one["client_cpu_us_per_request"] for one in result["ours"]]
        said = {str(text).partition(":")[0] for one in result["ours"] for text in one["warnings"]}
        if not theirs.get("stable", True):
            said.add("perf_analyzer: not stable")
        if "missing" in theirs:
            said.add("perf_analyzer failed")
        cells = (
            name,
            f"{result['window_s']:g}",
            f"{result['per_s']:,.1f}",
            shown(theirs.get("per_s"), ",.1f"),
            shown(result.get("ratio"), ".3f"),
            shown(result.get("one_answer"), ".2%"),
            shown(result["drift"], "+.1%"),
            shown(result.get("p50_ratio"), ".3f"),
            shown(None if None in cpu else mean(*cpu), ".0f"),
            shown(theirs.get("client_cpu_us_per_request"), ".0f"),
            "; ".join(sorted(said)),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def facts(tool: Path) -> dict[str, Any]:
    """What the results belong to."""
    version = processes.run([tool, "--version"], timeout_s=20)[1].strip()
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "system": platform.platform(),
        "perf_analyzer": version,
        "instances": INSTANCES,
    }


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--window-s", type=float, default=4.0, help="shortest window of either tool")
    parser.add_argument("--service-ms", type=numbers, default=SERVICE_MS, help="0 is the model that answers at once")
    parser.add_argument("--concurrency", type=numbers, default=CONCURRENCIES)
    parser.add_argument("--output", type=Path, help="written after every load")
    options = parser.parse_args()
    loads = [(service_ms, concurrency) for service_ms in options.service_ms for concurrency in options.concurrency]
    seconds = sum(estimated_s(*load, options.window_s) for load in loads)
    print(f"loads: {len(loads)}, about {seconds / 60:.1f} minutes", file=sys.stderr)
    try:
        document: dict[str, Any] = {"machine": facts(find())}
    except EnvironmentFailure as error:
        print(error, file=sys.stderr)
        return 3
    from optimizer.sandbox._base import SandboxOptions
    from optimizer.sandbox.launchers import launcher

    started = time.monotonic()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="generator-witness-") as name:
        folder = Path(name)
        with (
            launcher("embedded").start(SandboxOptions(workdir=folder)) as sandbox,
            LoadGenerator(sandbox.info.grpc_url, directory=folder / "requests") as generator,
        ):
            witnesses = Witnesses(sandbox, generator, folder)
            for service_ms, concurrency in loads:
                result = witnesses.compare(service_ms, concurrency, options.window_s)
                results[load_name(service_ms, concurrency)] = result
                print(load_name(service_ms, concurrency), result.get("ratio"), file=sys.stderr, flush=True)
                document |= {
                    "command": shlex.join(["python", "-m", "benchmarks.generator_witness", *sys.argv[1:]]),
                    "client_processes": generator.processes,
                    "seconds": round(time.monotonic() - started),
                    "loads": results,
                }
                if options.output:
                    write_json(options.output, document)
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
