"""The parser, the inputs and the command line of perf_analyzer; a stand-in command where it is run."""

from __future__ import annotations

import base64
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from optimizer.errors import EnvironmentFailure, InputError
from optimizer.load.perf_analyzer import command_line, compare, find, input_data, parse_report, run_perf_analyzer
from optimizer.records.measurement import Arrival, Measurement, Workload
from optimizer.records.samples import Sample

# The report that perf_analyzer's documentation shows for -f.
DOCUMENTED = """\
Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,\
Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency
1,69.2,225,2148,64,206,11781,19,0,13891,18795,19753,21018
3,84.2,237,1768,21673,209,11742,17,0,35398,43984,47085,51701
"""
VERBOSE = """\
Request Rate,Inferences/Second,Server Queue,p50 latency,p99 latency,Avg latency,Avg GPU Utilization
12.5,12.4,64,13891,nan,14000,GPU-a:0.33;GPU-b:0.5;
"""


def test_the_documented_report() -> None:
    first, second = parse_report(DOCUMENTED)
    assert (first.concurrency, first.throughput, first.rate_per_s) == (1, 69.2, None)
    assert first.percentiles_us == {"p50": 13891, "p90": 18795, "p95": 19753, "p99": 21018}
    assert first.server_queue_us == 64
    assert first.server_compute_us == 206 + 11781 + 19
    assert first.latency_mean_us is None
    assert second.concurrency == 3


def test_a_report_with_other_columns() -> None:
    (row,) = parse_report(VERBOSE)
    assert (row.concurrency, row.rate_per_s, row.latency_mean_us) == (None, 12.5, 14000)
    assert row.percentiles_us == {"p50": 13891}
    assert row.server_compute_us is None, "unknown, not zero"
    assert parse_report("") == []


def words(workload: Workload, **more: str) -> str:
    return " ".join(
        command_line(
            Path("/bin/pa"), "m", workload, grpc_url="127.0.0.1:8001", batch=2, data=Path("d.json"),
            report=Path("r.csv"), window_s=2.5, **more,
        )
    )  # fmt: skip


def test_command_lines() -> None:
    closed = words(Workload(concurrency=32), shared_memory="system")
    assert closed == (
        "/bin/pa -m m -i grpc -u 127.0.0.1:8001 -b 2 --input-data d.json -f r.csv --verbose-csv "
        "--measurement-interval 2500 --max-trials 10 --concurrency-range 32:32 --max-threads 32 --shared-memory system"
    )
    assert "--request-rate-range 12.5:12.5 --request-distribution poisson" in words(
        Workload(Arrival.POISSON, rate_per_s=12.5)
    )
    with pytest.raises(InputError, match="cannot play this load"):
        words(Workload(Arrival.TRACE, trace="t"))


def test_inputs_are_the_same_bytes_row_by_row() -> None:
    samples = [Sample("a", {"X": np.arange(6, dtype=np.float32).reshape(2, 3)})]
    document = input_data(samples, {"X": "FP32"}, batched=True)["data"]
    assert isinstance(document, list)
    assert [entry["X"]["shape"] for entry in document] == [[3], [3]]
    assert base64.b64decode(document[1]["X"]["content"]["b64"]) == np.array([3, 4, 5], np.float32).tobytes()
    (whole,) = input_data(samples, {"X": "FP32"}, batched=False)["data"]  # type: ignore[misc]
    assert whole["X"]["shape"] == [2, 3]


STAND_IN = f"""#!{sys.executable}
import json, sys
words = sys.argv
data = json.load(open(words[words.index("--input-data") + 1]))["data"]
print("Failed to obtain stable measurement within 10 measurement windows", file=sys.stderr)
with open(words[words.index("-f") + 1], "w") as report:
    report.write("Concurrency,Inferences/Second,p50 latency\\n")
    report.write(words[words.index("--concurrency-range") + 1].split(":")[0] + "," + str(len(data)) + ",7\\n")
"""


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_running_it(tmp_path: Path) -> None:
    command = executable(tmp_path / "pa", STAND_IN)
    samples = [Sample(str(n), {"X": np.zeros((2, 3), np.float32)}) for n in range(5)]
    witness = run_perf_analyzer(
        "u", "m", samples, {"X": "FP32"}, Workload(concurrency=4), batched=True, command=command
    )
    assert (witness.concurrency, witness.throughput, witness.percentiles_us) == (4, 10, {"p50": 7})
    assert not witness.stable
    mixed = [*samples, Sample("m", {"X": np.zeros((1, 3), np.float32)})]
    with pytest.raises(InputError, match="one batch size"):
        run_perf_analyzer("u", "m", mixed, {"X": "FP32"}, Workload(), batched=True, command=command)


def test_a_failing_one_is_quoted(tmp_path: Path) -> None:
    command = executable(tmp_path / "pa", "#!/bin/sh\necho 'error: no such model' >&2\nexit 99\n")
    samples = [Sample("a", {"X": np.zeros((1, 3), np.float32)})]
    with pytest.raises(EnvironmentFailure, match="status 99 and no report: error: no such model"):
        run_perf_analyzer("u", "m", samples, {"X": "FP32"}, Workload(), batched=True, command=command)
    with pytest.raises(EnvironmentFailure, match="is not there"):
        find(tmp_path / "absent")


def test_comparison() -> None:
    ours = Measurement("c", Workload(), 0.0, 1.0, 1, 1, {}, 138.4, 1.0, {"p50": 13891.0})
    compared = compare(ours, parse_report(DOCUMENTED)[0])
    assert compared.throughput_ratio == pytest.approx(2.0)
    assert compared.p50_ratio == 1.0
    assert compared.p99_ratio is None
    assert math.isnan(compare(ours, parse_report(VERBOSE.replace("12.4", "0"))[0]).throughput_ratio)
