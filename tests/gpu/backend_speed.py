"""What the ``tensorrt`` backend costs: ``python -m tests.gpu.backend_speed --out DIR [--seconds S]``.

On one network and in one run: the engine alone (CUDA events, back to back), the engine in several processes at once,
a null python model, and the backend with 1 to 8 instances, with an engine for each or one for all, one or two batches
in flight, request batch 1, 8 and the largest, with and without CUDA graphs, and once more with phases. Load by
perf_analyzer over gRPC with system shared memory.
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
WINDOW_MS = 1000
LAYERS = 27
"""Of the convolutional network: with it an FP16 engine alone runs about 60,000 samples a second on an H200."""

Load = tuple[int, int]
BATCHED, MORE, ONE_BY_ONE, FULL = (8, 32), (8, 64), (1, 64), (32, 16)
"""Request batch and requests in flight."""

OWN, SHARED = "own engines", "shared engine"


def parameters(engine: str, *, pipelined: bool = False) -> str:
    values = {"engine_process": "own" if engine == OWN else "shared", **({"pipeline": "on"} if pipelined else {})}
    return "".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}\n' for k, v in values.items())


def load_text(load: Load) -> str:
    return f"batch {load[0]}, c={load[1]}"


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


Arm = tuple[str, Deployment, Load]


def backend_arm(
    speed: Speed, instances: int, engine: str, load: Load, *, pipelined: bool = False, graphs: bool = False
) -> Arm:
    more = (", pipelined" if pipelined else "") + (", CUDA graphs" if graphs else "")
    extra = parameters(engine, pipelined=pipelined) + (serving.GRAPHS if graphs else "")
    return f"backend, {instances} instances, {engine}{more}, {load_text(load)}", speed.backend(instances, extra), load


def null_arm(speed: Speed, instances: int, load: Load) -> Arm:
    return f"null python model, {instances} instances, {load_text(load)}", speed.null(instances), load


def first_arms(speed: Speed) -> list[Arm]:
    """The telling ones: what a plain config gets, then what may be better."""
    return [
        backend_arm(speed, 4, SHARED, BATCHED),
        backend_arm(speed, 4, SHARED, BATCHED, pipelined=True),
        backend_arm(speed, 4, OWN, BATCHED),
        backend_arm(speed, 4, SHARED, ONE_BY_ONE),
        null_arm(speed, 4, BATCHED),
        null_arm(speed, 4, ONE_BY_ONE),
    ]


def further_arms(speed: Speed) -> list[Arm]:
    arms = [
        backend_arm(speed, 4, SHARED, BATCHED, graphs=True),
        backend_arm(speed, 4, SHARED, MORE),
        backend_arm(speed, 2, SHARED, BATCHED, pipelined=True),
        backend_arm(speed, 4, OWN, BATCHED, pipelined=True),
        backend_arm(speed, 4, SHARED, FULL),
        backend_arm(speed, 4, SHARED, ONE_BY_ONE, pipelined=True),
        backend_arm(speed, 6, OWN, BATCHED),
        backend_arm(speed, 8, SHARED, BATCHED),
    ]
    for load in (BATCHED, FULL, ONE_BY_ONE):
        arms += [backend_arm(speed, 2, SHARED, load), backend_arm(speed, 1, OWN, load)]
    return [*arms, backend_arm(speed, 1, OWN, BATCHED, pipelined=True), null_arm(speed, 1, BATCHED)]


def serve(steps: Steps, speed: Speed, arms: list[Arm], only: str, part: str) -> None:
    """All arms on one server, which is started only when something is left to do."""
    wanted = [arm for arm in arms if only in arm[0]]
    if all(steps.done(name) for name, _, _ in wanted) or steps.left_s() < 25:
        steps.left_out += [name for name, _, _ in wanted if not steps.done(name)]
        return
    with serving.start(speed.work) as sandbox:
        for name, deployment, load in wanted:
            steps.step(name, partial(speed.load, sandbox, deployment, *load), reserve_s=16)
        log = speed.out / f"backend_speed.server-{part}.log"
        log.write_text(sandbox.log_tail(200), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--only", default="", help="part of a step's name")
    options = parser.parse_args()
    steps = Steps(options.out, "backend_speed", options.seconds, serving.facts())
    image = ((1, 3, 56, 56), (MAX_BATCH, 3, 56, 56), (MAX_BATCH, 3, 56, 56))
    plan = build(
        networks.convolutional(layers=options.layers).SerializeToString(),
        options.out / "plans",
        "speed",
        [{"x": image}],
        flags=("FP16",),
    )
    steps.document["facts"].update(
        plan_bytes=plan.size_bytes, build_s=round(plan.seconds, 2), network=f"convolutional, {options.layers} layers"
    )
    speed = Speed(options.out, plan.file)

    def step(name: str, work: Any, reserve_s: float = 25.0) -> None:
        if options.only in name:
            steps.step(name, work, reserve_s=reserve_s)

    def phases_step(instances: int, engine: str, load: Load) -> None:
        name = f"phases, {instances} instances, {engine}, {load_text(load)}"
        step(name, partial(phases, speed, instances, *load, parameters(engine)), 22)

    step("engine alone, 32 rows", partial(speed.engine, "compute", 32), 12)
    serve(steps, speed, first_arms(speed), options.only, "first")
    phases_step(4, SHARED, ONE_BY_ONE)
    phases_step(4, SHARED, BATCHED)
    step("engine alone, 32 rows, 4 contexts of 1 process", partial(speed.engine, "compute", 32, 1, 4), 12)
    serve(steps, speed, further_arms(speed), options.only, "further")
    for rows in (8, 1):
        step(f"engine alone, {rows} rows", partial(speed.engine, "compute", rows), 12)
    for processes in (1, 4):
        step(
            f"session with copies, 32 rows, {processes} processes",
            partial(speed.engine, "session", 32, processes),
            20,
        )
    phases_step(4, OWN, BATCHED)
    phases_step(1, OWN, BATCHED)
    print(table(steps.document["steps"]), flush=True)
    return steps.finish()


if __name__ == "__main__":
    sys.exit(main())
