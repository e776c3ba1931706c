"""Which models of a repository are tuned, and why the others are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from optimizer.accuracy.tolerances import parse_tolerance
from optimizer.apply.provenance import read_provenance
from optimizer.apply.status import facts_here, stale_facts
from optimizer.config import Settings
from optimizer.errors import InputError, OptimizerError
from optimizer.preparation import Preparation, prepare
from optimizer.records.environment import GIVEN_FILES
from optimizer.records.model import Model, ModelFormat
from optimizer.repository.reader import read_model
from optimizer.studies import settings_of
from optimizer.together import asks_others


@dataclass(frozen=True)
class Skip:
    """Why a model is not tuned. ``code`` is stable: ``ensemble``, ``pipeline``, ``string_inputs``, ``no_samples``,
    ``fresh``, ``unreadable``, ``blocked``."""

    code: str
    reason: str
    remedy: str = ""

    def as_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class Chosen:
    """A model that will be tuned, or the reason why not."""

    name: str
    preparation: Preparation | None = None
    skip: Skip | None = None


def choose_models(
    repository: Path, settings: Settings, names: Sequence[str], directory_of: Callable[[str], Path]
) -> list[Chosen]:
    """Models that the settings name must be tunable: their errors are raised. Where none is named every one is looked
    at, and those that cannot be tuned, or need not be, get a reason."""
    if settings.models:
        return [
            Chosen(name, prepare(repository, name, settings_of(settings, name), directory_of(name))) for name in names
        ]
    settings = _directory_of_samples(settings, several=len(names) > 1)
    return [_choose(repository, settings, name, directory_of(name)) for name in names]


def _directory_of_samples(settings: Settings, *, several: bool) -> Settings:
    """``--inputs DIR`` for several models is the directory of their samples: one model's samples suit no other."""
    inputs = settings.inputs
    if not several or inputs.directory is not None or inputs.file is None or not inputs.file.is_dir():
        return settings
    changed = inputs.model_copy(update={"file": None, "directory": inputs.file})
    return settings.model_copy(update={"inputs": changed})


def _choose(repository: Path, settings: Settings, name: str, directory: Path) -> Chosen:
    try:
        model = read_model(repository, name, config_name=settings.config_name, with_hash=False)
    except InputError as error:
        return Chosen(name, skip=Skip("unreadable", error.problem, error.remedy or ""))
    skip = _by_kind(model)
    if skip is not None:
        return Chosen(name, skip=skip)
    try:
        own = settings_of(settings, name)
    except InputError as error:
        code = "no_samples" if name not in settings.per_model else "blocked"
        return Chosen(name, skip=Skip(code, error.problem, error.remedy or ""))
    if own.inputs.file is None and any(spec.datatype == "BYTES" for spec in model.inputs):
        return Chosen(name, skip=Skip(
            "string_inputs", "string inputs: random texts would say nothing about real ones",
            "give samples of real requests with --inputs-directory",
        ))  # fmt: skip
    try:
        preparation = prepare(repository, name, _with_its_tolerances(own, model), directory)
    except InputError as error:
        return Chosen(name, skip=Skip("blocked", error.problem, error.remedy or ""))
    if is_fresh(preparation):
        return Chosen(name, skip=Skip(
            "fresh", "already fresh: its live version was written on evidence that holds here, for the same load",
            f"name it (--model {name}) to tune it again",
        ))  # fmt: skip
    return Chosen(name, preparation)


def _by_kind(model: Model) -> Skip | None:
    if model.format is ModelFormat.ENSEMBLE:
        return Skip("ensemble", "an ensemble has no engine of its own", "its member models are tuned")
    if asks_others(model):
        return Skip("pipeline", "a pipeline in code (BLS), which asks other models", "the models it asks are tuned")
    return None


def _with_its_tolerances(settings: Settings, model: Model) -> Settings:
    """Without tolerances of outputs that only other models have."""
    outputs = {spec.name for spec in model.outputs}
    kept = [text for text in settings.tolerance if (found := parse_tolerance(text).output) == "*" or found in outputs]
    return settings if len(kept) == len(settings.tolerance) else settings.model_copy(update={"tolerance": kept})


def is_fresh(preparation: Preparation) -> bool:
    """The live version was written by this tool, nothing of its evidence is stale here, and the question is the same:
    the same load, the same shapes and the same files given."""
    model = preparation.plan.model
    version = model.live_version
    try:
        written = read_provenance(version.path) if version is not None else None
        if written is None:
            return False
        then = written.document["fingerprint"]
        now = preparation.fingerprint
        asked = ("workload", *GIVEN_FILES)
        if then["shapes"] != now.shapes or any(then["facts"].get(name) != now.facts.get(name) for name in asked):
            return False
        return not stale_facts(model, written, facts_here(then["facts"]))
    except OptimizerError:
        return False
