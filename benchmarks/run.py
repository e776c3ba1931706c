"""``make bench``: what this tool itself costs, as ratios within one run, and one table.

    python -m benchmarks.run [--write] [--only NAME]...

* ``start-up``: ``--help`` and ``inspect`` against a bare Python that prints nothing.
* ``ledger``: a durable record against a bare write with fsync of the same bytes.
* ``guardian``: a guarded process against a plain one.
* ``study``: of a study's wall clock, the part that is measurement windows; the rest is building, loading, validating,
  starting the server and writing down.

``--write`` puts the numbers under ``benchmarks/results/``. The load generator has a benchmark of its own,
``benchmarks.load_generator``, and the search one, ``benchmarks.search_simulation``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from optimizer import durable, processes
from optimizer.ledger import Ledger
from optimizer.testing.models import sleep_model

RESULTS = Path(__file__).parent / "results" / "overhead.json"
REPEATS = 7


def median_s(work: Callable[[], object], repeats: int = REPEATS) -> float:
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def python(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


def peak_memory_bytes(*arguments: str) -> int:
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code, sys.executable, *arguments], check=True, capture_output=True)
    return int(done.stdout) * 1024


def start_up() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        repository = Path(name)
        sleep_model("sleepy", service_s=0.001).write(repository)
        commands = {"help": ["-m", "optimizer", "--help"], "inspect": ["-m", "optimizer", "inspect", str(repository)]}
        bare = median_s(lambda: python("-c", "pass"))
        bare_bytes = peak_memory_bytes("-c", "pass")
        result: dict[str, Any] = {"bare_python_s": bare, "bare_python_bytes": bare_bytes}
        for label, command in commands.items():
            seconds, size = median_s(lambda command=command: python(*command)), peak_memory_bytes(*command)  # type: ignore[misc]
            result[label] = {
                "s": seconds, "over_bare_python": seconds / bare,
                "memory_bytes": size, "memory_over_bare_python": size / bare_bytes,
            }  # fmt: skip
        return result


def ledger() -> dict[str, Any]:
    record = {"throughput": 123.4, "percentiles_us": {"p50": 1.0, "p90": 2.0}, "text": "x" * 600}
    line = json.dumps(record).encode() + b"\n"
    count = 200
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        directory = Path(name)

        def bare() -> None:
            with (directory / "bare").open("ab", buffering=0) as file:
                for _ in range(count):
                    file.write(line)
                    os.fsync(file.fileno())

        with Ledger.open(directory / "study") as book:

            def ours() -> None:
                for index in range(count):
                    book.append("measurement", str(index), record)

            bare_s, ours_s = median_s(bare, 3), median_s(ours, 3)
        reading_s = median_s(lambda: Ledger.view(directory / "study"), 3)
        records = 3 * count
    return {
        "bare_write_us": bare_s / count * 1e6,
        "record_us": ours_s / count * 1e6,
        "over_bare_write": ours_s / bare_s,
        "reading_us_a_record": reading_s / records * 1e6,
    }


def guardian() -> dict[str, Any]:
    plain = median_s(lambda: subprocess.run(["true"], check=True))
    guarded = median_s(lambda: processes.start(["true"]).wait(10))
    return {"plain_s": plain, "guarded_s": guarded, "added_s": guarded - plain}


def study() -> dict[str, Any]:
    window_s = 0.5
    with tempfile.TemporaryDirectory() as name:
        repository, directory = Path(name) / "models", Path(name) / "study"
        sleep_model("sleepy", service_s=0.005).write(repository)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.perf_counter()
        python(
            "-m", "optimizer", "optimize", str(repository), "--model", "sleepy", "--family", "unchanged", "--quiet",
            "--routes", "-instances=[1|2|3]", "--tolerance", "exact<=0", "--synthetic-count", "16", "--study",
            str(directory), "--duration-s", str(window_s), "--warmup-s", "0.5", "--pairs", "6",
        )  # fmt: skip
        wall_s = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        windows = [entry.data for entry in Ledger.view(directory).records("measurement")]
        measured_s = sum(entry["duration_s"] for entry in windows)
        size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    return {
        "wall_s": wall_s,
        "windows": len(windows),
        "measured_s": measured_s,
        "measured_part": measured_s / wall_s,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "optimizer_peak_bytes": after.ru_maxrss * 1024,
        "study_bytes": size,
    }


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "start-up": start_up, "ledger": ledger, "guardian": guardian, "study": study,
}  # fmt: skip


def rows(part: str, numbers: dict[str, Any], prefix: str = "") -> list[str]:
    lines = []
    for key, value in numbers.items():
        if isinstance(value, dict):
            lines += rows(part, value, f"{key} ")
        else:
            lines.append(f"{part:10}  {prefix + key:34}  {value:,.4g}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS}")
    parser.add_argument("--only", action="append", choices=sorted(PARTS))
    options = parser.parse_args()
    document: dict[str, Any] = {
        "command": "python -m benchmarks.run " + " ".join(sys.argv[1:]),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    for part in options.only or PARTS:
        document[part] = PARTS[part]()
        print("\n".join(rows(part, document[part])), flush=True)
    if options.write:
        durable.write_json(RESULTS, document)
        print(f"written to {RESULTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
