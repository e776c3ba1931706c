"""``bench``: a model as it stands, under load, at the serving level. Changes nothing in the repository."""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from optimizer.accuracy.inputs import load_samples
from optimizer.accuracy.synthetic import parse_int_range, parse_shape, synthetic_samples
from optimizer.config import Settings
from optimizer.errors import InputError, ReferenceFailure
from optimizer.judge.statistics import bounds, summarize
from optimizer.preparation import choose_launcher, chosen_gpu, sandbox_options, workload_of
from optimizer.progress import Progress
from optimizer.records.codec import to_json
from optimizer.records.deployment import Deployment
from optimizer.records.measurement import Arrival, Measurement, Workload
from optimizer.records.model import Model
from optimizer.records.objective import Objective, log_ratio
from optimizer.records.samples import SampleSet
from optimizer.report.numbers import megabytes, milliseconds, number, percent
from optimizer.repository.reader import read_model
from optimizer.stand import Stand, model_files

COLUMNS = [
    "load", "inferences/s", "p50 ms", "p90 ms", "p99 ms", "requests", "queue µs", "input µs", "infer µs", "output µs",
    "mean batch", "memory MB", "client CPU",
]  # fmt: skip


def benchmark(
    repository: Path,
    name: str,
    settings: Settings,
    *,
    compare: Path | None = None,
    windows: int = 3,
    p99_ms: float | None = None,
    check_with: str | None = None,
    progress: Progress,
) -> dict[str, Any]:
    """A table row a load, with everything measured. Raises :class:`ReferenceFailure` when the model does not load."""
    if check_with not in (None, "perf_analyzer"):
        raise InputError(f"unknown witness {check_with!r}", field="--check-with", remedy="use perf_analyzer")
    model = read_model(repository, name, config_name=settings.config_name)
    samples = bench_samples(model, settings)
    with bench_stand(settings) as stand:
        serve(stand, model, "bench")
        stand.prepare(samples, {spec.name: spec.datatype for spec in model.inputs})
        rows: list[dict[str, Any]] = []
        for workload in workloads(settings):
            progress("stage", text=f"{name}: {workload.label}")
            measured = [
                stand.load("bench", workload, name, warmup_s=settings.load.warmup_s).measurement for _ in range(windows)
            ]
            rows.append(_row(workload, measured))
        document: dict[str, Any] = {
            "schema": 1,
            "kind": "table",
            "model": name,
            "repository": str(repository),
            "lines": [
                f"{name} on {stand.info.launcher} Triton {stand.info.version}, {windows} windows a load",
                *_said(samples, stand),
            ],
            "columns": COLUMNS,
            "rows": [row["cells"] for row in rows],
            "loads": [{key: value for key, value in row.items() if key != "cells"} for row in rows],
            "server": to_json(stand.info),
            "notes": sorted({f"warning: {warning}" for row in rows for warning in row["warnings"]}),
        }
        if p99_ms is not None:
            _peak(document, stand, settings, p99_ms, progress)
        if compare is not None:
            _compare(
                document,
                stand,
                read_model(compare, name, config_name=settings.config_name),
                settings,
                windows,
                progress,
            )
        if check_with is not None:
            _witness(document, stand, model, samples, settings, progress)
    return document


def bench_samples(model: Model, settings: Settings) -> SampleSet:
    inputs = settings.inputs
    if inputs.file is not None:
        return load_samples(inputs.file, model, name="bench")
    return synthetic_samples(
        model, inputs.synthetic_count, inputs.seed,
        shapes=dict(parse_shape(text) for text in inputs.shapes),
        int_ranges=dict(parse_int_range(text) for text in inputs.int_ranges),
    )  # fmt: skip


@contextlib.contextmanager
def bench_stand(settings: Settings) -> Iterator[Stand]:
    launcher, _ = choose_launcher(settings)
    with tempfile.TemporaryDirectory(prefix="triton-optimizer-bench-") as directory:
        options = replace(sandbox_options(settings, Path(directory), chosen_gpu(settings)), workdir=Path(directory))
        with Stand(
            launcher, options, client_processes=settings.load.processes, transport=settings.load.transport,
            shared_memory=settings.load.shared_memory,
        ) as stand:  # fmt: skip
            yield stand


def serve(stand: Stand, model: Model, private_name: str) -> None:
    version = model.live_version
    if version is None:
        raise InputError("no version is served", where=model.directory, remedy="see `inspect`")
    files = model_files(model.directory, version.path, version.number)
    failure = stand.serve(
        Deployment(private_name, model.effective_config_text, files, model.name, version.number), pin=True
    )
    if failure is not None:
        raise ReferenceFailure(
            f"does not load: {failure.message}", where=model.directory, field=failure.code, remedy="see `inspect`"
        )


def workloads(settings: Settings) -> list[Workload]:
    base = workload_of(settings)
    if base.arrival is not Arrival.CLOSED_LOOP:
        return [base]
    return [replace(base, concurrency=concurrency) for concurrency in settings.load.concurrency]


def _row(workload: Workload, measured: Sequence[Measurement]) -> dict[str, Any]:
    best = list(measured)
    server = [one.server for one in best if one.server is not None]
    requests = sum(one.inference_count for one in server)
    phases = {
        phase: sum(getattr(one, f"{phase}_us") for one in server) / requests if requests else None
        for phase in ("queue", "compute_input", "compute_infer", "compute_output")
    }
    executions = sum(one.execution_count for one in server)
    percentiles = {
        name: _median([one.percentiles_us[name] for one in best if name in one.percentiles_us])
        for name in ("p50", "p90", "p95", "p99")
    }
    memory = _median([one.resources.server_rss_bytes for one in best if one.resources.server_rss_bytes is not None])
    cpu = _median([one.resources.client_cpu for one in best if one.resources.client_cpu is not None])
    throughput = statistics.median(one.throughput for one in best)
    failures: dict[str, int] = {}
    for one in best:
        for reason, count in one.failures.items():
            failures[reason] = failures.get(reason, 0) + count
    return {
        "cells": [
            workload.label, number(throughput, 1), *(milliseconds(percentiles[name]) for name in ("p50", "p90", "p99")),
            str(sum(one.requests for one in best)), *(number(value, 0) for value in phases.values()),
            number(requests / executions if executions else None, 2), megabytes(memory),
            "unknown" if cpu is None else f"{cpu:.0%}",
        ],
        "workload": to_json(workload),
        "throughput": throughput,
        "throughput_range": [min(one.throughput for one in best), max(one.throughput for one in best)],
        "percentiles_us": percentiles,
        "phases_us": phases,
        "failures": failures,
        "usable": all(one.usable for one in best),
        "warnings": sorted({warning for one in best for warning in one.warnings}),
        "windows": [to_json(one) for one in best],
    }  # fmt: skip


def _said(samples: SampleSet, stand: Stand) -> list[str]:
    lines = [f"inputs: {len(samples)} samples, {samples.origin}"]
    if samples.synthetic:
        lines.append("synthetic inputs: speed may depend on values; give real ones with --inputs")
    if stand.info.python_backends:
        lines.append(
            "served by python-based backends where the native ones are absent: " + ", ".join(stand.info.python_backends)
        )
    return lines


def _compare(
    document: dict[str, Any], stand: Stand, other: Model, settings: Settings, windows: int, progress: Progress
) -> None:
    """Pairs of windows of both, in ABBA order; the ratio with its two-sided interval."""
    serve(stand, other, "bench_other")
    workload = workloads(settings)[0]
    ratios = []
    pairs = max(4, 2 * windows)
    for index in range(pairs):
        arms = ["bench", "bench_other"] if index % 2 == 0 else ["bench_other", "bench"]
        measured = {arm: stand.load(arm, workload, arm, warmup_s=settings.load.warmup_s).measurement for arm in arms}
        ratio = log_ratio(Objective(), measured["bench"], measured["bench_other"])
        if ratio is not None and measured["bench"].usable and measured["bench_other"].usable:
            ratios.append(ratio)
        progress("stage", text=f"pair {index + 1} of {pairs}")
    summary = summarize(ratios)
    lower, upper = bounds(summary, 0.025)
    document["comparison"] = {
        "other": str(other.directory),
        "ratio": math.exp(summary.mean) if ratios else None,
        "lower": math.exp(lower) if math.isfinite(lower) else None,
        "upper": math.exp(upper) if math.isfinite(upper) else None,
        "confidence": 0.95,
        "pairs": summary.n,
        "workload": workload.label,
    }
    comparison = document["comparison"]
    if comparison["lower"] is None:
        document["notes"].append("comparison: too few usable pairs for an interval")
    else:
        document["notes"].append(
            f"{other.directory} against this: {percent(comparison['ratio'])} throughput, 95% interval "
            f"{percent(comparison['lower'])} to {percent(comparison['upper'])}, {summary.n} pairs at {workload.label}"
        )


def _peak(document: dict[str, Any], stand: Stand, settings: Settings, p99_ms: float, progress: Progress) -> None:
    from optimizer.load.peak import find_peak

    start = max(1.0, document["loads"][0]["throughput"] / 4)

    def measure(workload: Workload) -> Measurement:
        progress("stage", text=f"peak: {workload.label}")
        return stand.load("bench", workload, "peak", warmup_s=settings.load.warmup_s).measurement

    peak = find_peak(measure, workload_of(settings), bound_us=p99_ms * 1e3, start_rate=start)
    document["peak"] = to_json(peak)
    found = "none was found" if peak.rate_per_s is None else f"{peak.rate_per_s:.1f} requests/s"
    document["notes"].append(
        f"highest rate with p99 <= {p99_ms:g} ms: {found} (limited by {peak.limited_by}, {len(peak.probes)} probes)"
    )


def _witness(
    document: dict[str, Any], stand: Stand, model: Model, samples: SampleSet, settings: Settings, progress: Progress
) -> None:
    from optimizer.load.perf_analyzer import run_perf_analyzer

    progress("stage", text="perf_analyzer on the same load")
    workload = workloads(settings)[0]
    witness = run_perf_analyzer(
        stand.info.grpc_url, "bench", samples.samples, {spec.name: spec.datatype for spec in model.inputs}, workload,
        batched=model.batched, shared_memory="system" if settings.load.shared_memory else None,
    )  # fmt: skip
    document["perf_analyzer"] = to_json(witness)
    ours = document["loads"][0]["throughput"]
    document["notes"].append(
        f"perf_analyzer at {workload.label}: {witness.throughput:,.1f}/s; this tool: {ours:,.1f}/s "
        f"(ratio {ours / witness.throughput:.3f})"
    )


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
