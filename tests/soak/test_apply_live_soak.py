"""100 rounds of apply and rollback on a live server under 200 requests/s. Writes ``benchmarks/results/``.

Run by ``make soak``; TRITON_OPTIMIZER_ROUNDS sets another number of rounds.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "system"))

from live_rounds import NAME, rounds, study, write_model
from production_server import production_server

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "write_back_live.json"
ROUNDS = int(os.environ.get("TRITON_OPTIMIZER_ROUNDS", "100"))
RATE_PER_S = 200.0


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_hundred_rounds_lose_no_request(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_model(repository)
    preparation = study(repository, tmp_path / "study")
    started = time.time()
    with production_server(repository, tmp_path / "server", models=[NAME]) as server:
        traffic, rows = rounds(preparation, server.url, ROUNDS, RATE_PER_S)
        last = server.ready(NAME)
        triton = server.client.server_version()
    latencies = np.array(traffic.latencies_ms)
    document = {
        "command": "make soak (tests/soak/test_apply_live_soak.py)",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "triton": triton,
        "model": "python backend, echo of two numbers, 1 instance (2 in the new version)",
        "rounds": len(rows),
        "rate_per_s": RATE_PER_S,
        "requests": traffic.sent,
        "failed": sum(traffic.failures.values()),
        "failures": dict(traffic.failures),
        "wrong": len(traffic.wrong),
        "answers_by_version": dict(sorted(traffic.versions.items(), key=lambda row: int(row[0]))),
        "sent_late": traffic.late,
        "latency_ms": {f"p{p:g}": round(float(np.percentile(latencies, p)), 3) for p in (50, 90, 99, 99.9, 100)},
        "trees_restored": sum(row["same_tree"] for row in rows),
        "ways": sorted({row["way"] for row in rows}),
        "apply_s": round(float(np.median([row["apply_s"] for row in rows])), 2),
        "rollback_s": round(float(np.median([row["rollback_s"] for row in rows])), 2),
        "minutes": round((time.time() - started) / 60, 1),
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    assert last == [1]
    assert document["failed"] == 0, traffic.failures
    assert document["wrong"] == 0, traffic.wrong[:5]
    assert document["trees_restored"] == len(rows)
    assert sum(traffic.versions.values()) == traffic.sent
