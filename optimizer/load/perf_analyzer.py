"""perf_analyzer as the other witness: the same load, by NVIDIA's own tool, beside this project's numbers.

An external command (on PATH, or given); nothing of it is imported. It needs glibc 2.38.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from optimizer import processes
from optimizer.errors import EnvironmentFailure, InputError
from optimizer.records.measurement import Arrival, Measurement, Workload
from optimizer.records.samples import Sample
from optimizer.triton.client import to_wire

PERCENTILE_COLUMN = re.compile(r"^p(\d+(?:\.\d+)?) latency$")
MOST_TRIALS = 10


@dataclass(frozen=True)
class Witness:
    """What perf_analyzer said of one load. Latencies in µs; ``None``: not in its report."""

    concurrency: int | None
    rate_per_s: float | None
    throughput: float
    """Inferences (batch rows) per second."""
    latency_mean_us: float | None
    percentiles_us: Mapping[str, float]
    server_queue_us: float | None
    server_compute_us: float | None
    stable: bool = True
    """``False``: its measurements did not settle within its trials, and it says so."""


@dataclass(frozen=True)
class Comparison:
    """Ours over theirs, for one load."""

    throughput_ratio: float
    p50_ratio: float | None
    p99_ratio: float | None


def find(command: str | Path | None = None) -> Path:
    """The executable. Raises :class:`EnvironmentFailure`."""
    found = shutil.which(str(command or "perf_analyzer"))
    if found is None:
        raise EnvironmentFailure(
            f"{command or 'perf_analyzer'} is not there",
            field="perf_analyzer",
            remedy="pip install perf-analyzer (Linux with glibc 2.38), or name the executable",
        )
    return Path(found)


def run_perf_analyzer(
    grpc_url: str,
    model: str,
    samples: Sequence[Sample],
    datatypes: Mapping[str, str],
    workload: Workload,
    *,
    batched: bool,
    command: str | Path | None = None,
    window_s: float = 5.0,
    shared_memory: str | None = None,
    timeout_s: float = 600.0,
) -> Witness:
    """Runs it until it finds three windows stable, or after ten. ``batched``: the model batches, so the samples' first
    dimension is the batch. Raises :class:`EnvironmentFailure` with its last lines when it fails."""
    executable = find(command)
    with tempfile.TemporaryDirectory(prefix="perf-analyzer-") as name:
        directory = Path(name)
        data, report, log = directory / "data.json", directory / "report.csv", directory / "log"
        data.write_text(json.dumps(input_data(samples, datatypes, batched=batched)), encoding="utf-8")
        words = command_line(
            executable,
            model,
            workload,
            grpc_url=grpc_url,
            batch=common_batch(samples) if batched else 1,
            data=data,
            report=report,
            window_s=window_s,
            shared_memory=shared_memory,
        )
        with processes.start(words, log_path=log) as process:
            try:
                status = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                raise EnvironmentFailure(
                    f"perf_analyzer did not end within {timeout_s:g} s: {process.log_tail(5)}",
                    remedy="use a shorter window, or look at the server",
                ) from None
            tail = process.log_tail(15)
        if not report.exists():
            raise EnvironmentFailure(
                f"perf_analyzer ended with status {status} and no report: {tail}",
                where=executable,
                remedy="run perf_analyzer by hand with these options, or leave --check-with out",
            )
        witnesses = parse_report(report.read_text(encoding="utf-8"))
    if not witnesses:
        raise EnvironmentFailure(
            f"perf_analyzer measured nothing: {tail}",
            where=executable,
            remedy="run perf_analyzer by hand with these options, or leave --check-with out",
        )
    witness = witnesses[0]
    if status != 0 or "Failed to obtain stable measurement" in tail:
        return Witness(**{**witness.__dict__, "stable": False})
    return witness


def command_line(
    executable: Path,
    model: str,
    workload: Workload,
    *,
    grpc_url: str,
    batch: int,
    data: Path,
    report: Path,
    window_s: float,
    shared_memory: str | None = None,
) -> list[str]:
    words = [str(executable), "-m", model, "-i", "grpc", "-u", grpc_url, "-b", str(batch)]
    words += ["--input-data", str(data), "-f", str(report), "--verbose-csv"]
    words += ["--measurement-interval", str(round(window_s * 1000)), "--max-trials", str(MOST_TRIALS)]
    if workload.arrival is Arrival.CLOSED_LOOP:
        words += ["--concurrency-range", f"{workload.concurrency}:{workload.concurrency}"]
        words += ["--max-threads", str(max(16, workload.concurrency))]
    elif workload.arrival in (Arrival.POISSON, Arrival.CONSTANT) and workload.rate_per_s is not None:
        words += ["--request-rate-range", f"{workload.rate_per_s:g}:{workload.rate_per_s:g}"]
        words += ["--request-distribution", workload.arrival.value]
    else:
        raise InputError(
            f"perf_analyzer cannot play this load ({workload.label})",
            field="arrival",
            remedy="check with a closed loop, Poisson or constant arrivals",
        )
    if shared_memory:
        words += ["--shared-memory", shared_memory]
    return words


def input_data(samples: Sequence[Sample], datatypes: Mapping[str, str], *, batched: bool) -> dict[str, object]:
    """perf_analyzer's JSON: one entry per batch row, since it puts batches together itself, in order."""
    entries = []
    for sample in samples:
        for row in range(sample.batch if batched else 1):
            entry = {}
            for name, array in sample.inputs.items():
                part = array[row : row + 1] if batched else array
                content = base64.b64encode(to_wire(part, datatypes[name])).decode("ascii")
                shape = list(array.shape[1:] if batched else array.shape)
                entry[name] = {"content": {"b64": content}, "shape": shape}
            entries.append(entry)
    return {"data": entries}


def common_batch(samples: Sequence[Sample]) -> int:
    batches = {sample.batch for sample in samples}
    if len(batches) != 1:
        raise InputError(
            f"perf_analyzer sends one batch size, and the samples have {sorted(batches)}",
            field="samples",
            remedy="check with samples of one batch size",
        )
    return batches.pop()


def parse_report(text: str) -> list[Witness]:
    """The CSV of ``-f``, with or without ``--verbose-csv``. Columns that are missing are unknown; order is free."""
    witnesses = []
    for row in csv.DictReader(io.StringIO(text)):
        numbers = {name: _number(value) for name, value in row.items() if name is not None and isinstance(value, str)}
        throughput = numbers.get("Inferences/Second")
        if throughput is None:
            continue
        concurrency = numbers.get("Concurrency")
        percentiles = {
            f"p{match[1]}": value
            for name, value in numbers.items()
            if (match := PERCENTILE_COLUMN.match(name)) and value is not None
        }
        compute = [numbers.get(f"Server Compute {part}") for part in ("Input", "Infer", "Output")]
        witnesses.append(
            Witness(
                concurrency=None if concurrency is None else int(concurrency),
                rate_per_s=numbers.get("Request Rate"),
                throughput=throughput,
                latency_mean_us=numbers.get("Avg latency"),
                percentiles_us=percentiles,
                server_queue_us=numbers.get("Server Queue"),
                server_compute_us=None if None in compute else sum(part for part in compute if part is not None),
            )
        )
    return witnesses


def compare(ours: Measurement, theirs: Witness) -> Comparison:
    def ratio(name: str) -> float | None:
        mine, other = ours.percentiles_us.get(name), theirs.percentiles_us.get(name)
        return mine / other if mine is not None and other else None

    throughput = ours.throughput / theirs.throughput if theirs.throughput else math.nan
    return Comparison(throughput, ratio("p50"), ratio("p99"))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
