"""``make gpu``: every piece that needs a GPU, one after the other, and one table last.

``python -m tests.gpu.run [--out DIR] [--seconds S] [--piece NAME …]``. Results stay in DIR as JSON, so that a call that
ends early is simply made again: finished steps are not repeated. Exit status: 0 all done, 1 something failed,
3 no GPU, or steps are left for another call.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PIECES = ("backend_correctness", "backend_speed", "generator_witness", "study")
PIECE_LIMIT_S = 540.0
"""No piece takes longer than nine minutes a call."""
GRACE_S = 45.0
"""Part of that limit: from when a piece should be done to when it is ended."""


def missing() -> str | None:
    """What a GPU run needs and this machine has not."""
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not os.environ.get("NVIDIA_VISIBLE_DEVICES"):
        return "no NVIDIA GPU: there is no /dev/nvidia0"
    for module, remedy in (("tensorrt", "tensorrt"), ("cuda", "cuda-python"), ("pytriton", "nvidia-pytriton")):
        if importlib.util.find_spec(module) is None:
            return f"Python has no module {module}: pip install {remedy} (see tests/gpu/requirements.txt)"
    return None


def run_piece(piece: str, out: Path, seconds: float) -> int:
    command = [sys.executable, "-m", f"tests.gpu.{piece}", "--out", str(out), "--seconds", str(round(seconds))]
    try:
        return subprocess.run(command, cwd=ROOT, timeout=seconds + GRACE_S, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"{piece}: ended after {seconds + GRACE_S:.0f} s", flush=True)
        return 3


def table(out: Path) -> str:
    """One line a step of every piece that has results."""
    lines = []
    for piece in PIECES:
        file = out / f"{piece}.json"
        if not file.exists():
            lines.append(f"{piece:22} not run")
            continue
        document = json.loads(file.read_text(encoding="utf-8"))
        for name, result in document["steps"].items():
            lines.append(f"{piece:22} {'ok    ' if result.get('ok') else 'FAILED'} {name:52} {summary(result)}")
    return "\n".join(lines)


def summary(result: dict[str, object]) -> str:
    if not result.get("ok"):
        return str(result.get("error", ""))[:110]
    if "not_buildable" in result:
        return f"no engine: {result['not_buildable']}"[:110]
    if "per_s" in result:
        return f"{result['per_s']:,.0f}/s" + (f", p99 {result['p99_us']:,.0f} us" if "p99_us" in result else "")
    if "worst" in result and "requests" in result:
        return f"{result['requests']} requests in {result['executions']} executions, worst {result['worst']}"[:110]
    return str(result.get("message", result.get("summary", "")))[:110]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "build" / "gpu"))
    parser.add_argument("--seconds", type=float, default=3600, help="for all pieces together")
    parser.add_argument("--piece", action="append", choices=PIECES)
    options = parser.parse_args()
    problem = missing()
    if problem:
        print(f"{problem}. 'make gpu' needs a GPU host; tests/gpu/host.sh prepares one.", file=sys.stderr)
        return 3
    options.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.seconds
    statuses = []
    for piece in options.piece or PIECES:
        if importlib.util.find_spec(f"tests.gpu.{piece}") is None:
            continue
        left = deadline - time.monotonic()
        seconds = min(PIECE_LIMIT_S, left) - GRACE_S
        statuses.append(run_piece(piece, options.out, seconds) if seconds > 30 else 3)
    print(table(options.out), flush=True)
    return 1 if any(status not in (0, 3) for status in statuses) else 3 if any(statuses) else 0


if __name__ == "__main__":
    sys.exit(main())
