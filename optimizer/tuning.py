"""The main job from outside: a repository in, a document out. What the command line and the Python API call."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimizer.config import Settings, parse_settings
from optimizer.errors import InputError, OptimizerError, WriteBackRefused
from optimizer.ledger import STUDY_FILE, StudyHeader, check_fingerprint, read_study, write_study
from optimizer.preparation import Preparation, prepare
from optimizer.progress import Progress
from optimizer.records.decision import Decision
from optimizer.repository.reader import list_models, read_model
from optimizer.study import run_study
from optimizer.summary import study_document

DEFAULT_DIRECTORY = Path("studies")


@dataclass(frozen=True)
class Chosen:
    """A model that will be tuned, or the reason why not."""

    name: str
    preparation: Preparation | None = None
    skipped: str = ""


def choose_models(repository: Path, settings: Settings, study: Path | None) -> list[Chosen]:
    """Named models must be tunable: their errors are raised. Without names every model is looked at, and those that
    cannot be tuned get a reason."""
    names = settings.models or list_models(repository)
    if not names:
        raise InputError("holds no model", where=repository, remedy="give a Triton model repository")
    chosen = []
    for name in names:
        directory = study_directory(study, name, several=len(names) > 1)
        try:
            chosen.append(Chosen(name, prepare(repository, name, settings, directory)))
        except InputError as error:
            if settings.models:
                raise
            chosen.append(Chosen(name, skipped=error.problem))
    return chosen


def study_directory(study: Path | None, name: str, *, several: bool) -> Path:
    if study is None:
        return DEFAULT_DIRECTORY / name
    return study / name if several else study


def optimize_repository(
    repository: Path, settings: Settings, *, study: Path | None, write_back: bool, progress: Progress
) -> dict[str, Any]:
    """Tunes every chosen model. Raises :class:`OptimizerError`."""
    if write_back and not settings.tolerance:
        raise WriteBackRefused(
            "no tolerance",
            field="--tolerance",
            remedy="say how far answers may be from the reference, for instance --tolerance '*:lInf<=1e-3', "
            "or leave --write-back out to explore",
        )
    chosen = choose_models(repository, settings, study)
    for one in chosen:
        if one.preparation is not None:
            _begin(one.preparation)
    return {
        "schema": 1,
        "kind": "optimize",
        "repository": str(repository),
        "models": [_tune(one, write_back=write_back, progress=progress) for one in chosen],
    }


def _begin(preparation: Preparation) -> None:
    """Writes ``study.json``. A directory that holds a study already is resumed or left alone, never overwritten."""
    directory = preparation.plan.directory
    if (directory / STUDY_FILE).exists():
        raise InputError(
            "holds a study already",
            where=directory,
            field="--study",
            remedy=f"go on with it (triton-optimizer resume {directory}), or name another directory",
        )
    header = StudyHeader(
        settings=preparation.settings.model_dump(mode="json"),
        fingerprint=preparation.fingerprint,
        created_at=time.time(),
        notes={
            "model": preparation.plan.model.name,
            "repository": str(preparation.repository),
            **{f"why_{subject}": reason for subject, reason in preparation.why.items()},
        },
    )
    write_study(directory, header)


def _tune(one: Chosen, *, write_back: bool, progress: Progress) -> dict[str, Any]:
    if one.preparation is None:
        return {"model": one.name, "skipped": one.skipped}
    progress("stage", text=f"{one.name}: study in {one.preparation.plan.directory}")
    result = run_study(one.preparation, progress)
    applied = None
    if write_back and result.decision.winner is not None:
        applied = apply_study(result.directory)
    return {"model": one.name, "study": study_document(result.directory), "applied": applied}


def resume_study(directory: Path, *, write_back: bool, progress: Progress) -> dict[str, Any]:
    """Goes on with one study, or with every one below ``directory``."""
    directories = [directory] if (directory / STUDY_FILE).exists() else _studies_below(directory)
    models = []
    for each in directories:
        preparation = reopen(each)
        if write_back and not preparation.settings.tolerance:
            raise WriteBackRefused("the study has no tolerance", where=each, remedy="start a study with --tolerance")
        models.append(_tune(Chosen(preparation.plan.model.name, preparation), write_back=write_back, progress=progress))
    return {"schema": 1, "kind": "optimize", "repository": models[0]["study"]["repository"], "models": models}


def _studies_below(directory: Path) -> list[Path]:
    found = sorted(path.parent for path in directory.glob(f"*/{STUDY_FILE}"))
    if not found:
        raise InputError("holds no study", where=directory, remedy="name the directory of a study")
    return found


def reopen(directory: Path) -> Preparation:
    """The preparation of an earlier study, here and now. Raises when the fingerprint differs."""
    header = read_study(directory)
    settings = parse_settings(header.settings, where=directory / STUDY_FILE)
    preparation = prepare(Path(header.notes["repository"]), header.notes["model"], settings, directory)
    check_fingerprint(directory, header, preparation.fingerprint)
    return preparation


def apply_study(
    directory: Path,
    *,
    dry_run: bool = False,
    server_url: str | None = None,
    replace_served_versions: bool = False,
    accept_unserved_baseline: bool = False,
) -> dict[str, Any]:
    """Writes the study's winner into its repository."""
    from optimizer.apply import apply_winner

    preparation = reopen(directory)
    return apply_winner(
        preparation,
        dry_run=dry_run,
        server_url=server_url,
        replace_served_versions=replace_served_versions,
        accept_unserved_baseline=accept_unserved_baseline or preparation.settings.accept_unserved_baseline,
    )


def dry_run_document(repository: Path, settings: Settings) -> dict[str, Any]:
    """Candidates, estimated time and disk. Builds and writes nothing."""
    models = []
    for one in choose_models(repository, settings, None):
        models.append(_estimate(one.preparation) if one.preparation else {"model": one.name, "skipped": one.skipped})
    return {"schema": 1, "kind": "dry_run", "repository": str(repository), "models": models}


GUESSED_LOAD_S = 1.0
GUESSED_PAIRS = 3.0
"""Windows pairs a candidate takes on average: the race gives one to most, more to the best, and confirms three."""


def _estimate(preparation: Preparation) -> dict[str, Any]:
    plan = preparation.plan
    routes = list(itertools.islice(plan.space.candidates(), preparation.settings.search.max_candidates + 1))
    engines = {plan.build_route(route) for route in routes}
    size = plan.model.live_version.size_bytes if plan.model.live_version else 0
    build_s = 10.0 if plan.family.name == "tensorrt" else 2.0
    window_s = plan.workload.duration_s
    seconds = len(engines) * build_s + len(routes) * (GUESSED_LOAD_S + plan.warmup_s + GUESSED_PAIRS * 2 * window_s)
    limit = preparation.settings.budget.minutes
    return {
        "model": plan.model.name,
        "count": len(routes),
        "engines": len(engines),
        "routes": [route.text for route in routes],
        "estimated_s": min(seconds, limit * 60) if limit else seconds,
        "assumptions": {
            "build_s": build_s, "load_s": GUESSED_LOAD_S, "pairs_a_candidate": GUESSED_PAIRS, "window_s": window_s,
        },
        "disk_bytes": len(engines) * size,
        "why": [f"{subject}: {reason}" for subject, reason in preparation.why.items()],
        "samples": {"tune": len(plan.tune), "held_out": len(plan.held_out), "synthetic": plan.tune.synthetic},
    }  # fmt: skip


def report_document(directory: Path, html: Path | None) -> dict[str, Any]:
    document = study_document(directory)
    if html is not None:
        from optimizer.durable import write_atomically
        from optimizer.report.page import study_page

        try:
            write_atomically(html, study_page(document))
        except OSError as error:
            raise InputError(
                f"the page cannot be written: {error.strerror}",
                where=html,
                field="--html",
                remedy="name a file in a directory that exists and may be written",
            ) from None
        document["page"] = str(html)
    return document


def status_document(repository: Path, names: Sequence[str]) -> dict[str, Any]:
    """What is live in every model, on which evidence, and whether that is stale here."""
    from optimizer.apply import live_status

    rows = []
    for name in names or list_models(repository):
        try:
            rows.append(live_status(repository, read_model(repository, name)))
        except OptimizerError as error:
            if names:
                raise
            rows.append({"model": name, "error": error.problem})
    return {"schema": 1, "kind": "status", "repository": str(repository), "models": rows}


def decided(directory: Path) -> Decision:
    """The decision of a finished study. Raises :class:`InputError` for an unfinished one."""
    from optimizer.ledger import Ledger

    decision = Ledger.view(directory).load("decision", "final", Decision)
    if decision is None:
        raise InputError(
            "has not reached a decision", where=directory, remedy=f"finish it: triton-optimizer resume {directory}"
        )
    return decision
