"""The main job from outside: a repository in, a document out. What the command line and the Python API call."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optimizer.apply import already_applied, apply_winner, recover
from optimizer.choosing import Chosen, choose_models
from optimizer.config import Settings
from optimizer.engines.disk import estimate_disk
from optimizer.errors import InputError, OptimizerError, WriteBackRefused
from optimizer.fleet import apply_fleet, begin_fleet, is_fleet, read_fleet, run_fleet
from optimizer.ledger import STUDY_FILE, Ledger, read_study
from optimizer.overview import fleet_document
from optimizer.preparation import Preparation
from optimizer.progress import Progress
from optimizer.records.decision import Decision
from optimizer.repository.reader import list_models, read_model
from optimizer.studies import begin, reopen, studies_below
from optimizer.study import study_in
from optimizer.summary import study_document

DEFAULT_DIRECTORY = Path("studies")


def settle(repository: Path, progress: Progress) -> None:
    """What a killed write-back left is finished or undone before anything is read. Raises :class:`OptimizerError`."""
    for line in recover(repository):
        progress("warning", text=line)


def names_of(repository: Path, settings: Settings) -> list[str]:
    there = list_models(repository)
    for name in settings.per_model:
        if name not in there:
            near = difflib.get_close_matches(name, there, n=1)
            remedy = f"did you mean `{near[0]}`?" if near else "models there: " + (", ".join(there) or "none")
            raise InputError("there is no such model", where=repository, field=f"per_model.{name}", remedy=remedy)
    names = settings.models or there
    if not names:
        raise InputError("holds no model", where=repository, remedy="give a Triton model repository")
    return names


def optimize_repository(
    repository: Path, settings: Settings, *, study: Path | None, write_back: bool, progress: Progress
) -> dict[str, Any]:
    """Tunes every chosen model, or only suggests tolerances for it. Raises :class:`OptimizerError`."""
    if (
        write_back
        and not settings.suggest_tolerance
        and not settings.tolerance
        and not any("tolerance" in own for own in settings.per_model.values())
    ):
        raise WriteBackRefused(
            "no tolerance",
            field="--tolerance",
            remedy="say how far answers may be from the reference, for instance --tolerance '*:lInf<=1e-3', "
            "or leave --write-back out to explore",
        )
    settle(repository, progress)
    names = names_of(repository, settings)
    if settings.suggest_tolerance:
        from optimizer.suggesting import suggestion_document

        chosen = choose_models(repository, settings, names, lambda name: DEFAULT_DIRECTORY / name)
        skipped = {one.name: one.skip.reason for one in chosen if one.skip is not None}
        return suggestion_document(
            [one.preparation for one in chosen if one.preparation is not None], skipped, progress
        )
    if len(names) > 1:
        directory = study or DEFAULT_DIRECTORY
        ledger, many = begin_fleet(repository, settings, names, directory, progress)
        with ledger:
            run_fleet(ledger, many, write_back=write_back, progress=progress)
        return fleet_document(directory)
    (one,) = choose_models(repository, settings, names, lambda name: study or DEFAULT_DIRECTORY / name)
    return {
        "schema": 1,
        "kind": "optimize",
        "repository": str(repository),
        "models": [_tune(one, new=True, write_back=write_back, progress=progress)],
    }


def _tune(one: Chosen, *, new: bool, write_back: bool, progress: Progress) -> dict[str, Any]:
    if one.preparation is None:
        assert one.skip is not None
        return {"model": one.name, "skipped": one.skip.reason, "skip": one.skip.as_json()}
    progress("stage", text=f"{one.name}: study in {one.preparation.plan.directory}")
    with begin(one.preparation) if new else Ledger.open(one.preparation.plan.directory) as ledger:
        result = study_in(ledger, one.preparation, progress)
    applied = None
    if write_back and result.decision.winner is not None:
        applied = apply_study(result.directory)
    return {"model": one.name, "study": study_document(result.directory), "applied": applied}


def resume_study(directory: Path, *, write_back: bool, progress: Progress) -> dict[str, Any]:
    """Goes on with one study, or with every one below ``directory``."""
    if is_fleet(directory):
        settle(Path(read_fleet(directory)["repository"]), progress)
        with Ledger.open(directory) as ledger:
            run_fleet(ledger, None, write_back=write_back, progress=progress)
        return fleet_document(directory)
    directories = [directory] if (directory / STUDY_FILE).exists() else studies_below(directory)
    models = []
    for each in directories:
        settle(Path(read_study(each).notes["repository"]), progress)
        # Its own write-back changed the model: there is nothing to go on with, and nothing wrong either.
        done = already_applied(each)
        if done is not None:
            models.append({"model": done["model"], "study": study_document(each), "applied": done})
            continue
        preparation = reopen(each)
        if write_back and not preparation.settings.tolerance:
            raise WriteBackRefused("the study has no tolerance", where=each, remedy="start a study with --tolerance")
        one = Chosen(preparation.plan.model.name, preparation)
        models.append(_tune(one, new=False, write_back=write_back, progress=progress))
    return {"schema": 1, "kind": "optimize", "repository": models[0]["study"]["repository"], "models": models}


def apply_study(
    directory: Path,
    *,
    dry_run: bool = False,
    server_url: str | None = None,
    replace_served_versions: bool = False,
    accept_unserved_baseline: bool = False,
) -> dict[str, Any]:
    """Writes the study's winner into its repository; of a whole repository's run, every winner that passed the check
    of all together."""
    if is_fleet(directory):
        recover(Path(read_fleet(directory)["repository"]))
        tried = apply_fleet(
            directory, dry_run=dry_run, server_url=server_url, replace_served_versions=replace_served_versions,
            accept_unserved_baseline=accept_unserved_baseline,
        )  # fmt: skip
        return fleet_document(directory, tried)
    # The model has changed by that very write-back, so a study that was applied could not be opened again.
    done = already_applied(directory, server_url=server_url)
    if done is not None:
        return done
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
    recover(repository)
    names = names_of(repository, settings)
    for one in choose_models(repository, settings, names, lambda name: DEFAULT_DIRECTORY / name):
        if one.preparation is not None:
            models.append(_estimate(one.preparation))
        elif one.skip is not None:
            models.append({"model": one.name, "skipped": one.skip.reason, "skip": one.skip.as_json()})
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
    disk = estimate_disk(
        size, len(engines), plan.directory, plans=plan.family.name == "tensorrt", save_all=plan.save_all_engines
    )
    short = [] if disk.enough else [f"disk: {disk.free_bytes / 1e6:,.0f} MB are free, too few: use --study elsewhere"]
    return {
        "model": plan.model.name,
        "count": len(routes),
        "engines": len(engines),
        "routes": [route.text for route in routes],
        "estimated_s": min(seconds, limit * 60) if limit else seconds,
        "assumptions": {
            "build_s": build_s, "load_s": GUESSED_LOAD_S, "pairs_a_candidate": GUESSED_PAIRS, "window_s": window_s,
        },
        "disk_bytes": disk.peak_bytes,
        "disk_kept_bytes": disk.kept_bytes,
        "disk_free_bytes": disk.free_bytes,
        "why": [*(f"{subject}: {reason}" for subject, reason in preparation.why.items()), *short],
        "samples": {"tune": len(plan.tune), "held_out": len(plan.held_out), "synthetic": plan.tune.synthetic},
    }  # fmt: skip


def report_document(directory: Path, html: Path | None) -> dict[str, Any]:
    """A study; of a whole repository's run the summary, on ``html`` with a page a model
    beside it."""
    if is_fleet(directory):
        return _fleet_report(directory, html)
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


def _fleet_report(directory: Path, html: Path | None) -> dict[str, Any]:
    document = fleet_document(directory)
    if html is not None:
        from optimizer.durable import write_atomically
        from optimizer.report.page import study_page
        from optimizer.report.repository_page import repository_page

        pages = {
            one["model"]: f"{html.stem}-{one['model']}{html.suffix or '.html'}"
            for one in document["models"]
            if one.get("study")
        }
        try:
            for one in document["models"]:
                if one["model"] in pages:
                    write_atomically(html.with_name(pages[one["model"]]), study_page(one["study"]))
            write_atomically(html, repository_page(document, pages))
        except OSError as error:
            raise InputError(
                f"the page cannot be written: {error.strerror}", where=html, field="--html",
                remedy="name a file in a directory that exists and may be written",
            ) from None  # fmt: skip
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
