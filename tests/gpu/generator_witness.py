"""The load generator beside perf_analyzer: ``python -m tests.gpu.generator_witness --out DIR [--seconds S]``.

:mod:`benchmarks.generator_witness` in steps, with shorter windows: all of it takes about seven minutes. Needs no GPU,
but a machine with more cores than the load takes, and glibc 2.38 for perf_analyzer.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from functools import partial
from pathlib import Path

from benchmarks.generator_witness import (
    CONCURRENCIES,
    INSTANCES,
    SERVICE_MS,
    Witnesses,
    estimated_s,
    load_name,
    table,
)
from optimizer.load.generator import LoadGenerator
from tests.gpu import serving
from tests.gpu.results import Steps

TELLING = (8, 1, 64, 32)
"""The concurrencies that come first."""
SHORTEST_WINDOW_S = 0.5


def wrapped_perf_analyzer(folder: Path) -> Path | None:
    """perf_analyzer without this interpreter's library path, which may hold another libstdc++."""
    tool = shutil.which("perf_analyzer")
    if tool is None:
        return None
    script = folder / "perf_analyzer"
    script.write_text(f'#!/bin/sh\nexec env -u LD_LIBRARY_PATH -u PYTHONHOME "{tool}" "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return script


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=500)
    options = parser.parse_args()
    facts = {"cores": os.cpu_count(), "instances": INSTANCES}
    try:
        facts |= serving.facts()
    except ImportError:
        facts["tensorrt"] = None
    steps = Steps(options.out, "generator_witness", options.seconds, facts)
    folder = options.out / "work" / "witness"
    folder.mkdir(parents=True, exist_ok=True)
    others = tuple(concurrency for concurrency in CONCURRENCIES if concurrency not in TELLING)
    # No GPU for these models: the server then starts in a second.
    with (
        serving.start(folder / "server", None) as sandbox,
        LoadGenerator(sandbox.info.grpc_url, directory=folder / "requests") as generator,
    ):
        witnesses = Witnesses(sandbox, generator, folder, wrapped_perf_analyzer(folder))
        steps.document["facts"]["client_processes"] = generator.processes
        for concurrencies in (TELLING, others):
            for service_ms in SERVICE_MS:
                for concurrency in concurrencies:
                    steps.step(
                        load_name(service_ms, concurrency),
                        partial(witnesses.compare, service_ms, concurrency, SHORTEST_WINDOW_S),
                        reserve_s=estimated_s(service_ms, concurrency, SHORTEST_WINDOW_S),
                    )
    print(table(steps.document["steps"]), flush=True)
    return steps.finish()


if __name__ == "__main__":
    sys.exit(main())
