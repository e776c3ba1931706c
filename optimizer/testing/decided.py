"""A study that has ended with a known winner, without the time that measuring takes: for tests of what comes after."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from optimizer.accuracy.kept_references import save_references
from optimizer.accuracy.references import GOLDEN, with_expected
from optimizer.config import Settings
from optimizer.engines._base import BuildRequest
from optimizer.ledger import Ledger, StudyHeader, write_study
from optimizer.preparation import Preparation, prepare, references_file
from optimizer.records.decision import Decision, Finalist, Interval, KeepReason, Verdict
from optimizer.records.engine import BuildFailure
from optimizer.records.route import AS_FOUND, Candidate, Route
from optimizer.records.samples import Arrays


def decided_study(
    repository: Path,
    name: str,
    directory: Path,
    settings: Settings,
    expected: Callable[[Arrays], Arrays],
    *,
    route: Route | None = None,
    served: bool = True,
) -> Preparation:
    """``route`` wins (``None``: what is there is kept); its engine is really built. ``expected`` gives a sample's right
    outputs. ``served``: whether the model as found could be measured."""
    preparation = prepare(repository, name, settings, directory)
    plan = preparation.plan
    notes = {"model": name, "repository": str(preparation.repository)}
    header = StudyHeader(settings.model_dump(mode="json"), preparation.fingerprint, created_at=time.time(), notes=notes)
    write_study(directory, header)
    kept = references_file(directory)
    kept.parent.mkdir(parents=True)
    outputs = [dict(expected(sample.inputs)) for sample in plan.held_out.samples]
    save_references(kept, with_expected(plan.held_out, outputs, GOLDEN))
    decision = Decision(Verdict.KEEP, None, AS_FOUND, "what is there is kept", KeepReason.GAIN_BELOW_MINIMUM)
    with Ledger.open(directory) as ledger:
        if route is not None:
            winner = _built(preparation, ledger, route)
            gain = Interval(1.5, 1.4, 1.6, 0.95, 12)
            finalist = Finalist(winner.id, winner.label, gain if served else None, gain, None, True, "")
            decision = replace(
                decision, verdict=Verdict.WINNER, winner=winner.id, winner_label=winner.label, keep_reason=None,
                sentence=f"{winner.label} replaces what is there", finalists=(finalist,),
                reference_id=AS_FOUND if served else "default",
            )  # fmt: skip
        decision = replace(decision, tolerance_given=bool(plan.tolerances), held_out_samples=len(plan.held_out))
        ledger.save("decision", "final", decision)
    return preparation


def _built(preparation: Preparation, ledger: Ledger, route: Route) -> Candidate:
    plan = preparation.plan
    winner = Candidate(plan.model.name, plan.model.content_hash, plan.family.name, route, plan.build_route(route))
    files = plan.directory / "engines" / winner.engine_id
    files.mkdir(parents=True)
    engine = plan.family.build(
        BuildRequest(winner.engine_id, plan.model, winner.build_route, files, source=plan.source), plan.calibration
    )
    if isinstance(engine, BuildFailure):
        raise RuntimeError(f"the winner does not build: {engine.message}")
    ledger.save("build", winner.engine_id, engine)
    ledger.append("candidate", winner.id, {"route": route.text, "label": winner.label, "engine": winner.engine_id})
    return winner
