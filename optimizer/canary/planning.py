"""From what a user says to a plan, checked against the live servers before anything moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optimizer.accuracy.tolerances import check_tolerances, parse_tolerances
from optimizer.canary import second
from optimizer.canary.arms import check_alike, model_of, samples_of
from optimizer.canary.judge import comparisons_needed, detectable_rate
from optimizer.canary.nginx import check_nginx
from optimizer.canary.plan import (
    SHADOW,
    CanaryPlan,
    Endpoint,
    ProxyPlan,
    check_plan,
    detection_rate,
    inputs_digest,
    parse_endpoint,
    parse_margins,
    parse_steps,
    write_plan,
)
from optimizer.canary.proxy import proxy_of
from optimizer.errors import InputError
from optimizer.ledger import read_study
from optimizer.records.codec import to_json
from optimizer.records.measurement import Arrival, Workload


def make_plan(
    directory: Path,
    *,
    baseline: str,
    candidate: str | None,
    study: Path | None,
    model: str | None,
    repository: Path | None,
    addresses: Mapping[str, str | None],
    tolerances: Sequence[str],
    inputs: Path | None,
    synthetic: bool,
    synthetic_count: int,
    shapes: Sequence[str],
    int_ranges: Sequence[str],
    trace: Path | None,
    rate: float | None,
    concurrency: int,
    window_s: float,
    seed: int,
    steps: str,
    margins: Sequence[str],
    confidence: float,
    detect: str,
    detect_confidence: float,
    min_pairs: int,
    max_pairs: int,
    max_failures: int,
    memory_margin: float,
    check_memory: bool,
    proxy: ProxyPlan | None,
    processes: int | None,
) -> CanaryPlan:
    """Checks and writes the plan; the proxy's files, where they are asked for, begin with everything at the baseline.
    Raises :class:`InputError` and :class:`EnvironmentFailure`."""
    arms = endpoints(baseline, candidate, study, model, addresses)
    if (inputs is None) == (not synthetic):
        raise InputError(
            "give recorded requests or ask for random ones, not " + ("neither" if inputs is None else "both"),
            field="--inputs",
            remedy="--inputs FILE, or --synthetic: random inputs say little about your users' requests",
        )
    if inputs is not None and not inputs.exists():
        raise InputError("no such file or directory", where=inputs, field="--inputs", remedy="name recorded requests")
    if proxy is not None and proxy.directory and proxy.command:
        raise InputError("two proxies", field="--weight-command", remedy="give --nginx-dir or --weight-command")
    if proxy is not None and proxy.command and not any("{weight}" in word for word in proxy.command):
        raise InputError("says nowhere {weight}", field="--weight-command", remedy="write {weight} where it belongs")
    arrival = Arrival.TRACE if trace else Arrival.POISSON if rate else Arrival.CLOSED_LOOP
    plan = CanaryPlan(
        baseline=arms[0],
        candidate=arms[1],
        steps=parse_steps(steps),
        tolerances=tuple(tolerances),
        margins=parse_margins(margins),
        workload=Workload(arrival, concurrency, rate, window_s, seed, None if trace is None else str(trace.absolute())),
        inputs=None if inputs is None else str(inputs.absolute()),
        inputs_sha256=None if inputs is None else inputs_digest(inputs),
        trace_sha256=None if trace is None or not trace.is_file() else inputs_digest(trace),
        synthetic_count=synthetic_count,
        shapes=tuple(shapes),
        int_ranges=tuple(int_ranges),
        study=None if study is None else str(study.absolute()),
        repository=None
        if study is None
        else str((repository or Path(read_study(study).notes["repository"])).absolute()),
        proxy=proxy,
        comparisons=comparisons_needed(detection_rate(detect), detect_confidence),
        confidence=confidence,
        detect_confidence=detect_confidence,
        min_pairs=min_pairs,
        max_pairs=max_pairs,
        max_failures=max_failures,
        memory_margin_bytes=memory_margin,
        check_memory=check_memory,
        client_processes=processes,
    )
    check_plan(plan)
    served = model_of(plan.baseline)
    check_tolerances(parse_tolerances(plan.tolerances), served.outputs)
    samples_of(plan, served)
    if study is None:
        check_alike(served, model_of(plan.candidate))
    else:
        second.check_free(plan)
    if proxy is not None and proxy.directory:
        check_nginx(plan, plan.candidate)
    write_plan(directory, plan)
    if proxy is not None and proxy.directory:
        proxy_of(plan, plan.candidate, directory).prepare()
    return plan


def endpoints(
    baseline: str, candidate: str | None, study: Path | None, model: str | None, addresses: Mapping[str, str | None]
) -> tuple[Endpoint, Endpoint]:
    if (candidate is None) == (study is None):
        raise InputError(
            "say what the candidate is, in one way", field="--candidate", remedy="give --candidate or --from-study"
        )
    if study is not None:
        name, decision = second.winner_of(study)
        ours = parse_endpoint(
            baseline, "--baseline", model=model or name, http=addresses["baseline_http"],
            metrics=addresses["baseline_metrics"],
        )  # fmt: skip
        if ours.model != name:
            raise InputError(
                f"the study is of model {name}, not of {ours.model}", where=study, field="--baseline",
                remedy=f"name {name}",
            )  # fmt: skip
        return ours, Endpoint(ours.grpc_url, second.second_name(name, decision), ours.http_url, ours.metrics_url)
    assert candidate is not None
    ours = parse_endpoint(
        baseline, "--baseline", model=model, http=addresses["baseline_http"], metrics=addresses["baseline_metrics"]
    )
    theirs = parse_endpoint(
        candidate, "--candidate", model=model or ours.model, http=addresses["candidate_http"],
        metrics=addresses["candidate_metrics"],
    )  # fmt: skip
    return ours, theirs


def plan_document(directory: Path, plan: CanaryPlan) -> dict[str, Any]:
    """What will happen, and what each step will be able to see."""
    looks = plan.looks()
    rows = []
    for step in plan.steps:
        rules, workload = plan.rules_at(step), plan.workload_at(step)
        shown = detectable_rate(rules.comparisons, plan.detect_confidence)
        if step == SHADOW:
            sees = f"every request to both, {rules.comparisons:,} comparisons"
        else:
            sees = (
                f"{looks[0]} to {looks[-1]} pairs of {workload.duration_s:g} s windows, {workload.label} for each arm"
            )
        rows.append([step if step == SHADOW else f"{step}%", sees, f"a wrong answer in 1 of {1 / shown:,.0f}"])
    margins = ", ".join(f"{name} {value:.1%}" for name, value in plan.margins.items())
    lines = [
        f"planned in {directory}: {plan.baseline.model} at {plan.baseline.grpc_url} against {plan.candidate.model} at "
        f"{plan.candidate.grpc_url}",
        f"margins: {margins}; one-sided confidence {plan.confidence:.0%}",
    ]
    if plan.synthetic:
        lines.append("SYNTHETIC LOAD: random inputs, no user's requests; give recorded ones with --inputs")
    if plan.shared:
        lines.append("one server serves both: from the first percentage on the arms alternate in time windows")
    notes = [f"go on: triton-optimizer canary run --state {directory}"]
    if plan.proxy is not None and plan.proxy.directory:
        lines += check_nginx(plan, plan.candidate)
        notes.insert(0, f"start nginx, if it does not run yet: nginx -p {plan.proxy.directory} -c nginx.conf")
    if plan.proxy is None:
        lines.append("no proxy: nobody's traffic is moved; the load of this tool alone stands in for it")
    return {
        "schema": 1, "kind": "canary_plan", "directory": str(directory), "plan": to_json(plan), "lines": lines,
        "columns": ["step", "what is done", "what shows with " + f"{plan.detect_confidence:.0%} odds"], "rows": rows,
        "notes": notes,
    }  # fmt: skip
