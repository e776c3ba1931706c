"""``status``: what is live, since when, on which evidence, and whether that evidence still holds here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optimizer.apply.journal import read_journal
from optimizer.apply.lock import writer_of
from optimizer.apply.provenance import Provenance, read_provenance
from optimizer.apply.transaction import read_image, version_differences
from optimizer.errors import OptimizerError
from optimizer.records.environment import GIVEN_FILES
from optimizer.records.model import Model
from optimizer.repository.versions import PROVENANCE_FILE


def live_status(repository: Path, model: Model) -> dict[str, Any]:
    """One row, with ``lines`` for people. ``stale`` lists what no longer holds; ``None`` without evidence."""
    repository = repository.resolve()
    version = model.live_version
    written = read_provenance(version.path) if version is not None else None
    problems = _problems(repository, model.name)
    row: dict[str, Any] = {
        "model": model.name,
        "version": version.number if version else None,
        "served": sorted(each.number for each in model.versions if each.served),
        "format": model.format.value,
        "written": written is not None,
        "since": None,
        "study": None,
        "route": None,
        "decision": None,
        "gain": None,
        "stale": None,
        "journal": None,
        "writer": writer_of(repository),
        "problems": problems,
    }
    if written is not None:
        row |= _evidence(model, written)
    journal = None if problems else read_journal(repository, model.name)
    if journal is not None:
        row["journal"] = {"kind": journal.kind.value, "state": journal.state.value, "version": journal.version}
    row["lines"] = _lines(row)
    return row


def _problems(repository: Path, model: str) -> list[str]:
    try:
        read_journal(repository, model)
    except OptimizerError as error:
        return [error.message]
    return []


def _evidence(model: Model, written: Provenance) -> dict[str, Any]:
    decision = written.document["decision"]
    gain = next(
        (one["gain_over_as_found"] or one["gain_over_default"] for one in decision["finalists"]
         if one["candidate_id"] == decision["winner"]), None,
    )  # fmt: skip
    then: Mapping[str, str] = written.document["fingerprint"]["facts"]
    here = facts_here(then)
    return {
        "since": written.document["written_at_utc"],
        "study": written.document["study"],
        "route": written.document["route"],
        "decision": decision["sentence"],
        "caveats": list(decision["caveats"]),
        "gain": gain,
        "stale": stale_facts(model, written, here),
        "not_checked": sorted(set(then) - set(here) - {"workload", *GIVEN_FILES, "family", "sandbox"}),
        "roll_back": written.document["roll_back"],
    }


def stale_facts(model: Model, written: Provenance, here: Mapping[str, str]) -> list[str]:
    """Files and config that are not those written, and facts of ``here`` that differ from the study's."""
    files = {**written.files, PROVENANCE_FILE: ""}
    stale = [
        line
        for line in version_differences(written.path, files, complete=True)
        if not line.startswith(str(written.path / PROVENANCE_FILE))
    ]
    config = model.directory / written.config
    if read_image(config).data != written.image("after").data:
        stale.append(f"{config} was edited since")
    then: Mapping[str, str] = written.document["fingerprint"]["facts"]
    stale += [f"{name}: {then[name]} -> {value}" for name, value in sorted(here.items()) if then[name] != value]
    return stale


def facts_here(then: Mapping[str, str]) -> dict[str, str]:
    """Of the facts that a study recorded, those that can be told here without starting anything."""
    import os
    import platform

    from optimizer.gpu import list_gpus, pick
    from optimizer.preparation import cpu_name

    here = {"cpu": cpu_name(), "machine": platform.machine()}
    if "gpu_uuid" in then or "gpu" in then:
        gpus = list_gpus()
        match = [gpu for gpu in gpus if gpu.uuid == then.get("gpu_uuid")] or ([pick(gpus, None)] if gpus else [])
        facts = match[0].facts() if match else {}
        here |= {
            name: facts.get(name, "absent") for name in ("gpu", "gpu_uuid", "compute_capability", "driver", "cuda")
        }
    here |= {f"sandbox_{name}": value for name, value in _sandbox_facts(then).items()}
    here |= {name: os.environ.get(name.removeprefix("env_"), "absent") for name in then if name.startswith("env_")}
    return {name: value for name, value in here.items() if name in then}


def _sandbox_facts(then: Mapping[str, str]) -> dict[str, str]:
    from optimizer.sandbox import launchers

    try:
        launcher = launchers.launcher(then.get("sandbox", "embedded"))
        return {} if launcher.available() else dict(launcher.facts())
    except OptimizerError:
        return {}


def _lines(row: Mapping[str, Any]) -> list[str]:
    served = ", ".join(map(str, row["served"])) or "none"
    lines = [f"{row['model']}: version {row['version']} is live ({row['format']}; served: {served})"]
    if not row["written"]:
        lines.append("  not written by triton-optimizer")
    else:
        lines += [f"  since {row['since']}, by study {row['study']}", f"  {row['decision']}"]
        lines += [f"  STALE: {reason}" for reason in row["stale"]] or ["  its evidence holds here"]
    if row["journal"]:
        lines.append(
            f"  an interrupted {row['journal']['kind']} of version {row['journal']['version']} is not settled yet"
        )
    if row["writer"]:
        lines.append(f"  being written by {row['writer']}")
    lines += [f"  {problem}" for problem in row["problems"]]
    return lines
