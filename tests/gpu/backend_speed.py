"""What the ``tensorrt`` backend costs: ``python -m tests.gpu.backend_speed --out DIR [--seconds S]``.

On one network and in one run: the engine alone (CUDA events, back to back), the engine in several processes at once,
a null python model, and the backend with 1 to 8 instances, with an engine for each or one for all, request batch 8 and
1, with and without CUDA graphs, and once more with phases. Load by perf_analyzer over gRPC with system shared memory.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import networks
from optimizer.records.deployment import Deployment
from optimizer.sandbox._base import Sandbox
from tests.gpu import serving
from tests.gpu.build import build
from tests.gpu.results import Steps

ROOT = Path(__file__).parents[2]
MAX_BATCH = 32
LOADS = {"batch 8, c=32": (8, 32), "batch 1, c=64": (1, 64)}
WINDOW_MS = 1500

OWN, SHARED = "own engines", "shared engine"
ENGINE = {
    name: f'parameters {{ key: "engine_process" value {{ string_value: "{value}" }} }}\n'
    for name, value in ((OWN, "own"), (SHARED, "shared"))
}

NULL_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        self.answer = np.zeros((32, 100), np.float32)
    def execute(self, requests):
        answer, make, respond = self.answer, pb_utils.Tensor, pb_utils.InferenceResponse
        return [respond([make("y", answer[:r.inputs()[0].as_numpy().shape[0]])]) for r in requests]
"""


def perf_analyzer(url: str, model: str, batch: int, concurrency: int, work: Path) -> dict[str, Any]:
    """One stable measurement. Inferences (rows) a second and latency percentiles in µs."""
    tool = shutil.which("perf_analyzer")
    if tool is None:
        raise RuntimeError("perf_analyzer is not on PATH")
    table = work / f"perf-{time.monotonic_ns()}.csv"
    environment = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "PYTHONHOME")}
    command = [
        tool, "-m", model, "-u", url, "-i", "grpc", "-b", str(batch), "--shared-memory", "system",
        "--concurrency-range", f"{concurrency}:{concurrency}", "-p", str(WINDOW_MS), "-s", "15", "-r", "5",
        "-f", str(table), "--verbose-csv",
    ]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if not table.exists():
        raise RuntimeError(f"perf_analyzer ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    with table.open(newline="") as file:
        row = next(csv.DictReader(file))
    picked = {
        "per_s": "Inferences/Second", "p50_us": "p50 latency", "p99_us": "p99 latency", "queue_us": "Server Queue",
        "input_us": "Server Compute Input", "infer_us": "Server Compute Infer", "output_us": "Server Compute Output",
        "network_us": "Network+Server Send/Recv",
    }  # fmt: skip
    result: dict[str, Any] = {key: float(row[name]) for key, name in picked.items() if row.get(name)}
    said = re.findall(r"Throughput: ([0-9.]+) infer/sec", done.stdout)
    if "per_s" not in result:
        if not said:
            raise RuntimeError(f"no throughput in {row} and in: {done.stdout[-1500:]}")
        result["per_s"] = float(said[-1])
    if result["per_s"] <= 0:
        raise RuntimeError(f"perf_analyzer measured nothing: {(done.stdout + done.stderr)[-1500:]}")
    result["stable"] = done.returncode == 0
    return result


class Speed:
    def __init__(self, out: Path, plan: Path) -> None:
        self.out, self.plan = out, plan
        self.work = out / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self.config = partial(
            serving.config_text, {"x": ("FP32", [3, 56, 56])}, {"y": ("FP32", [100])}, max_batch=MAX_BATCH
        )

    def engine(
        self, mode: str, rows: int, processes: int = 1, contexts: int = 1, graphs: bool = False
    ) -> dict[str, Any]:
        # Starting takes two or three seconds; who comes late says so in its result.
        begin = time.time() + 5.0 + processes if processes > 1 else 0.0
        command = [
            sys.executable, "-m", "benchmarks.gpu_engine", str(self.plan), "--rows", str(rows), "--mode", mode,
            "--contexts", str(contexts), "--seconds", "1.5", "--begin", str(begin), *(["--graphs"] if graphs else []),
        ]  # fmt: skip
        started = [
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]
        results = []
        for process in started:
            out, err = process.communicate(timeout=90)
            if process.returncode != 0:
                raise RuntimeError(err[-1500:])
            results.append(json.loads(out.splitlines()[-1]))
        return {"per_s": sum(result["per_s"] for result in results), "each": results}

    def load(self, sandbox: Sandbox, deployment: Deployment, batch: int, concurrency: int) -> dict[str, Any]:
        failure = sandbox.load(deployment)
        if failure is not None:
            raise RuntimeError(failure.message)
        try:
            used = serving.gpu_used_bytes()
            perf_analyzer_warm(sandbox, deployment.name, batch)
            result = perf_analyzer(sandbox.info.grpc_url, deployment.name, batch, concurrency, self.work)
        finally:
            sandbox.unload(deployment.name)
        return {**result, "gpu_used_mib": used >> 20 if used else None}

    def null(self, instances: int) -> Deployment:
        file = self.work / "null_model.py"
        file.write_text(NULL_MODEL)
        # Its dims are those of the network; only the first lines of the config are the native backend's.
        native = self.config(instances=instances, group=f"instance_group {{ kind: KIND_CPU count: {instances} }}")
        config = native.split("default_model_filename", 1)[1].split("\n", 1)[1]
        return Deployment(name="null", config_text='backend: "python"\n' + config, files={"1/model.py": file})

    def backend(self, instances: int, extra: str = "") -> Deployment:
        return serving.deployment("conv", self.config(instances=instances, extra=extra), self.plan)


def perf_analyzer_warm(sandbox: Sandbox, model: str, batch: int) -> None:
    """Buffers and shared memory grow with the first large batches; that is not what is measured."""
    import numpy as np

    from optimizer.triton.client import TritonClient

    x = np.zeros((batch, 3, 56, 56), np.float32)
    with TritonClient(sandbox.info.grpc_url) as client:
        answers = serving.ask(client, model, [{"x": x}] * 200, {"x": "FP32"})
    bad = [answer for answer in answers if isinstance(answer, str)]
    if bad:
        raise RuntimeError(f"{len(bad)} warm-up requests failed: {bad[0]}")


def phases(speed: Speed, instances: int, batch: int, concurrency: int, extra: str = "") -> dict[str, Any]:
    """A server of its own, since the variable is the server's; throughput here is not the backend's best."""
    folder = speed.out / f"phases-{instances}-{batch}-{time.monotonic_ns()}"
    folder.mkdir(parents=True)
    os.environ[serving.PHASES_VARIABLE] = str(folder)
    try:
        with serving.start(speed.work) as sandbox:
            result = speed.load(sandbox, speed.backend(instances, extra), batch, concurrency)
    finally:
        del os.environ[serving.PHASES_VARIABLE]
    each = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    return {**result, "instances": each}


def table(steps: Mapping[str, Any]) -> str:
    alone = steps.get("engine alone, 32 rows", {}).get("per_s")
    lines = [f"{'arm':52} {'inferences/s':>13} {'of engine':>9} {'p50 us':>9} {'p99 us':>9}"]
    for name, result in steps.items():
        if result.get("ok") and "per_s" in result:
            share = f"{result['per_s'] / alone:9.2f}" if alone else " " * 9
            p50, p99 = (f"{result[key]:9.0f}" if key in result else " " * 9 for key in ("p50_us", "p99_us"))
            lines.append(f"{name:52} {result['per_s']:13,.0f} {share} {p50} {p99}")
    return "\n".join(lines)


def served(speed: Speed, label: str) -> list[tuple[str, Deployment]]:
    """Arms, the most telling first."""
    arms = [
        (f"backend, {n} instances, {engine}, {label}", speed.backend(n, ENGINE[engine]))
        for engine, n in ((SHARED, 4), (OWN, 4), (OWN, 1), (SHARED, 2), (OWN, 2), (SHARED, 8))
    ]
    arms += [
        (f"backend, 4 instances, {engine}, CUDA graphs, {label}", speed.backend(4, ENGINE[engine] + serving.GRAPHS))
        for engine in (SHARED, OWN)
    ]
    return [*arms, *((f"null python model, {n} instances, {label}", speed.null(n)) for n in (4, 1))]


def serve(steps: Steps, speed: Speed, arms: list[tuple[str, Deployment]], load: tuple[int, int], only: str) -> None:
    """All arms on one server, which is started only when something is left to do."""
    if all(only not in name or steps.done(name) for name, _ in arms) or steps.left_s() < 40:
        return
    with serving.start(speed.work) as sandbox:
        for name, deployment in arms:
            if only in name:
                steps.step(name, partial(speed.load, sandbox, deployment, *load), reserve_s=25)
        log = speed.out / f"backend_speed.server-{load[0]}.log"
        log.write_text(sandbox.log_tail(200), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--only", default="", help="part of a step's name")
    options = parser.parse_args()
    steps = Steps(options.out, "backend_speed", options.seconds, serving.facts())
    image = ((1, 3, 56, 56), (MAX_BATCH, 3, 56, 56), (MAX_BATCH, 3, 56, 56))
    plan = build(
        networks.convolutional().SerializeToString(), options.out / "plans", "speed", [{"x": image}], flags=("FP16",)
    )
    steps.document["facts"].update(plan_bytes=plan.size_bytes, build_s=round(plan.seconds, 2), network="convolutional")
    speed = Speed(options.out, plan.file)

    def step(name: str, work: Any, reserve_s: float = 25.0) -> None:
        if options.only in name:
            steps.step(name, work, reserve_s=reserve_s)

    step("engine alone, 32 rows", partial(speed.engine, "compute", 32))
    step("engine alone, 32 rows, 4 contexts of 1 process", partial(speed.engine, "compute", 32, 1, 4))
    step("session with copies, 32 rows, 1 process", partial(speed.engine, "session", 32))
    step("session with copies, 32 rows, 4 processes", partial(speed.engine, "session", 32, 4))
    step("session with copies, 32 rows, 4 processes, graphs", partial(speed.engine, "session", 32, 4, 1, True))
    for label, load in LOADS.items():
        serve(steps, speed, served(speed, label), load, options.only)
        batch, concurrency = load
        for instances, engine in ((4, SHARED), (4, OWN), (1, OWN)):
            name = f"phases, {instances} instances, {engine}, {label}"
            step(name, partial(phases, speed, instances, batch, concurrency, ENGINE[engine]), 40)
    for rows in (8, 1):
        step(f"engine alone, {rows} rows", partial(speed.engine, "compute", rows))
    step("session with copies, 32 rows, 2 processes", partial(speed.engine, "session", 32, 2))
    print(table(steps.document["steps"]), flush=True)
    return steps.finish()


if __name__ == "__main__":
    sys.exit(main())
