"""A whole repository: every model that can be tuned, then all winners tried together, then written; resumable as one.

``DIR/fleet.json`` says what was asked for, ``DIR/ledger.jsonl`` what the run as a whole has learnt (as-found speeds,
failures, the check of all together, what was written), ``DIR/MODEL/`` is the study of one model like any other.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from optimizer import __version__
from optimizer.apply import apply_winner
from optimizer.choosing import Chosen, choose_models
from optimizer.config import Settings, parse_settings
from optimizer.durable import write_json
from optimizer.errors import EnvironmentFailure, InputError, OptimizerError, StudyInterrupted
from optimizer.ledger import STUDY_FILE, Ledger
from optimizer.preparation import Preparation, prepare
from optimizer.progress import Progress, silent
from optimizer.records.decision import Decision
from optimizer.repository.reader import list_models
from optimizer.shares import SMALLEST_S, share_s, weights
from optimizer.side_by_side import as_on_disk
from optimizer.stand import Stand
from optimizer.studies import begin, begin_run, refuse_begun, reopen, settings_of
from optimizer.study import run_study, study_in
from optimizer.winners import try_together

FLEET_FILE = "fleet.json"
FLEET = "a tuning of several models"
SCHEMA = 1
PROBE_S = 1.0
"""Length of the window that measures a model as found, to split the time by."""


def is_fleet(directory: Path) -> bool:
    return (directory / FLEET_FILE).is_file()


def begin_fleet(
    repository: Path, settings: Settings, names: Sequence[str], directory: Path, progress: Progress
) -> tuple[Ledger, list[Chosen]]:
    """Chooses the models, owns the directory and writes ``fleet.json`` in it. The ledger, which holds the lock still,
    is the caller's to close. Raises :class:`InputError`, :class:`EnvironmentFailure`."""
    refuse_begun(directory, FLEET_FILE, FLEET)
    chosen = choose_models(repository, settings, names, lambda name: directory / name)
    for one in chosen:
        if one.preparation is not None and (directory / one.name / STUDY_FILE).exists():
            raise InputError(
                "holds a study already",
                where=directory / one.name,
                field="--study",
                remedy="name another directory with --study",
            )
    ledger = begin_run(directory, FLEET_FILE, FLEET, lambda: _write_fleet(repository, settings, chosen, directory))
    for one in chosen:
        if one.skip is not None:
            progress("stage", text=f"{one.name}: not tuned: {one.skip.reason}")
    return ledger, chosen


def _write_fleet(repository: Path, settings: Settings, chosen: Sequence[Chosen], directory: Path) -> None:
    document = {
        "schema": SCHEMA,
        "kind": "fleet",
        "version": __version__,
        "created_at": time.time(),
        "repository": str(repository.resolve()),
        "settings": settings.model_dump(mode="json"),
        "models": {one.name: one.skip.as_json() if one.skip else None for one in chosen},
        # What each study begins with; its share of the time comes on top.
        "own_settings": {
            one.name: one.preparation.settings.model_dump(mode="json") for one in chosen if one.preparation
        },
    }
    try:
        write_json(directory / FLEET_FILE, document)
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot be written: {error.strerror}", where=directory, remedy="name another directory with --study"
        ) from None


def read_fleet(directory: Path) -> dict[str, Any]:
    """``fleet.json``. Raises :class:`InputError`."""
    path = directory / FLEET_FILE
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
        schema = document["schema"]
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", where=path, remedy="name the directory of a run"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise InputError("is damaged", where=path, remedy="restore it from a copy, or start a new run") from None
    if schema > SCHEMA:
        raise InputError(
            f"schema {schema}, this version reads up to {SCHEMA}", where=path,
            remedy=f"use the version of triton-optimizer that wrote it (this is {__version__}), or a later one",
        )  # fmt: skip
    return document


def run_fleet(ledger: Ledger, chosen: Sequence[Chosen] | None, *, write_back: bool, progress: Progress) -> None:
    """Goes on from wherever the ledger's run is. ``chosen`` saves reading the models again, in the run that began it.

    Raises :class:`StudyInterrupted` on Ctrl-C, and :class:`EnvironmentFailure` where nothing can run here. What goes
    wrong with one model is recorded, and the others go on.
    """
    directory = ledger.path.parent
    run = _Run(directory, read_fleet(directory), ledger, {one.name: one for one in chosen or ()}, progress)
    try:
        with run.clock():
            run.studies()
            together = run.together()
        if write_back:
            run.write_back(together)
    except KeyboardInterrupt:
        raise _interrupted(directory) from None


class _Run:
    def __init__(
        self, directory: Path, asked: Mapping[str, Any], ledger: Ledger, chosen: Mapping[str, Chosen],
        progress: Progress,
    ) -> None:  # fmt: skip
        self.directory = directory
        self.repository = Path(asked["repository"])
        self.settings = parse_settings(asked["settings"], where=directory / FLEET_FILE)
        self.names = [name for name, skip in asked["models"].items() if skip is None]
        self.own = {
            name: parse_settings(own, where=directory / FLEET_FILE) for name, own in asked["own_settings"].items()
        }
        self.ledger = ledger
        self.progress = progress
        self._prepared = {name: one.preparation for name, one in chosen.items() if one.preparation is not None}
        minutes = self.settings.budget.minutes
        self.limit_s = minutes * 60 if minutes else None
        self._before_s = float((ledger.get("fact", "spent") or {}).get("wall_s", 0.0))
        self._started = time.monotonic()

    # Time

    @property
    def spent_s(self) -> float:
        return self._before_s + time.monotonic() - self._started

    @contextlib.contextmanager
    def clock(self) -> Iterator[None]:
        """A resumed run goes on counting where this one stops."""
        try:
            yield
        finally:
            with contextlib.suppress(EnvironmentFailure):
                self.ledger.append("fact", "spent", {"wall_s": self.spent_s})

    # Studies

    def decision_of(self, name: str) -> Decision | None:
        if not (self.directory / name / STUDY_FILE).exists():
            return None
        with contextlib.suppress(InputError):
            return Ledger.view(self.directory / name).load("decision", "final", Decision)
        return None

    def preparation_of(self, name: str) -> Preparation:
        if name not in self._prepared:
            directory = self.directory / name
            begun = (directory / STUDY_FILE).exists()
            self._prepared[name] = (
                reopen(directory) if begun else prepare(self.repository, name, self.own[name], directory)
            )
        return self._prepared[name]

    def studies(self) -> None:
        weight = self._weights()
        order = list(weight)
        ended: set[str] = set()
        for place, name in enumerate(order):
            if self.decision_of(name) is None:
                waiting = [one for one in order[place:] if one not in ended]
                share = share_s(name, weight, waiting, self.limit_s, self.spent_s)
                text = f"study {place + 1} of {len(order)}: {name}"
                self.progress("stage", text=text + (f", {share:.0f} s of the time" if share is not None else ""))
                self._study(name, share)
            ended.add(name)

    def _study(self, name: str, share: float | None) -> None:
        try:
            begun = (self.directory / name / STUDY_FILE).exists()
            if share is not None and share < SMALLEST_S and not begun:
                raise StudyInterrupted(
                    "the time was spent before its study began", field="budget",
                    remedy="give a larger --budget-minutes, or tune it alone with --model",
                )  # fmt: skip
            preparation = self.preparation_of(name)
            if begun:
                run_study(preparation, self.progress)
                return
            if share is not None:
                preparation = _with_minutes(preparation, share / 60)
                self._prepared[name] = preparation
            with begin(preparation) as ledger:
                self.ledger.append("share", name, {"seconds": share})
                study_in(ledger, preparation, self.progress)
        except OptimizerError as error:
            if isinstance(error, StudyInterrupted) and error.field != "budget":
                raise _interrupted(self.directory) from None
            self.progress("warning", text=f"{name}: {error.problem}")
            self.ledger.append("failed", name, error.as_json())

    def _weights(self) -> dict[str, float]:
        """Largest share first. Measured once, and only where there is a time to split."""
        known = self.ledger.get("fact", "weights")
        if known is not None:
            return dict(sorted(known["weights"].items(), key=lambda item: (-item[1], item[0])))
        seconds: dict[str, float | None] = dict.fromkeys(self.names)
        if self.limit_s is not None and len(self.names) > 1:
            seconds |= self._seconds_an_inference()
        loads = {name: self.own[name].budget.load_per_s for name in self.names}
        found = weights(seconds, loads) if self.names else {}
        self.ledger.append("fact", "weights", {"weights": found, "seconds_an_inference": seconds})
        return found

    def _seconds_an_inference(self) -> dict[str, float | None]:
        """As found, one model after the other on one server; ``None`` for a model that does not load or answer."""
        found: dict[str, float | None] = {}
        first = self.preparation_of(self.names[0])
        self.progress("stage", text=f"measuring {len(self.names)} models as found, to split the time by")
        with contextlib.ExitStack() as stack:
            workdir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="probe-", dir=self.directory)))
            options = replace(first.options, workdir=workdir)
            stand = stack.enter_context(Stand(first.launcher, options, client_processes=self.settings.load.processes))
            for number, name in enumerate(self.names):
                found[name] = self._probe(stand, f"probe_{number}", self.preparation_of(name))
        return found

    def _probe(self, stand: Stand, served_as: str, preparation: Preparation) -> float | None:
        plan = preparation.plan
        if stand.serve(as_on_disk(plan.model, name=served_as)) is not None:
            return None
        stand.prepare(plan.tune, plan.datatypes, batched=plan.model.batched)
        workload = replace(plan.workload, duration_s=PROBE_S)
        measured = stand.load(served_as, workload, "probe", warmup_s=PROBE_S / 2).measurement
        stand.drop(served_as)
        return 1 / measured.throughput if measured.throughput > 0 else None

    # Together

    def winners(self) -> dict[str, Decision]:
        found = {name: self.decision_of(name) for name in self.names}
        return {name: decision for name, decision in found.items() if decision is not None and decision.winner}

    def together(self) -> dict[str, Any] | None:
        """The check's document; ``None`` where there is no winner. Done once for a set of winners."""
        winners = self.winners()
        if not winners:
            return None
        key = ",".join(f"{name}={decision.winner}" for name, decision in sorted(winners.items()))
        known = self.ledger.get("together", key)
        if known is not None and known["code"] != "undecided":
            return known
        document = try_together(
            self.repository, list_models(self.repository), {name: self.preparation_of(name) for name in winners},
            self.settings, directory=self.directory / "together", ledger=self.ledger, progress=self.progress,
            samples_settings=lambda name: self.own.get(name) or settings_of(self.settings, name),
        )  # fmt: skip
        self.ledger.append("together", key, document)
        self.progress("stage", text=f"all together: {document['verdict']}: {document['reason']}")
        return document

    # Writing

    def write_back(self, together: Mapping[str, Any] | None, **options: Any) -> dict[str, dict[str, Any]]:
        """By model: the document of its write-back, or the error that refused it. Recorded, unless it is a dry run."""
        tried: dict[str, dict[str, Any]] = {}
        for name in together["winners"] if together is not None else ():
            if self.ledger.get("written", name) is not None:
                continue
            try:
                tried[name] = apply_winner(reopen(self.directory / name), **options)
            except OptimizerError as error:
                tried[name] = error.as_json()
                self.progress("warning", text=f"{name} is not written: {error.problem}")
            if not options.get("dry_run"):
                self.ledger.append("refused" if "error" in tried[name] else "written", name, tried[name])
        return tried


def apply_fleet(directory: Path, **options: Any) -> dict[str, dict[str, Any]]:
    """Writes every winner that passed the check of all together. Raises :class:`InputError` where that was not done."""
    with Ledger.open(directory) as ledger:
        run = _Run(directory, read_fleet(directory), ledger, {}, silent)
        together = last_check(ledger)
        if together is None and run.winners():
            raise InputError(
                "the winners have not been tried together", where=directory,
                remedy=f"finish it: triton-optimizer resume {directory}",
            )  # fmt: skip
        return run.write_back(together, **options)


def last_check(ledger: Ledger) -> dict[str, Any] | None:
    found = None
    for entry in ledger.records("together"):
        found = entry.data
    return found


def _with_minutes(preparation: Preparation, minutes: float) -> Preparation:
    settings = preparation.settings
    budget = settings.budget.model_copy(update={"minutes": minutes})
    return replace(preparation, settings=settings.model_copy(update={"budget": budget}))


def _interrupted(directory: Path) -> StudyInterrupted:
    return StudyInterrupted(
        "interrupted; every study keeps what it has measured",
        where=directory,
        remedy=f"go on with all of them: triton-optimizer resume {directory}",
    )
