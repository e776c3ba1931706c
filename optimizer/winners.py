"""The winners of a repository, tried together with everything else in it, before anything is written.

A refused check takes one winner back and tries the rest again: the one at fault where one is known, else the one whose
gain alone was the smallest. What remains has passed as it will be written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from optimizer.accuracy.inputs import load_samples
from optimizer.accuracy.synthetic import parse_int_range, parse_shape, synthetic_samples
from optimizer.apply.winner import Winner, read_winner, work_out
from optimizer.config import Settings
from optimizer.errors import InputError, WriteBackRefused
from optimizer.gpu import list_gpus, read_state
from optimizer.ledger import Ledger
from optimizer.preparation import Preparation, chosen_gpu
from optimizer.progress import Progress
from optimizer.records.codec import to_json
from optimizer.records.decision import Decision
from optimizer.records.deployment import Deployment
from optimizer.records.model import Model
from optimizer.records.samples import SampleSet
from optimizer.repository.reader import read_model
from optimizer.side_by_side import Neighbour, as_on_disk
from optimizer.stand import model_files
from optimizer.together import MixedPair, check, recalled

SYNTHETIC = 8
"""Random requests to a model that is not tuned and has no samples: they load it, and say nothing of its answers."""


def try_together(
    repository: Path,
    names: Sequence[str],
    preparations: Mapping[str, Preparation],
    settings: Settings,
    *,
    directory: Path,
    ledger: Ledger,
    progress: Progress,
    samples_settings: Callable[[str], Settings],
) -> dict[str, Any]:
    """The document of :func:`optimizer.together.check`, with ``winners`` (names that passed) and ``taken_back``.

    ``names`` are all models of the repository, ``preparations`` those of the winners.
    """
    first = next(iter(preparations.values()))
    taken_back: list[dict[str, str]] = []
    tuned: dict[str, Deployment] = {}
    gains: dict[str, float] = {}
    for name, preparation in preparations.items():
        try:
            winner = _winner(preparation)
            tuned[name] = _as_written(preparation, winner)
            gains[name] = _gain(winner.decision)
        except WriteBackRefused as error:
            taken_back.append({"model": name, "code": "write_back", "reason": error.problem})
    if first.launcher.name == "remote":
        return _unchecked("models of a running server cannot be loaded a second time under their own names", taken_back)
    models = _readable(repository, names, settings)
    samples = {name: _samples(model, preparations.get(name), samples_settings) for name, model in models.items()}
    gpu = chosen_gpu(settings) if list_gpus() else None
    while True:
        if not tuned:
            return {**_unchecked("no winner is left", taken_back), "code": "none_left"}
        neighbours = [
            Neighbour(model, as_on_disk(model), tuned.get(name), samples[name]) for name, model in models.items()
        ]
        recall, record = _memory(ledger, ",".join(f"{name}={tuned[name].candidate_id}" for name in sorted(tuned)))
        document = check(
            neighbours, first.launcher, first.options, directory=directory, base=first.plan.workload,
            guard=settings.judge.largest_p99_ratio, max_pairs=settings.judge.max_pairs, recall=recall, record=record,
            progress=progress, gpu_memory=lambda: read_state(gpu).memory_used_bytes if gpu is not None else None,
        )  # fmt: skip
        if document["verdict"] == "passed":
            return {**document, "winners": sorted(tuned), "taken_back": taken_back}
        if document["code"] == "undecided":
            return {**document, "winners": [], "taken_back": taken_back}
        back = document["blamed"] if document["blamed"] in tuned else min(tuned, key=lambda name: gains[name])
        progress("warning", text=f"all together: {document['reason']}; {back} is taken back, and the rest tried again")
        taken_back.append({"model": back, "code": document["code"], "reason": document["reason"]})
        del tuned[back]


def _unchecked(reason: str, taken_back: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "verdict": "refused", "code": "unchecked", "reason": reason, "blamed": None, "winners": [],
        "taken_back": taken_back, "models": [], "left_out": {}, "ratio": None, "memory": {}, "pairs": [],
        "side_by_side": False,
    }  # fmt: skip


def _winner(preparation: Preparation) -> Winner:
    directory = preparation.plan.directory
    ledger = Ledger.view(directory)
    decision = ledger.load("decision", "final", Decision)
    if decision is None or decision.winner is None:
        raise WriteBackRefused("has no winner", where=directory, remedy="finish the study with `resume`")
    return read_winner(ledger, decision, directory)


def _as_written(preparation: Preparation, winner: Winner) -> Deployment:
    """The model exactly as a write-back would leave it: its new version and config, and what stays served."""
    model = preparation.plan.model
    write = work_out(preparation, winner, None, replace_served_versions=False)
    number = write.journal.version
    files = {f"{number}/{name}": source for name, source in write.sources.items() if isinstance(source, Path)}
    for version in model.versions:
        if version.number in write.final.served or version is model.live_version:
            inside = model_files(model.directory, version.path, version.number)
            if version.number not in write.final.served:
                inside = {path: file for path, file in inside.items() if not path.startswith(f"{version.number}/")}
            files |= inside
    return Deployment(model.name, write.config_text, files, candidate_id=winner.candidate, version=number)


def _gain(decision: Decision) -> float:
    """Of the winner alone, as far as it is sure."""
    for finalist in decision.finalists:
        if finalist.candidate_id == decision.winner:
            gain = finalist.gain_over_as_found or finalist.gain_over_default
            return gain.lower if gain is not None else 1.0
    return 1.0


def _readable(repository: Path, names: Sequence[str], settings: Settings) -> dict[str, Model]:
    models = {}
    for name in names:
        try:
            models[name] = read_model(repository, name, config_name=settings.config_name, with_hash=False)
        except InputError:
            # It is not served today either.
            continue
    return models


def _samples(
    model: Model, preparation: Preparation | None, samples_settings: Callable[[str], Settings]
) -> SampleSet | None:
    if preparation is not None:
        return preparation.plan.held_out
    try:
        inputs = samples_settings(model.name).inputs
        if inputs.file is not None and not inputs.file.is_dir():
            return load_samples(inputs.file, model, name="together")
    except InputError:
        # No samples of its own: random requests do for load.
        inputs = None
    try:
        return synthetic_samples(
            model, SYNTHETIC, 0,
            shapes=dict(parse_shape(text) for text in (inputs.shapes if inputs else ())),
            int_ranges=dict(parse_int_range(text) for text in (inputs.int_ranges if inputs else ())),
        )  # fmt: skip
    except InputError:
        return None


def _memory(ledger: Ledger, key: str) -> tuple[Callable[[int], MixedPair | None], Callable[[MixedPair], None]]:
    """Pairs of one set of winners, kept over an interruption; disturbed ones are measured again."""

    def recall(index: int) -> MixedPair | None:
        pair = recalled(ledger.get("mixed_pair", f"{key}:{index}"))
        return pair if pair is not None and pair.usable and not pair.failures else None

    def record(pair: MixedPair) -> None:
        ledger.append("mixed_pair", f"{key}:{pair.index}", to_json(pair))

    return recall, record
