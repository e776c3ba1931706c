"""The load generator beside perf_analyzer: ``python -m tests.gpu.generator_witness --out DIR [--seconds S]``.

On one server, python models that answer at once or sleep 2, 10 or 50 ms (8 instances, no batching), closed loop at 1 to
64 requests in flight: a window of the load generator, perf_analyzer, a second window, so that a drift shows. Needs no
GPU, but a machine with more cores than the load takes, and glibc 2.38 for perf_analyzer.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from optimizer.errors import EnvironmentFailure
from optimizer.load.generator import LoadGenerator
from optimizer.load.perf_analyzer import run_perf_analyzer
from optimizer.records.deployment import Deployment
from optimizer.records.measurement import Workload
from optimizer.records.samples import Sample
from optimizer.sandbox._base import Sandbox
from tests.gpu import serving
from tests.gpu.results import Steps

SLEEPS_MS = (0, 2, 10, 50)
CONCURRENCIES = (8, 1, 64, 32, 4, 16, 2)
"""The telling ones first."""
INSTANCES = 8
WINDOW_S = 0.8
WITNESS_WINDOW_S = 0.5
DATATYPES = {"x": "FP32"}

MODEL = """
import time
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            if {sleep_s}:
                time.sleep({sleep_s})
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", request.inputs()[0].as_numpy())]))
        return answers
"""
CONFIG = (
    'backend: "python"\nmax_batch_size: 0\ninput { name: "x" data_type: TYPE_FP32 dims: [1, 4] }\n'
    'output { name: "y" data_type: TYPE_FP32 dims: [1, 4] }\n'
    f"instance_group {{ kind: KIND_CPU count: {INSTANCES} }}\n"
)


def name_of(sleep_ms: int) -> str:
    return f"sleeps_{sleep_ms}_ms" if sleep_ms else "null"


def wrapped_perf_analyzer(folder: Path) -> Path | None:
    """perf_analyzer without this interpreter's library path, which may hold another libstdc++."""
    tool = shutil.which("perf_analyzer")
    if tool is None:
        return None
    script = folder / "perf_analyzer"
    script.write_text(f'#!/bin/sh\nexec env -u LD_LIBRARY_PATH -u PYTHONHOME "{tool}" "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return script


class Witnesses:
    def __init__(self, sandbox: Sandbox, generator: LoadGenerator, folder: Path) -> None:
        self.sandbox, self.generator, self.folder = sandbox, generator, folder
        self.tool = wrapped_perf_analyzer(folder)
        self.samples = [Sample(str(n), {"x": np.full((1, 4), n, np.float32)}) for n in range(16)]
        generator.prepare(self.samples, DATATYPES)
        self.loaded: set[str] = set()

    def load(self, sleep_ms: int) -> None:
        name = name_of(sleep_ms)
        if name in self.loaded:
            return
        file = self.folder / f"{name}.py"
        file.write_text(MODEL.format(sleep_s=sleep_ms / 1e3), encoding="ascii")
        failure = self.sandbox.load(Deployment(name=name, config_text=CONFIG, files={"1/model.py": file}))
        if failure is not None:
            raise RuntimeError(failure.message)
        self.loaded.add(name)  # It stays: unloading takes a second, and an idle instance costs nothing.
        self.generator.run(name, Workload(concurrency=16, duration_s=0.5), candidate_id=name)

    def ours(self, name: str, concurrency: int) -> dict[str, Any]:
        window = self.generator.run(name, Workload(concurrency=concurrency, duration_s=WINDOW_S), candidate_id=name)
        measured = window.measurement
        resources = measured.resources
        return {
            "per_s": measured.throughput,
            "requests": measured.requests,
            "p50_us": measured.percentiles_us.get("p50"),
            "client_cpu_us_per_request": resources.client_cpu_us_per_request,
            "client_cpu": resources.client_cpu,
            "usable": measured.usable,
            "warnings": list(measured.warnings),
        }

    def theirs(self, name: str, concurrency: int) -> dict[str, Any]:
        if self.tool is None:
            return {"missing": "perf_analyzer is not on PATH"}
        try:
            witness = run_perf_analyzer(
                self.sandbox.info.grpc_url, name, self.samples, DATATYPES, Workload(concurrency=concurrency),
                batched=False, command=self.tool, window_s=WITNESS_WINDOW_S, timeout_s=40,
            )  # fmt: skip
        except EnvironmentFailure as error:
            return {"missing": str(error)[-600:]}
        return {
            "per_s": witness.throughput,
            "mean_us": witness.latency_mean_us,
            "percentiles_us": dict(witness.percentiles_us),
            "stable": witness.stable,
        }

    def compare(self, sleep_ms: int, concurrency: int) -> dict[str, Any]:
        self.load(sleep_ms)
        name = name_of(sleep_ms)
        first = self.ours(name, concurrency)
        theirs = self.theirs(name, concurrency)
        second = self.ours(name, concurrency)
        mean = (first["per_s"] + second["per_s"]) / 2
        result: dict[str, Any] = {"per_s": mean, "ours": [first, second], "perf_analyzer": theirs}
        result["drift"] = round(second["per_s"] / first["per_s"] - 1, 4) if first["per_s"] else None
        if theirs.get("per_s"):
            result["ratio"] = round(mean / theirs["per_s"], 4)
        return result


def table(steps: Mapping[str, Any]) -> str:
    lines = [f"{'load':28} {'ours/s':>10} {'perf_analyzer/s':>16} {'ratio':>7} {'client us':>10}  warnings"]
    for name, result in steps.items():
        if result.get("ok"):
            cpu = result["ours"][0]["client_cpu_us_per_request"]
            told = {str(text).split(":")[0][:40] for one in result["ours"] for text in one["warnings"]}
            theirs = result["perf_analyzer"].get("per_s") or float("nan")
            ratio = result.get("ratio", float("nan"))
            lines.append(
                f"{name:28} {result['per_s']:10,.0f} {theirs:16,.0f} {ratio:7.3f} "
                f"{cpu if cpu is not None else float('nan'):10.1f}  {'; '.join(sorted(told))}"
            )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=120)
    options = parser.parse_args()
    facts = {"cores": os.cpu_count(), "instances": INSTANCES, "window_s": WINDOW_S}
    try:
        facts |= serving.facts()
    except ImportError:
        facts["tensorrt"] = None
    steps = Steps(options.out, "generator_witness", options.seconds, facts)
    folder = options.out / "work" / "witness"
    folder.mkdir(parents=True, exist_ok=True)
    # No GPU for these models: the server then starts in a second.
    with (
        serving.start(folder / "server", None) as sandbox,
        LoadGenerator(sandbox.info.grpc_url, directory=folder / "requests") as generator,
    ):
        witnesses = Witnesses(sandbox, generator, folder)
        facts["client_processes"] = generator.processes
        for half in (CONCURRENCIES[:4], CONCURRENCIES[4:]):
            for sleep_ms in SLEEPS_MS:
                for concurrency in half:
                    steps.step(
                        f"{name_of(sleep_ms)}, c={concurrency}",
                        partial(witnesses.compare, sleep_ms, concurrency),
                        reserve_s=8,
                    )
    print(table(steps.document["steps"]), flush=True)
    return steps.finish()


if __name__ == "__main__":
    sys.exit(main())
