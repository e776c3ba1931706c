"""What a decision tells besides its winner: what a reader must know, what tuning cost and saves, the Pareto front."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from optimizer.accuracy.hard_cases import what_samples_support
from optimizer.baseline import CAVEAT
from optimizer.config import Budget as BudgetSettings
from optimizer.judge.break_even import break_even
from optimizer.judge.decide import Confirmation
from optimizer.judge.statistics import Noise
from optimizer.laboratory import CONFIRM, NOISE, StudyLaboratory
from optimizer.ledger import Ledger
from optimizer.records.codec import from_json
from optimizer.records.decision import Decision
from optimizer.records.measurement import Measurement
from optimizer.records.objective import Objective, ObjectiveKind, pareto_front
from optimizer.records.parity import Parity
from optimizer.records.route import Route
from optimizer.records.samples import SampleSet
from optimizer.search.budget import Spent

MEASURES_CAPACITY = frozenset({ObjectiveKind.THROUGHPUT, ObjectiveKind.RATE_UNDER_SLO, ObjectiveKind.COST})
"""Objectives whose ratio says how many servers a load takes."""

PERCENTILES = ("p99", "p95", "p90", "p50")


def caveats(laboratory: StudyLaboratory, noise: Noise, confirmations: Sequence[Confirmation]) -> Iterator[str]:
    plan = laboratory.plan
    if laboratory.as_found_on_cpu:
        yield CAVEAT
    if plan.tune.synthetic:
        yield (
            "synthetic inputs: random data say nothing about accuracy on yours, and speed may depend on values; "
            "give real samples with --inputs"
        )
    yield from trace_caveats(plan.tune, plan.held_out)
    backends = laboratory.python_backends()
    if backends:
        yield (
            f"served by python-based backends ({', '.join(sorted(backends))}) for every arm alike: "
            "ratios are guidance for the native backends, absolute numbers are not theirs"
        )
    busy = (laboratory.ledger.get("fact", "gpu_busy") or {}).get("reasons")
    if busy:
        yield f"the GPU was not idle when measuring began: {'; '.join(busy)}"
    if laboratory.throttling_is_normal:
        yield "the GPU holds its clocks down under this load whoever is measured: throttled pairs are not left out"
    for confirmation in confirmations:
        route = Route.parse(str((laboratory.ledger.get("candidate", confirmation.candidate_id) or {}).get("route", "")))
        for caveat in laboratory.caveats_of(laboratory.candidate(route)):
            yield f"{confirmation.label}: {caveat}"
    if noise.biased:
        yield "two copies of the reference differ: something on this machine favours one of them"
    if not plan.tolerances:
        yield "no tolerance was given: losses are shown, nothing may be written back"
    elif plan.model.batched and len(laboratory.gate(plan.tune).apart) < 2:
        yield ("batches were not checked row by row: that takes two samples of one row each with different outputs")
    yield from accuracy_support(laboratory, confirmations)
    if plan.objective.kind is not ObjectiveKind.THROUGHPUT:
        yield f"the objective is {plan.objective.name}"


def trace_caveats(tune: SampleSet, held_out: SampleSet) -> Iterator[str]:
    """That a trace was not sent sample by sample as it is written."""
    missing = [
        f"{len(samples.stand_ins)} while {job}"
        for samples, job in ((tune, "searching"), (held_out, "confirming"))
        if samples.stand_ins
    ]
    if missing:
        yield (
            f"the trace names samples that are kept for the other of the two sets ({', '.join(missing)}): others of "
            "the same shapes were sent in their place, at the same times"
        )


def accuracy_support(laboratory: StudyLaboratory, confirmations: Sequence[Confirmation]) -> Iterator[str]:
    """How many samples stand behind the finalists' accuracy, what they support, and what was looked at under load."""
    if not laboratory.plan.tolerances:
        return
    told = set()
    for confirmation in confirmations:
        parity = confirmation.held_out
        if parity is None or parity.defects:
            continue
        for text in support_of(parity):
            told.add(text)
    yield from sorted(told)
    loads = [
        entry.data for entry in laboratory.ledger.records("parity") if entry.key.startswith(f"under_load:{CONFIRM}")
    ]
    if loads:
        yield f"accuracy under load: answers to {sum(load['samples'] for load in loads)} sampled requests were checked"


def support_of(parity: Parity) -> Iterator[str]:
    """One text for every metric that counts rows; for the others together one about the samples that stayed within."""
    counting = [output for output in parity.outputs if output.bound is not None and output.units]
    for output in counting:
        floor = 1 - output.threshold if output.threshold is not None else None
        text = what_samples_support(
            output.units or 0, output.misses or 0, floor=floor, confidence=output.confidence or 0.95
        )
        yield f"held-out accuracy, {output.output}:{output.metric}: {text}"
    if not counting:
        text = what_samples_support(parity.samples, 0)
        yield f"held-out accuracy: {text} (agreement: every output within its tolerance)"


# Cost and benefit


def worth(
    decision: Decision,
    spent: Spent,
    objective: Objective,
    settings: BudgetSettings,
    *,
    gpu: bool,
    capacity_per_s: float,
) -> Decision:
    """``decision`` with its break-even. That nothing is saved is advice, and takes no winner away.

    ``capacity_per_s``: inferences/s that one server does as it is.
    """
    if objective.kind not in MEASURES_CAPACITY:
        return decision
    winner = next((one for one in decision.finalists if one.candidate_id == decision.winner), None)
    gain = (winner.gain_over_as_found or winner.gain_over_default) if winner is not None else None
    known = settings.load_per_s is not None and capacity_per_s > 0
    told = break_even(
        (spent.gpu_s if gpu else spent.wall_s) / 3600,
        gain.lower if gain is not None else 1.0,
        load_per_s=settings.load_per_s if known else None,
        capacity_per_s=capacity_per_s if known else None,
        gpu_price_per_h=settings.gpu_price_per_hour,
        machine="GPU" if gpu else "server",
    )
    advice = []
    if winner is not None and settings.load_per_s is not None and str(told["sentence"]).startswith("Saves nothing"):
        advice.append(f"not worth it for the load alone: {told['sentence']}")
    return replace(decision, break_even=told, caveats=(*decision.caveats, *advice))


def capacity_of(confirmations: Sequence[Confirmation], reference_id: str) -> float:
    """Median throughput of the reference in the confirmation, inferences/s; 0 where there was none."""
    seen = [
        pair.reference_throughput
        for confirmation in confirmations
        for pair in confirmation.pairs
        if pair.usable and pair.reference_id == reference_id
    ]
    return statistics.median(seen) if seen else 0.0


def front(ledger: Ledger, objective: Objective) -> dict[str, Any]:
    """Candidates that no other beats in one respect without losing in another: throughput, a latency, the objective.

    From every window of a candidate under the study's load; the races' ones too, so it is for orientation. The latency
    is the highest percentile that every candidate's windows support.
    """
    windows: defaultdict[str, list[Measurement]] = defaultdict(list)
    rejected = {entry.key for entry in ledger.records("rejection")}
    for entry in ledger.records("measurement"):
        if not entry.key.startswith(NOISE) and entry.data["candidate_id"] not in rejected:
            windows[entry.data["candidate_id"]].append(from_json(Measurement, entry.data))
    typical = {name: _typical(several) for name, several in windows.items()}
    objectives = [Objective()]
    shared = next(
        (p for p in PERCENTILES if typical and all(p in one.percentiles_us for one in typical.values())), None
    )
    if shared is not None:
        objectives.append(Objective(ObjectiveKind.LATENCY, percentile=shared))
    if objective.name not in [one.name for one in objectives] and objective.kind is not ObjectiveKind.RATE_UNDER_SLO:
        objectives.append(objective)
    return {
        "objectives": [one.name for one in objectives],
        "front": list(pareto_front(typical, objectives)),
        "points": {name: {one.name: one.value(window) for one in objectives} for name, window in typical.items()},
    }


def _typical(windows: Sequence[Measurement]) -> Measurement:
    """The last window with medians of throughput and latencies over all of them."""
    names: Mapping[str, None] = dict.fromkeys(name for one in windows for name in one.percentiles_us)
    medians = {
        name: statistics.median(one.percentiles_us[name] for one in windows if name in one.percentiles_us)
        for name in names
    }
    return replace(windows[-1], throughput=statistics.median(one.throughput for one in windows), percentiles_us=medians)


def spent_so_far(ledger: Ledger) -> Spent:
    """What earlier runs of a study used. A run that was killed did not say: its records tell when it began and was last
    heard of, its builds and its windows."""
    total = Spent()
    runs: list[list[Any]] = []
    for entry in ledger.records():
        if (entry.kind, entry.key) == ("fact", "server") or not runs:
            runs.append([])
        runs[-1].append(entry)
    for run in runs:
        said = next((entry.data for entry in reversed(run) if (entry.kind, entry.key) == ("fact", "spent")), None)
        if said is not None:
            # What a run says of itself counts the runs before it too.
            total = Spent(**said)
            continue
        moments = [entry.at for entry in run if entry.at]
        built_s = [entry.data["build_s"] for entry in run if entry.kind in ("build", "build_failure")]
        windows_s = [entry.data["duration_s"] for entry in run if entry.kind == "measurement"]
        total = Spent(
            total.wall_s + (max(moments) - min(moments) if moments else 0.0),
            total.builds + len(built_s),
            total.gpu_s + sum(built_s) + sum(windows_s),
        )
    return total
