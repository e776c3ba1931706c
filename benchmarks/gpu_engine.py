"""An engine alone on the GPU, without Triton: ``python -m benchmarks.gpu_engine PLAN --rows 32 [--mode …]``.

``--mode compute``  batches back to back on ``--contexts`` streams, timed with CUDA events: what the silicon can do
``--mode session``  the backend's own session, one batch after the other with its copies: what an instance can do
                    when requests cost nothing

``--begin T`` (seconds of the system's clock) lets several processes measure the same window: what instances cost each
other on one GPU, since contexts of different processes take turns on it. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

TEMPLATE = Path(__file__).parents[1] / "triton_templates" / "tensorrt"


def _open(plan: Path) -> tuple[Any, Any]:
    sys.path.insert(0, str(TEMPLATE))
    from trt_device import Device
    from trt_engine import Engine, Log

    device = Device(0)
    return device, Engine(plan, Log(_report), "here")


def _report(text: str, is_error: bool) -> None:
    print("error:" if is_error else "warning:", text, file=sys.stderr)


def shapes_for(engine: Any, rows: int) -> tuple[tuple[int, ...], ...]:
    """Input shapes with ``rows`` rows and the profile's optimum elsewhere."""
    return tuple((rows, *tensor.ranges[0][1][1:]) for tensor in engine.inputs)


def fill(execution: Any) -> None:
    """Noise for floating-point inputs, zeros for others: indexes stay in range."""
    random = np.random.default_rng(0)
    for target in execution.inputs:
        if target.dtype.kind == "f":
            target[...] = random.standard_normal(target.shape)
        else:
            target[...] = 0


def compute(plan: Path, rows: int, contexts: int, seconds: float, begin: float) -> dict[str, Any]:
    """Batches back to back: ``contexts`` sessions of one engine, each enqueued up to a few batches ahead."""
    device, engine = _open(plan)
    from trt_session import Session

    sessions = [Session(engine, device, (0,), _report) for _ in range(contexts)]
    prepared = []
    for session in sessions:
        execution = session.prepare(shapes_for(engine, rows))
        fill(execution)
        session.run(execution)
        prepared.append((session, session._contexts[0]))
    runtime = device._rt
    flags = 0
    start, end = (device._call("cudaEventCreateWithFlags", flags) for _ in range(2))
    ahead = 8
    marks = [[device._call("cudaEventCreateWithFlags", 2) for _ in range(ahead)] for _ in prepared]  # no timing
    for _ in range(20):
        for session, context in prepared:
            context.execute_async_v3(int(session.stream))
    device.usable()
    late = _wait(begin)
    done = 0
    device._call("cudaEventRecord", start, prepared[0][0].stream)
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        slot = (done // contexts) % ahead
        for index, (session, context) in enumerate(prepared):
            if done >= ahead * contexts:
                runtime.cudaEventSynchronize(marks[index][slot])
            context.execute_async_v3(int(session.stream))
            runtime.cudaEventRecord(marks[index][slot], session.stream)
        done += contexts
    for session, _ in prepared[1:]:
        device.synchronize(session.stream)
    device._call("cudaEventRecord", end, prepared[0][0].stream)
    device.synchronize(prepared[0][0].stream)
    wall = time.perf_counter() - begun
    events = float(device._call("cudaEventElapsedTime", start, end)) / 1e3
    rate = done * rows / max(events, 1e-9)
    for session in sessions:
        session.close()
    return {"rows": rows, "contexts": contexts, "batches": done, "events_s": events, "wall_s": wall, "late_s": late,
            "per_s": rate}  # fmt: skip


def session(plan: Path, rows: int, seconds: float, begin: float, graphs: bool) -> dict[str, Any]:
    """One batch at a time with its copies and a synchronization, as one instance runs it."""
    device, engine = _open(plan)
    from trt_session import Session

    one = Session(engine, device, (0,), _report)
    shapes = shapes_for(engine, rows)
    fill(one.prepare(shapes))
    if graphs:
        one.capture(shapes)
    execution = one.prepare(shapes)
    for _ in range(20):
        one.run(execution)
    late = _wait(begin)
    batches = 0
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        one.run(execution)
        batches += 1
    wall = time.perf_counter() - begun
    one.close()
    return {"rows": rows, "graphs": execution.graph is not None, "batches": batches, "wall_s": wall,
            "per_s": batches * rows / wall, "late_s": late, "us_per_batch": 1e6 * wall / max(1, batches)}  # fmt: skip


def _wait(begin: float) -> float:
    """Seconds that this process came late."""
    late = max(0.0, time.time() - begin) if begin else 0.0
    while time.time() < begin:
        time.sleep(0.0005)
    return late


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--mode", choices=("compute", "session"), default="compute")
    parser.add_argument("--contexts", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--begin", type=float, default=0.0)
    parser.add_argument("--graphs", action="store_true")
    options = parser.parse_args()
    if options.mode == "compute":
        result = compute(options.plan, options.rows, options.contexts, options.seconds, options.begin)
    else:
        result = session(options.plan, options.rows, options.seconds, options.begin, options.graphs)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
