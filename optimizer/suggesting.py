"""``optimize --suggest-tolerance``: what tolerances to start from, and why; tunes nothing and decides nothing.

The reference's own noise is measured on the real server, and the losses of one candidate of lower precision where the
engine family has one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from optimizer.accuracy.suggestion import Suggestion, losses_of, suggest_tolerance
from optimizer.ledger import Ledger
from optimizer.preparation import Preparation
from optimizer.progress import Progress
from optimizer.records.route import Knob, Layer, Route
from optimizer.study import expected_outputs, open_laboratory, serve_as_found

PREFERRED = ("fp16", "bf16", "int8")
"""Lower precisions, the most usual first."""


def suggestion_document(
    preparations: Sequence[Preparation], skipped: Mapping[str, str], progress: Progress
) -> dict[str, Any]:
    """A table with one row a tolerance; ``models`` holds the texts for the command line and the settings file."""
    rows, notes, models = [], [], []
    for preparation in preparations:
        name = preparation.plan.model.name
        suggestion = suggest(preparation, progress)
        rows += [[name, text] for text in suggestion.texts]
        notes += [f"{name}: {line}" for line in suggestion.explanation]
        models.append({"model": name, "tolerance": list(suggestion.texts), "explanation": list(suggestion.explanation)})
    notes += [f"{name}: not looked at: {reason}" for name, reason in skipped.items()]
    notes.append("what losses mean for an application only its owner knows: check these before you rely on them")
    return {
        "schema": 1,
        "kind": "table",
        "lines": ["Tolerances to start from: --tolerance TEXT, or `tolerance:` in the settings file"],
        "columns": ["model", "tolerance"],
        "rows": rows,
        "notes": notes,
        "models": models,
    }


def suggest(preparation: Preparation, progress: Progress) -> Suggestion:
    """Raises as a study does; leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="triton-optimizer-") as name:
        directory = Path(name)
        preparation = replace(
            preparation,
            plan=replace(preparation.plan, directory=directory, tolerances=(), constraints=()),
            options=replace(preparation.options, workdir=directory / "sandbox"),
        )
        with Ledger.open(directory) as ledger, open_laboratory(preparation, ledger, progress) as laboratory:
            serve_as_found(laboratory)
            tune, held_out = expected_outputs(laboratory, preparation)
            laboratory.plan = replace(laboratory.plan, tune=tune, held_out=held_out)
            details = tune.details["noise"]
            noise = {str(key): float(loss) for key, loss in details.items()} if isinstance(details, Mapping) else {}
            knobs = preparation.plan.family.knobs(preparation.plan.model)
            losses, precision, problem = None, "FP16", "this engine family has no lower precision"
            for route, label in lower_precisions(knobs):
                candidate = laboratory.candidate(route)
                progress("stage", text=f"losses of {candidate.label}")
                rejection = laboratory.serve(laboratory.stand, candidate)
                if rejection is not None:
                    problem = f"{candidate.label}: {rejection.message}"
                    continue
                parity = laboratory.validate(candidate, tune)
                if parity.defects:
                    problem = f"{candidate.label}: {parity.defects[0]}"
                    continue
                losses, precision = losses_of(parity), label
                break
            suggestion = suggest_tolerance(noise, losses, laboratory.plan.output_datatypes, precision=precision)
            if losses is None:
                return replace(suggestion, explanation=(*suggestion.explanation, problem))
            return suggestion


def lower_precisions(knobs: Sequence[Knob]) -> list[tuple[Route, str]]:
    """Routes that lower the precision alone, the most usual first, each with the name of its precision."""
    found = []
    for word in PREFERRED:
        for knob in knobs:
            if knob.layer is Layer.PRECISION:
                values = [value for value in knob.values if value != knob.default and _is(value, word)]
                found += [(Route.of({knob.name: value}), word.upper()) for value in values]
    return found


def _is(value: str, word: str) -> bool:
    return word in value.lower().split("_")
