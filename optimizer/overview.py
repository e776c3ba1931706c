"""A whole repository's run as one JSON document: what ``optimize``, ``resume`` and ``report`` show. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optimizer.errors import InputError
from optimizer.fleet import last_check, read_fleet
from optimizer.ledger import STUDY_FILE, Ledger
from optimizer.report.numbers import megabytes, percent
from optimizer.summary import study_document

COLUMNS = ["model", "outcome", "gain", "at least", "route", "why"]


def fleet_document(directory: Path, tried: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """``models`` holds an entry each: ``study`` (its document), ``applied``, ``skipped`` and ``skip`` (why it is not
    tuned), ``error``; ``together`` the check of all side by side; ``columns``, ``rows`` and ``notes`` the summary;
    ``exit_code`` what a command that ends with this document returns. ``tried`` holds the outcomes of a write-back
    that only looked (``--dry-run``) by model. Raises :class:`InputError`.
    """
    asked = read_fleet(directory)
    try:
        ledger = Ledger.view(directory)
    except InputError:
        # Killed between the two files: nothing was learnt yet.
        ledger = None
    models = [_entry(directory, ledger, name, skip) for name, skip in asked["models"].items()]
    for one in models:
        outcome = (tried or {}).get(one["model"])
        if outcome is not None:
            one["refused" if "error" in outcome else "applied"] = dict(outcome)
    together = last_check(ledger) if ledger is not None else None
    return {
        "schema": 1,
        "kind": "optimize",
        "directory": str(directory),
        "repository": asked["repository"],
        "models": models,
        "together": together,
        "columns": COLUMNS,
        "rows": [_row(one, together) for one in models],
        "notes": list(_notes(directory, models, together)),
        "spent_s": ((ledger.get("fact", "spent") or {}) if ledger else {}).get("wall_s"),
        "exit_code": _exit_code(models, together),
    }


def _entry(directory: Path, ledger: Ledger | None, name: str, skip: Mapping[str, Any] | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"model": name}
    if skip is not None:
        return {**entry, "skipped": skip["reason"], "skip": dict(skip)}
    study = study_document(directory / name) if (directory / name / STUDY_FILE).exists() else None
    failed = ledger.get("failed", name) if ledger else None
    decided = study is not None and study["state"] == "decided"
    written = ledger.get("written", name) if ledger else None
    return {
        **entry,
        "study": study,
        "error": None if decided else failed,
        "weight": (((ledger.get("fact", "weights") or {}) if ledger else {}).get("weights") or {}).get(name),
        "share_s": ((ledger.get("share", name) or {}) if ledger else {}).get("seconds"),
        "applied": written,
        "refused": ledger.get("refused", name) if ledger and written is None else None,
    }


def _row(entry: Mapping[str, Any], together: Mapping[str, Any] | None) -> list[str]:
    name = entry["model"]
    if entry.get("skip"):
        return [name, "not tuned", "", "", "", entry["skip"]["reason"]]
    if entry["error"]:
        return [name, "failed", "", "", "", entry["error"]["problem"]]
    study = entry["study"]
    if study is None or study["decision"] is None:
        return [name, "unfinished", "", "", "", "resume goes on"]
    decision = study["decision"]
    if decision["winner"] is None:
        return [name, "kept", "", "", "", decision["sentence"]]
    finalist = next(one for one in decision["finalists"] if one["candidate_id"] == decision["winner"])
    gain = finalist["gain_over_as_found"] or finalist["gain_over_default"] or {}
    outcome, why = "winner", ""
    back = next((one for one in together["taken_back"] if one["model"] == name), None) if together else None
    if back is not None:
        outcome, why = "taken back", back["reason"]
    elif entry["applied"] and entry["applied"]["changed"]:
        outcome, why = "written", f"version {entry['applied']['version']}"
    elif entry["refused"]:
        outcome, why = "not written", entry["refused"]["problem"]
    ratio, lower = (percent(gain[key]) if gain else "unknown" for key in ("ratio", "lower"))
    return [name, outcome, ratio, lower, decision["winner_label"], why]


def _notes(directory: Path, models: list[dict[str, Any]], together: Mapping[str, Any] | None) -> list[str]:
    notes = []
    if together is not None:
        notes.append(f"all together: {together['verdict']}: {together['reason']}")
        memory = together["memory"]
        if memory.get("as_found_bytes") and memory.get("tuned_bytes"):
            notes.append(
                f"server memory with all models: {megabytes(memory['as_found_bytes'])} MB as found, "
                f"{megabytes(memory['tuned_bytes'])} MB with the winners"
            )
        notes += [f"left out of the check: {name}: {why}" for name, why in together["left_out"].items()]
    unfinished = [one["model"] for one in models if not one.get("skip") and _state(one) == "unfinished"]
    if unfinished or (together is not None and together["code"] == "undecided"):
        notes.append(f"go on: triton-optimizer resume {directory}")
    elif together is not None and together["winners"]:
        waiting = [name for name in together["winners"] if not _applied(models, name)]
        if waiting:
            notes.append(f"write the winners ({', '.join(waiting)}): triton-optimizer apply {directory}")
    return notes


def _state(entry: Mapping[str, Any]) -> str:
    if entry["error"]:
        return "failed"
    return "decided" if entry["study"] is not None and entry["study"]["decision"] is not None else "unfinished"


def _applied(models: list[dict[str, Any]], name: str) -> bool:
    return any(one["model"] == name and (one.get("applied") or {}).get("changed") for one in models)


def _exit_code(models: list[dict[str, Any]], together: Mapping[str, Any] | None) -> int:
    """6 where a winner was refused, 5 where something is unfinished, a failure's own code, 2 where nothing could be
    tuned, else 0. Keeping what is there is a result, and so is a winner that was taken back."""
    tuned = [one for one in models if not one.get("skip")]
    if any(one["refused"] for one in tuned):
        return 6
    if any(_state(one) == "unfinished" for one in tuned) or (together is not None and together["code"] == "undecided"):
        return 5
    failures = [int(one["error"]["exit_code"]) for one in tuned if one["error"]]
    if failures:
        return max(failures)
    return 0 if tuned or any(one["skip"]["code"] == "fresh" for one in models) else 2
