"""A study's directory as one JSON document: what ``report``, ``optimize`` and ``--json`` show. Changes nothing.

The document is the seam between the ledger and the report: plain JSON values, whose keys stay and to which more may
come. :func:`study_document` lists them.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimizer.config import Settings
from optimizer.ledger import Ledger, StudyHeader, read_study
from optimizer.records.candidate import Pair, Rejection
from optimizer.records.codec import from_json, to_json
from optimizer.records.decision import Decision
from optimizer.records.engine import BuildFailure, Engine
from optimizer.records.measurement import Measurement
from optimizer.records.parity import Parity
from optimizer.records.route import AS_FOUND

SCHEMA = 1


def study_document(directory: Path) -> dict[str, Any]:
    """Everything the study in ``directory`` knows, finished or not. Raises :class:`optimizer.errors.InputError`.

    ``state`` is ``decided``, ``stopped`` (an error or Ctrl-C ended it: ``stopped`` holds ``problem``, ``remedy`` …) or
    ``unfinished`` (running, or killed without a word). ``candidates`` holds a row each (:func:`candidate_rows`),
    ``engines`` one row a build, ``pairs`` every paired comparison in the order of measuring, ``facts`` the server, the
    noise and what was spent, ``time`` how long it took and for what, ``changed_settings`` the settings that are not at
    their defaults (a settings file that repeats the study), ``next`` the commands to type.
    """
    header = read_study(directory)
    ledger = Ledger.view(directory)
    decision = ledger.load("decision", "final", Decision)
    stopped = None if decision else _stopped(ledger)
    return {
        "schema": SCHEMA,
        "kind": "study",
        "directory": str(directory),
        "model": header.notes.get("model", ""),
        "repository": header.notes.get("repository", ""),
        "created_at": header.created_at,
        "version": header.version,
        "settings": dict(header.settings),
        "changed_settings": _changed(header.settings, Settings().model_dump(mode="json")),
        "notes": dict(header.notes),
        "fingerprint": to_json(header.fingerprint),
        "facts": {entry.key: entry.data for entry in ledger.records("fact")},
        "decision": to_json(decision) if decision else None,
        "state": "decided" if decision else "stopped" if stopped else "unfinished",
        "stopped": stopped,
        "time": _time(ledger),
        "candidates": candidate_rows(ledger, decision),
        "engines": _engines(ledger),
        "pairs": [entry.data for entry in ledger.records("pair")],
        "search": [entry.data for entry in ledger.records("search")],
        "dropped": ledger.dropped,
        "next": next_commands(directory, header, decision),
    }


def _stopped(ledger: Ledger) -> dict[str, Any] | None:
    """Why the last run ended, unless another run has recorded something since."""
    told = None
    for entry in ledger.records():
        if (entry.kind, entry.key) == ("fact", "stopped"):
            told = {**entry.data, "at": entry.at}
        elif (entry.kind, entry.key) != ("fact", "spent"):
            told = None
    return told


def _time(ledger: Ledger) -> dict[str, float]:
    """Unix seconds of the first and last record; seconds in builds and in measurement windows."""
    moments = [entry.at for entry in ledger.records() if entry.at]
    windows = [entry.data["duration_s"] for entry in ledger.records("measurement")]
    builds = [entry.data["build_s"] for kind in ("build", "build_failure") for entry in ledger.records(kind)]
    return {
        "first_at": min(moments, default=0.0),
        "last_at": max(moments, default=0.0),
        "build_s": sum(builds),
        "window_s": sum(windows),
        "windows": len(windows),
    }


def _changed(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    changed = {}
    for name, value in settings.items():
        default = defaults.get(name)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            value = _changed(value, default)
            default = {}
        if value != default:
            changed[name] = value
    return changed


def _engines(ledger: Ledger) -> list[dict[str, Any]]:
    """One row a build: what came out of it, or why nothing did."""
    built = {entry.key: entry.data for entry in ledger.records("build")}
    failed = {entry.key: entry.data for entry in ledger.records("build_failure") if entry.key not in built}
    rows = [
        {
            "id": key,
            "builder": engine["builder"],
            "build_s": engine["build_s"],
            "size_bytes": engine["size_bytes"],
            "device_memory_bytes": engine["device_memory_bytes"],
            "sha256": engine["sha256"],
            "failure": None,
        }
        for key, engine in built.items()
    ]
    rows += [
        {
            "id": key,
            "builder": "",
            "build_s": failure["build_s"],
            "size_bytes": None,
            "device_memory_bytes": None,
            "sha256": None,
            "failure": f"{failure['reason']}: {failure['message']}",
        }
        for key, failure in failed.items()
    ]
    return rows


@dataclass(frozen=True)
class _Measured:
    """Measurements and race log ratios by candidate, from one pass over the ledger."""

    windows: Mapping[str, list[tuple[str, Measurement]]]
    race: Mapping[str, list[float]]

    @classmethod
    def of(cls, ledger: Ledger) -> _Measured:
        windows: defaultdict[str, list[tuple[str, Measurement]]] = defaultdict(list)
        for entry in ledger.records("measurement"):
            # A/A windows are about the machine.
            if not entry.key.startswith("noise"):
                windows[entry.data["candidate_id"]].append((entry.key, from_json(Measurement, entry.data)))
        race: defaultdict[str, list[float]] = defaultdict(list)
        for entry in ledger.records("pair"):
            pair = from_json(Pair, entry.data)
            if pair.purpose == "race" and pair.usable:
                race[pair.candidate_id].append(pair.log_ratio)
        return cls(windows, race)


def candidate_rows(ledger: Ledger, decision: Decision | None) -> list[dict[str, Any]]:
    """One row a candidate, in the order in which they were tried: as-found first.

    Figures are medians over its windows: those of the confirmation where there are any (``confirmed``), else all.
    ``percentiles_us`` holds the percentiles that the windows' numbers of samples support; ``race_ratio`` is what the
    search saw in ``race_pairs`` pairs, which is no result.
    """
    tried = [entry.key for entry in ledger.records("candidate")]
    measured = _Measured.of(ledger)
    rows = [_row(ledger, measured, candidate_id, decision) for candidate_id in dict.fromkeys(tried)]
    return sorted(rows, key=lambda row: row["id"] != AS_FOUND)


def _row(ledger: Ledger, measured: _Measured, candidate_id: str, decision: Decision | None) -> dict[str, Any]:
    facts = ledger.get("candidate", candidate_id) or {}
    engine_id = facts.get("engine", "")
    engine = ledger.load("build", engine_id, Engine)
    failure = ledger.load("build_failure", engine_id, BuildFailure)
    rejection = ledger.load("rejection", candidate_id, Rejection)
    measurements = measured.windows.get(candidate_id, [])
    confirmed = [one for key, one in measurements if key.startswith("confirm")]
    shown = confirmed or [one for _, one in measurements]
    pairs = measured.race.get(candidate_id, [])
    finalist = next((one for one in decision.finalists if one.candidate_id == candidate_id), None) if decision else None
    return {
        "id": candidate_id,
        "route": facts.get("route", ""),
        "label": facts.get("label", candidate_id),
        "state": _state(candidate_id, rejection, finalist is not None, decision, bool(measurements)),
        "reason": rejection.message if rejection else (finalist.reason if finalist else ""),
        "rejected_at": rejection.stage.value if rejection else None,
        "code": rejection.code if rejection else None,
        "evidence": rejection.evidence if rejection else "",
        "engine": engine_id,
        "build_s": engine.build_s if engine else (failure.build_s if failure else None),
        "size_bytes": engine.size_bytes if engine else None,
        "sha256": engine.sha256 if engine else None,
        "device_memory_bytes": engine.device_memory_bytes if engine else None,
        "throughput": _median(one.throughput for one in shown),
        "p50_us": _median(one.percentiles_us.get("p50") for one in shown),
        "p90_us": _median(one.percentiles_us.get("p90") for one in shown),
        "p99_us": _median(one.percentiles_us.get("p99") for one in shown),
        "percentiles_us": _percentiles(shown),
        "latency_mean_us": _median(one.latency_mean_us for one in shown),
        "requests": sum(one.requests for one in shown),
        "windows": len(shown),
        "confirmed": bool(confirmed),
        "server_rss_bytes": _median(one.resources.server_rss_bytes for one in shown),
        "gpu_memory_bytes": _median(one.resources.gpu_memory_bytes for one in shown),
        "breakdown_us": _breakdown(shown),
        "mean_batch": _median(one.server.mean_batch if one.server else None for one in shown),
        "race_ratio": math.exp(statistics.fmean(pairs)) if pairs else None,
        "race_pairs": len(pairs),
        "gain_over_as_found": to_json(finalist.gain_over_as_found) if finalist else None,
        "gain_over_default": to_json(finalist.gain_over_default) if finalist else None,
        "p99_ratio": to_json(finalist.p99_ratio) if finalist else None,
        "parity": {
            name: to_json(parity)
            for name in ("tune", "batches", "held_out")
            if (parity := ledger.load("parity", f"{name}:{candidate_id}", Parity)) is not None
        },
        "warnings": sorted({warning for one in shown for warning in one.warnings}),
    }


def _state(
    candidate_id: str, rejection: Rejection | None, finalist: bool, decision: Decision | None, measured: bool
) -> str:
    if decision and decision.winner == candidate_id:
        return "winner"
    if rejection:
        return "rejected"
    if candidate_id == AS_FOUND:
        return "reference"
    if finalist:
        return "finalist"
    return "measured" if measured else "screened"


def _percentiles(measurements: list[Measurement]) -> dict[str, float]:
    names = dict.fromkeys(name for one in measurements for name in one.percentiles_us)
    medians = {name: _median(one.percentiles_us.get(name) for one in measurements) for name in names}
    return {name: value for name, value in medians.items() if value is not None}


def _breakdown(measurements: list[Measurement]) -> dict[str, float] | None:
    """Mean µs an executed inference spent in each of Triton's phases; the client's share is what is left of latency."""
    totals = dict.fromkeys(("queue", "compute_input", "compute_infer", "compute_output"), 0.0)
    requests, latency = 0, 0.0
    for one in measurements:
        if one.server is None or one.latency_mean_us is None or not one.requests:
            continue
        rows = max(1.0, one.inferences / one.requests)
        requests += max(1, round(one.server.inference_count / rows))
        latency += one.latency_mean_us * one.requests
        totals["queue"] += one.server.queue_us
        totals["compute_input"] += one.server.compute_input_us
        totals["compute_infer"] += one.server.compute_infer_us
        totals["compute_output"] += one.server.compute_output_us
    if not requests:
        return None
    phases = {name: total / requests for name, total in totals.items()}
    mean = latency / sum(one.requests for one in measurements if one.server and one.latency_mean_us)
    return {**phases, "client_and_network": max(0.0, mean - sum(phases.values()))}


def _median(values: Iterable[float | int | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return statistics.median(known) if known else None


def next_commands(directory: Path, header: StudyHeader, decision: Decision | None) -> list[str]:
    repository, model = header.notes.get("repository", "REPO"), header.notes.get("model", "MODEL")
    if decision is None:
        return [f"triton-optimizer resume {directory}"]
    commands = [f"triton-optimizer report {directory}"]
    if decision.winner is not None:
        commands = [
            f"triton-optimizer apply {directory} --dry-run",
            f"triton-optimizer apply {directory}",
            f"triton-optimizer rollback {repository} --model {model}",
            *commands,
        ]
    return commands
