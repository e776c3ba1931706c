"""What a canary compares, how, and by which margins. Written once as ``plan.json``; every start reads it again."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from optimizer.accuracy.tolerances import parse_tolerances
from optimizer.canary.judge import Rules, comparisons_needed
from optimizer.durable import sha256_file, sha256_tree, write_json
from optimizer.errors import EnvironmentFailure, InputError
from optimizer.records.codec import CodecError, from_json, to_json
from optimizer.records.measurement import Arrival, Workload

SCHEMA = 1
PLAN_FILE = "plan.json"
SHADOW = "shadow"
DEFAULT_STEPS = "shadow,5,25,50,100"
MARGINS = {"p50": 0.05, "p90": 0.05, "p99": 0.05, "throughput": 0.03}
LATER_COMPARISONS = 459
"""Answers compared in a step after the first: a fault in 1 of 100 shows with 99% odds."""


@dataclass(frozen=True)
class Endpoint:
    """One arm: a model on a server. ``grpc_url`` is ``host:port``; the others are needed only by what uses them."""

    grpc_url: str
    model: str
    http_url: str | None = None
    metrics_url: str | None = None


@dataclass(frozen=True)
class ProxyPlan:
    """Who splits the users' traffic. ``directory`` is nginx's; ``command`` holds ``{weight}`` for any other."""

    directory: str | None = None
    reload: tuple[str, ...] = ()
    http_listen: str = "127.0.0.1:8080"
    grpc_listen: str = "127.0.0.1:8081"
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class CanaryPlan:
    """Durations in seconds. ``steps`` are ``shadow`` or percentages in growing order, the last one 100."""

    baseline: Endpoint
    candidate: Endpoint
    steps: tuple[str, ...]
    tolerances: tuple[str, ...]
    margins: dict[str, float]
    workload: Workload
    inputs: str | None = None
    """Samples' file; ``None``: synthetic ones."""
    inputs_sha256: str | None = None
    trace_sha256: str | None = None
    """Of the file that ``workload.trace`` names."""
    synthetic_count: int = 1024
    shapes: tuple[str, ...] = ()
    int_ranges: tuple[str, ...] = ()
    study: str | None = None
    """The study whose winner is the candidate; the tool then makes and removes the second model."""
    repository: str | None = None
    """The server's repository as a path here, where ``study`` is given."""
    proxy: ProxyPlan | None = None
    comparisons: int = 4603
    confidence: float = 0.95
    detect_confidence: float = 0.99
    min_pairs: int = 4
    max_pairs: int = 32
    max_failures: int = 0
    memory_margin_bytes: float = 1024.0
    check_memory: bool = True
    client_processes: int | None = None
    schema: int = SCHEMA

    @property
    def shared(self) -> bool:
        """Both arms are models of one server."""
        return self.baseline.grpc_url == self.candidate.grpc_url

    @property
    def synthetic(self) -> bool:
        return self.inputs is None

    def weight_of(self, step: str) -> int:
        return 0 if step == SHADOW else int(step)

    def workload_at(self, step: str) -> Workload:
        """The slice of the load that each arm gets at that step: equal for both, the step's part of the whole."""
        part = self.weight_of(step) / 100 or 1.0
        rate = self.workload.rate_per_s
        return replace(
            self.workload,
            concurrency=max(1, round(self.workload.concurrency * part)),
            rate_per_s=None if rate is None else rate * part,
        )

    def looks(self) -> tuple[int, ...]:
        """Numbers of pairs at which speed is judged: doubling, so that they are few."""
        looks = [self.min_pairs]
        while looks[-1] * 2 <= self.max_pairs:
            looks.append(looks[-1] * 2)
        return tuple(looks)

    def rules_at(self, step: str) -> Rules:
        index = self.steps.index(step)
        return Rules(
            latency_margin={name: self.margins[name] for name in ("p50", "p90", "p99")},
            throughput_margin=self.margins["throughput"],
            confidence=self.confidence,
            looks=self.looks(),
            comparisons=self.comparisons if index == 0 else min(self.comparisons, LATER_COMPARISONS),
            detect_confidence=self.detect_confidence,
            max_failures=self.max_failures,
            memory_margin_bytes=self.memory_margin_bytes,
            check_memory=self.check_memory,
            tolerances=parse_tolerances(self.tolerances),
            # A small slice sees few requests; the last ones before and after promotion must know the p99.
            p99_required=index >= len(self.steps) - 2,
        )


def parse_endpoint(text: str, field: str, *, model: str | None, http: str | None, metrics: str | None) -> Endpoint:
    """``host:port`` of the gRPC endpoint, with ``/MODEL`` behind or ``model`` beside it. Raises :class:`InputError`."""
    match = re.fullmatch(r"(?:grpc://)?([^/\s]+:\d+)(?:/([^/\s]+))?", text)
    if match is None:
        raise InputError(
            f"expected HOST:PORT or HOST:PORT/MODEL, got {text!r}", field=field,
            remedy="give the gRPC endpoint, for instance 127.0.0.1:8001/resnet",
        )  # fmt: skip
    name = match[2] or model
    if not name:
        raise InputError("names no model", field=field, remedy=f"write {match[1]}/MODEL, or give --model")
    return Endpoint(match[1], name, _address(http), _address(metrics))


def _address(url: str | None) -> str | None:
    return None if url is None else re.sub(r"^https?://", "", url).rstrip("/").removesuffix("/metrics")


def parse_steps(text: str) -> tuple[str, ...]:
    """Raises :class:`InputError` for anything but ``shadow`` and growing percentages that end with 100."""
    steps = tuple(part.strip().rstrip("%") for part in text.split(","))
    weights = [0 if step == SHADOW else int(step) if step.isdigit() else -1 for step in steps]
    if -1 in weights or sorted(set(weights)) != weights or weights[-1] != 100 or (0 in weights and steps[0] != SHADOW):
        raise InputError(
            f"cannot use {text!r}: expected growing percentages that end with 100, 'shadow' first if at all",
            field="--steps",
            remedy=f"for instance {DEFAULT_STEPS}",
        )
    return steps


def parse_margins(texts: Sequence[str]) -> dict[str, float]:
    """``latency=5%``, ``p99=0.1``, ``throughput=3%``; ``latency`` is p50, p90 and p99."""
    margins = dict(MARGINS)
    for text in (part.strip() for whole in texts for part in whole.split(",")):
        match = re.fullmatch(r"(latency|p50|p90|p99|throughput)\s*=\s*([0-9.]+)(%?)", text)
        value = -1.0
        if match is not None and re.fullmatch(r"\d+\.?\d*|\.\d+", match[2]):
            value = float(match[2]) / (100 if match[3] else 1)
        if match is None or value < 0 or (match[1] == "throughput" and value >= 1):
            raise InputError(
                f"cannot read the margin {text!r}", field="--margin",
                remedy="write latency=5%, p50=…, p90=…, p99=… or throughput=3%",
            )  # fmt: skip
        for name in ("p50", "p90", "p99") if match[1] == "latency" else (match[1],):
            margins[name] = value
    return margins


def check_plan(plan: CanaryPlan) -> None:
    """What can be said without a server. Raises :class:`InputError`."""
    if not plan.tolerances:
        raise InputError(
            "no tolerance: nobody has said which answers are right",
            field="--tolerance",
            remedy="say how far the candidate's answers may be from the baseline's: --tolerance '*:lInf<=1e-3', or "
            "'*:lInf<=0' for equal ones",
        )
    parse_tolerances(plan.tolerances)
    if plan.shared and plan.baseline.model == plan.candidate.model:
        raise InputError(
            "baseline and candidate are the same model on the same server",
            field="--candidate",
            remedy="name another server or another model, or --from-study",
        )
    workload = plan.workload
    if workload.arrival is Arrival.POISSON and not workload.rate_per_s:
        raise InputError("Poisson arrivals need a rate", field="--rate", remedy="give requests per second")
    if workload.trace is not None and not Path(workload.trace).is_file():
        raise InputError("no such file", where=workload.trace, field="--trace", remedy="name a readable trace file")
    if plan.max_pairs < plan.min_pairs or plan.min_pairs < 2:
        raise InputError(
            f"{plan.min_pairs} to {plan.max_pairs} window pairs is no range from 2 on", field="--min-pairs",
            remedy="give at least 2, and --max-pairs of at least as many",
        )  # fmt: skip


def inputs_digest(path: Path) -> str:
    return sha256_tree(path) if path.is_dir() else sha256_file(path)


def detection_rate(text: str) -> float:
    """``1/1000`` or ``0.001``."""
    match = re.fullmatch(r"1\s*/\s*(\d+)", text)
    try:
        rate = 1 / int(match[1]) if match else float(text)
        comparisons_needed(rate)
    except (ValueError, ZeroDivisionError):
        raise InputError(
            f"{text!r} is not a rate between 0 and 1", field="--detect", remedy="write 1/1000 or 0.001"
        ) from None
    return rate


def write_plan(directory: Path, plan: CanaryPlan) -> None:
    """Raises :class:`InputError` where there is a plan already."""
    path = directory / PLAN_FILE
    if path.exists():
        raise InputError(
            "holds a canary already",
            where=directory,
            field="--state",
            remedy=f"go on with it (triton-optimizer canary run --state {directory}), or name another directory",
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_json(path, to_json(plan))
    except OSError as error:
        raise EnvironmentFailure(
            f"the plan cannot be written: {error.strerror}", where=path,
            remedy="choose a directory that this user may write, with --state",
        ) from None  # fmt: skip


def read_plan(directory: Path) -> CanaryPlan:
    """Raises :class:`InputError` where there is none, or none that this version can read."""
    path = directory / PLAN_FILE
    try:
        document = json.loads(path.read_bytes())
        schema = document.get("schema") if isinstance(document, dict) else None
        if isinstance(schema, int) and schema > SCHEMA:
            raise InputError(
                f"schema {schema}, this version reads up to {SCHEMA}", where=path,
                remedy="use the version that wrote it",
            )  # fmt: skip
        return from_json(CanaryPlan, document)
    except OSError as error:
        raise InputError(
            f"no canary can be read: {error.strerror}", where=path, field="--state",
            remedy="name the directory that `canary plan` wrote",
        ) from None  # fmt: skip
    except (ValueError, CodecError) as error:
        raise InputError(f"is no plan: {error}", where=path, remedy="make a new one with `canary plan`") from None
