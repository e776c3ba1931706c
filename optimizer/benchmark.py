"""``bench``: a model as it stands, under load, at the serving level. Changes nothing in the repository.

The model is served by a sandbox of its own, or by a running server that is only asked to answer.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from optimizer.accuracy.inputs import load_samples
from optimizer.config import Settings
from optimizer.errors import EnvironmentFailure, InputError, ReferenceFailure
from optimizer.judge.statistics import bounds, summarize
from optimizer.load.generator import LoadGenerator, Window
from optimizer.load.honesty import code_of
from optimizer.load.peak import find_peak
from optimizer.load.perf_analyzer import compare as compare_witness
from optimizer.load.perf_analyzer import run_perf_analyzer
from optimizer.load.warmup import find_warmup
from optimizer.preparation import choose_launcher, chosen_gpu, gpu_id, random_samples, sandbox_options, workload_of
from optimizer.progress import Progress
from optimizer.records.codec import to_json
from optimizer.records.deployment import Deployment, ServerInfo
from optimizer.records.measurement import Arrival, Measurement, Workload
from optimizer.records.model import Model
from optimizer.records.objective import Objective, log_ratio
from optimizer.records.samples import SampleSet
from optimizer.report.numbers import megabytes, milliseconds, number, percent
from optimizer.repository.reader import model_of_config, read_model
from optimizer.sandbox.leftovers import benchmark_prefix
from optimizer.stand import Stand, model_files
from optimizer.triton.client import TritonClient, TritonError

COLUMNS = [
    "load", "inferences/s", "p50 ms", "p90 ms", "p99 ms", "requests", "queue µs", "input µs", "infer µs", "output µs",
    "mean batch", "memory MB", "client CPU",
]  # fmt: skip
PERCENTILES = ("p50", "p90", "p95", "p99")
PHASES = ("queue", "compute_input", "compute_infer", "compute_output")
INTERVAL = 0.95
"""Two-sided confidence of a comparison's interval."""


def benchmark(
    repository: Path | None,
    name: str,
    settings: Settings,
    *,
    server_url: str | None = None,
    compare: Path | None = None,
    compare_model: str | None = None,
    windows: int = 3,
    p99_ms: float | None = None,
    check_with: str | None = None,
    progress: Progress,
) -> dict[str, Any]:
    """A table row a load, with everything that was measured.

    Of ``repository``, in a sandbox, or of the running server at ``server_url`` (gRPC ``host:port``). ``compare`` is a
    second repository with the same model; ``compare_model`` a second model of the same repository or server. Raises
    :class:`ReferenceFailure` when the model does not load.
    """
    if check_with not in (None, "perf_analyzer"):
        raise InputError(f"unknown witness {check_with!r}", field="--check-with", remedy="use perf_analyzer")
    if p99_ms is not None and not 0 < p99_ms < math.inf:
        raise InputError(f"{p99_ms:g} ms cannot be met", field="--p99-ms", remedy="give a bound above 0")
    if (repository is None) == (server_url is None):
        raise InputError("one of a repository and --server-url is needed", field="REPO", remedy="give exactly one")
    if compare is not None and server_url is not None:
        raise InputError(
            "a repository cannot be compared with a running server", field="--compare", remedy="use --compare-model"
        )
    bench: _Bench
    with contextlib.ExitStack() as stack:
        if server_url is not None:
            bench = stack.enter_context(_running_server(server_url, name, settings))
        else:
            assert repository is not None
            bench = stack.enter_context(_sandbox(repository, name, settings))
        document = _measure(bench, settings, windows, progress)
        document["repository"] = str(repository) if repository is not None else None
        if p99_ms is not None:
            _peak(document, bench, settings, p99_ms, progress)
        if compare is not None or compare_model is not None:
            other = bench.add(compare or repository, compare_model or name)
            _compare(document, bench, other, settings, windows, progress)
        if check_with is not None:
            _witness(document, bench, settings, progress)
    return document


class _Bench:
    """A server with a load generator, and the model under test on it."""

    def __init__(self, model: Model, samples: SampleSet, served_as: str, info: ServerInfo) -> None:
        self.model = model
        self.samples = samples
        self.served_as = served_as
        self.info = info

    @property
    def datatypes(self) -> dict[str, str]:
        return {spec.name: spec.datatype for spec in self.model.inputs}

    def load(self, served_as: str, workload: Workload) -> Measurement:
        raise NotImplementedError

    def add(self, repository: Path | None, name: str) -> str:
        """Makes a second model ready for a comparison; returns the name it is served under."""
        raise NotImplementedError


class _SandboxBench(_Bench):
    def __init__(self, stand: Stand, model: Model, samples: SampleSet, settings: Settings) -> None:
        super().__init__(model, samples, "bench", stand.info)
        self._stand = stand
        self._settings = settings
        _serve(stand, model, self.served_as)
        stand.prepare(samples, self.datatypes, batched=model.batched)

    def load(self, served_as: str, workload: Workload) -> Measurement:
        window = self._stand.load(served_as, workload, served_as, warmup_s=self._settings.load.warmup_s)
        return _complete(window, self.info.grpc_url, "look at its last words: " + self._stand.sandbox.log_tail(3))

    def add(self, repository: Path | None, name: str) -> str:
        if repository is None:
            raise InputError("a second model needs a repository", field="--compare", remedy="name its repository")
        _serve(self._stand, read_model(repository, name, config_name=self._settings.config_name), "bench_other")
        return "bench_other"


class _RunningBench(_Bench):
    def __init__(self, generator: LoadGenerator, client: TritonClient, model: Model, samples: SampleSet) -> None:
        info = ServerInfo("running", client.url, "", None, client.server_version())
        super().__init__(model, samples, model.name, info)
        self._client = client
        self._generator = generator
        self._ramp_s: dict[str, float] = {}
        generator.prepare(samples.samples, self.datatypes, batched=model.batched)

    def load(self, served_as: str, workload: Workload) -> Measurement:
        if served_as not in self._ramp_s:
            found = find_warmup(self._generator, served_as, workload, candidate_id=served_as)
            self._ramp_s[served_as] = found.ramp_s
        ramp_s = self._ramp_s[served_as]
        window = self._generator.run(served_as, workload, candidate_id=served_as, warmup_s=ramp_s)
        return _complete(window, self.info.grpc_url, "look at the server's log")

    def add(self, repository: Path | None, name: str) -> str:  # noqa: ARG002 - a running server has its own
        _served_model(self._client, name)
        return name


@contextlib.contextmanager
def _sandbox(repository: Path, name: str, settings: Settings) -> Iterator[_Bench]:
    model = read_model(repository, name, config_name=settings.config_name)
    samples = bench_samples(model, settings)
    launcher, _ = choose_launcher(settings)
    with tempfile.TemporaryDirectory(prefix=benchmark_prefix()) as directory:
        options = replace(sandbox_options(settings, Path(directory), chosen_gpu(settings)), workdir=Path(directory))
        with Stand(
            launcher, options, client_processes=settings.load.processes, transport=settings.load.transport,
            shared_memory=settings.load.shared_memory,
        ) as stand:  # fmt: skip
            yield _SandboxBench(stand, model, samples, settings)


@contextlib.contextmanager
def _running_server(url: str, name: str, settings: Settings) -> Iterator[_Bench]:
    """Nothing is loaded, unloaded or changed on it."""
    if settings.load.transport == "http":
        raise InputError("a running server is reached by gRPC", field="--transport", remedy="leave --transport out")
    with TritonClient(url) as client:
        if not client.server_live():
            raise EnvironmentFailure(
                "no Triton server answers", where=url, remedy="give the gRPC host:port of a server"
            )
        model = _served_model(client, name)
        samples = bench_samples(model, settings)
        with (
            tempfile.TemporaryDirectory(prefix=benchmark_prefix()) as directory,
            LoadGenerator(
                url, processes=settings.load.processes, directory=Path(directory),
                shared_memory="system" if settings.load.shared_memory else None, gpu=gpu_id(chosen_gpu(settings)),
            ) as generator,
        ):  # fmt: skip
            yield _RunningBench(generator, client, model, samples)


def _served_model(client: TritonClient, name: str) -> Model:
    try:
        return model_of_config(name, client.model_config(name))
    except TritonError as error:
        ready = sorted({row[0] for row in client.repository_index(ready_only=True)})
        raise InputError(
            f"the server does not serve it: {error.problem}", where=client.url, field=name,
            remedy="models that are ready: " + (", ".join(ready) or "none"),
        ) from None  # fmt: skip


def bench_samples(model: Model, settings: Settings) -> SampleSet:
    inputs = settings.inputs
    if inputs.file is not None:
        return load_samples(inputs.file, model, name="bench")
    return random_samples(model, settings)


def _serve(stand: Stand, model: Model, private_name: str) -> None:
    version = model.live_version
    if version is None:
        raise InputError("no version is served", where=model.directory, remedy="see `inspect`")
    files = model_files(model.directory, version.path, version.number)
    deployment = Deployment(private_name, model.effective_config_text, files, model.name, version.number)
    failure = stand.serve(deployment, pin=True)
    if failure is not None:
        raise ReferenceFailure(
            f"does not load: {failure.message}", where=model.directory, field=failure.code, remedy="see `inspect`"
        )


def workloads(settings: Settings) -> list[Workload]:
    base = workload_of(settings)
    if base.arrival is not Arrival.CLOSED_LOOP:
        return [base]
    return [replace(base, concurrency=concurrency) for concurrency in settings.load.concurrency]


def _measure(bench: _Bench, settings: Settings, windows: int, progress: Progress) -> dict[str, Any]:
    rows = []
    for workload in workloads(settings):
        progress("stage", text=f"{bench.model.name}: {workload.label}")
        measured = [bench.load(bench.served_as, workload) for _ in range(windows)]
        _refuse_unanswered(bench.model, measured)
        rows.append(_row(workload, measured))
    info = bench.info
    return {
        "schema": 1,
        "kind": "table",
        "model": bench.model.name,
        "lines": [
            f"{bench.model.name} on {info.launcher} Triton {info.version}, {windows} windows a load",
            *_said(bench),
        ],
        "columns": COLUMNS,
        "rows": [row["cells"] for row in rows],
        "loads": [{key: value for key, value in row.items() if key != "cells"} for row in rows],
        "server": to_json(info),
        # One of each code: windows differ in their numbers only.
        "notes": list({code_of(text): f"warning: {text}" for row in rows for text in row["warnings"]}.values()),
    }


def _complete(window: Window, url: str, remedy: str) -> Measurement:
    """Raises :class:`EnvironmentFailure` for a window that ended early because its server has gone."""
    if code_of(window.aborted) == "server_gone":
        raise EnvironmentFailure(f"the server went away under load: {window.aborted}", where=url, remedy=remedy)
    return window.measurement


def _refuse_unanswered(model: Model, measured: Sequence[Measurement]) -> None:
    failures: Counter[str] = Counter()
    for one in measured:
        failures.update(one.failures)
    if failures and not any(one.requests for one in measured):
        raise ReferenceFailure(
            f"not one request was answered: {failures.most_common(1)[0][0].strip()}",
            where=model.name,
            remedy="mend the model, or give inputs that it takes with --inputs",
        )


def _row(workload: Workload, measured: Sequence[Measurement]) -> dict[str, Any]:
    server = [one.server for one in measured if one.server is not None]
    inferences = sum(one.inference_count for one in server)
    executions = sum(one.execution_count for one in server)
    phases = {
        phase: sum(getattr(one, f"{phase}_us") for one in server) / inferences if inferences else None
        for phase in PHASES
    }
    percentiles = {name: _median(one.percentiles_us.get(name) for one in measured) for name in PERCENTILES}
    cpu = _median(one.resources.client_cpu for one in measured)
    memory = _median(one.resources.server_rss_bytes for one in measured)
    throughput = statistics.median(one.throughput for one in measured)
    failures: dict[str, int] = {}
    for one in measured:
        for reason, count in one.failures.items():
            failures[reason] = failures.get(reason, 0) + count
    return {
        "cells": [
            workload.label, number(throughput, 1), *(milliseconds(percentiles[name]) for name in ("p50", "p90", "p99")),
            str(sum(one.requests for one in measured)), *(number(value, 0) for value in phases.values()),
            number(inferences / executions if executions else None, 2), megabytes(memory),
            "unknown" if cpu is None else f"{cpu:.0%}",
        ],
        "workload": to_json(workload),
        "throughput": throughput,
        "throughput_range": [min(one.throughput for one in measured), max(one.throughput for one in measured)],
        "requests_per_s": sum(one.requests for one in measured) / sum(one.duration_s for one in measured),
        "percentiles_us": percentiles,
        "phases_us": phases,
        "client_cpu_us_per_request": _median(one.resources.client_cpu_us_per_request for one in measured),
        "failures": failures,
        "usable": all(one.usable for one in measured),
        "warnings": sorted({warning for one in measured for warning in one.warnings}),
        "windows": [to_json(one) for one in measured],
    }  # fmt: skip


def _said(bench: _Bench) -> list[str]:
    lines = [f"inputs: {len(bench.samples)} samples, {bench.samples.origin}"]
    if bench.samples.synthetic:
        lines.append("synthetic inputs: speed may depend on values; give real ones with --inputs")
    if bench.model.backend in bench.info.python_backends:
        lines.append(
            f"served by a python-based {bench.model.backend} backend: absolute numbers are not the native one's"
        )
    return lines


def _compare(
    document: dict[str, Any], bench: _Bench, other: str, settings: Settings, windows: int, progress: Progress
) -> None:
    """Pairs of windows of both, in ABBA order; the ratio with its two-sided interval."""
    workload = workloads(settings)[0]
    pairs = max(4, 2 * windows)
    ratios = []
    for index in range(pairs):
        arms = [bench.served_as, other] if index % 2 == 0 else [other, bench.served_as]
        measured = {arm: bench.load(arm, workload) for arm in arms}
        ratio = log_ratio(Objective(), measured[bench.served_as], measured[other])
        if ratio is not None and all(one.usable for one in measured.values()):
            ratios.append(ratio)
        progress("stage", text=f"pair {index + 1} of {pairs}")
    summary = summarize(ratios)
    lower, upper = bounds(summary, (1 - INTERVAL) / 2)
    known = math.isfinite(lower)
    comparison: dict[str, Any] = {
        "other": other,
        "ratio": math.exp(summary.mean) if ratios else None,
        "lower": math.exp(lower) if known else None,
        "upper": math.exp(upper) if known else None,
        "confidence": INTERVAL,
        "pairs": summary.n,
        "workload": workload.label,
    }
    document["comparison"] = comparison
    document["notes"].append(
        f"the other against this: {percent(comparison['ratio'])} throughput, {INTERVAL:.0%} interval "
        f"{percent(comparison['lower'])} to {percent(comparison['upper'])}, {summary.n} pairs at {workload.label}"
        if known
        else "comparison: too few usable pairs for an interval"
    )


def _peak(document: dict[str, Any], bench: _Bench, settings: Settings, p99_ms: float, progress: Progress) -> None:
    def measure(workload: Workload) -> Measurement:
        progress("stage", text=f"peak: {workload.label}")
        return bench.load(bench.served_as, workload)

    start = max(1.0, document["loads"][0]["requests_per_s"] / 4)
    peak = find_peak(measure, workload_of(settings), bound_us=p99_ms * 1e3, start_rate=start)
    document["peak"] = to_json(peak)
    found = "none was found" if peak.rate_per_s is None else f"{peak.rate_per_s:.1f} requests/s"
    document["notes"].append(
        f"highest rate with p99 <= {p99_ms:g} ms: {found} (limited by {peak.limited_by}, {len(peak.probes)} probes)"
    )


def _witness(document: dict[str, Any], bench: _Bench, settings: Settings, progress: Progress) -> None:
    """perf_analyzer on every load, beside what was measured here."""
    document["perf_analyzer"] = []
    for workload, ours in zip(workloads(settings), document["loads"], strict=True):
        progress("stage", text=f"perf_analyzer: {workload.label}")
        witness = run_perf_analyzer(
            bench.info.grpc_url, bench.served_as, bench.samples.samples, bench.datatypes, workload,
            batched=bench.model.batched, shared_memory="system" if settings.load.shared_memory else None,
        )  # fmt: skip
        compared = compare_witness(bench.load(bench.served_as, workload), witness)
        document["perf_analyzer"].append({"witness": to_json(witness), "ratios": to_json(compared)})
        document["notes"].append(
            f"perf_analyzer at {workload.label}: {witness.throughput:,.1f}/s; this tool: {ours['throughput']:,.1f}/s "
            f"(right after it: ratio {compared.throughput_ratio:.3f})"
        )


def _median(values: Any) -> float | None:
    known = [float(value) for value in values if value is not None]
    return statistics.median(known) if known else None
