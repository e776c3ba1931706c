"""The staged version in a sandbox, exactly as it will be served: same files, same config, same name, same versions.

Ensembles that use the model are loaded with it, since a server loads them again whenever a member changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from optimizer.accuracy.synthetic import synthetic_samples
from optimizer.accuracy.validator import FailedAnswer, validate
from optimizer.errors import InputError, OptimizerError, WriteBackRefused
from optimizer.preparation import Preparation
from optimizer.records.deployment import Deployment, LoadFailure
from optimizer.records.model import Model
from optimizer.records.samples import SampleSet
from optimizer.repository.reader import ensembles_using, read_model
from optimizer.sandbox._base import Sandbox
from optimizer.stand import answers_of, model_files
from optimizer.triton.client import TritonClient

ENSEMBLE_SAMPLES = 2


@dataclass(frozen=True)
class Tried:
    """What is tried: ``files`` of the new version as they are staged, and the versions served beside it."""

    config_text: str
    number: int
    files: Path
    served: tuple[int, ...]


def load_test(preparation: Preparation, tried: Tried, held_out: SampleSet) -> list[str]:
    """Lines for people. Raises :class:`WriteBackRefused` where it does not load or answers otherwise than expected."""
    plan = preparation.plan
    preparation.options.workdir.mkdir(parents=True, exist_ok=True)
    with preparation.launcher.start(preparation.options) as sandbox:
        name = plan.model.name
        failure = sandbox.load(_deployment(plan.model, name, tried))
        if failure is not None and failure.code == "name_taken":
            # A server of somebody else's that serves this very model: there only a private name is free.
            name = f"apply_test_{plan.model.content_hash[:8]}"
            failure = sandbox.load(_deployment(plan.model, name, tried))
        if failure is not None:
            raise _refused(plan.model, f"the new version does not load in the sandbox: {failure.message}", failure.code)
        lines = _check_answers(preparation, sandbox, name, tried, held_out)
        if name == plan.model.name:
            lines += _check_ensembles(preparation, sandbox, tried)
        return lines


def _deployment(model: Model, name: str, tried: Tried) -> Deployment:
    files = {f"{tried.number}/{entry.name}": entry for entry in sorted(tried.files.iterdir())}
    live = model.live_version
    for version in model.versions:
        if version.number in tried.served or version is live:
            inside = model_files(model.directory, version.path, version.number)
            if version.number not in tried.served:
                inside = {path: file for path, file in inside.items() if not path.startswith(f"{version.number}/")}
            files |= inside
    return Deployment(name, tried.config_text, files, candidate_id=name, version=tried.number)


def _check_answers(
    preparation: Preparation, sandbox: Sandbox, name: str, tried: Tried, held_out: SampleSet
) -> list[str]:
    plan = preparation.plan
    datatypes = {spec.name: spec.datatype for spec in plan.model.outputs}
    with TritonClient(sandbox.info.grpc_url) as client:
        for number in tried.served:
            # The new one as clients reach it, without naming a version.
            version = "" if number == max(tried.served) else str(number)
            answers = answers_of(client, name, held_out, plan.datatypes, version=version)
            parity = validate(f"{name}:{number}", held_out, answers, plan.tolerances, datatypes)
            if not parity.passed:
                raise _refused(plan.model, f"version {number} under the new config: {parity.reason}", "accuracy")
    backends = ", ".join(sorted(sandbox.info.python_backends))
    return [
        f"load-tested as staged ({sandbox.info.launcher}, Triton {sandbox.info.version}): "
        f"{len(held_out)} held-out samples within tolerance"
        + (f"; python-based backends: {backends}" if backends else "")
    ]


def _check_ensembles(preparation: Preparation, sandbox: Sandbox, tried: Tried) -> list[str]:
    """Each ensemble that worked with the old version must work with the new one."""
    lines = []
    model = preparation.plan.model
    for ensemble in ensembles_using(preparation.repository, model.name, config_name=preparation.settings.config_name):
        problem = _ensemble_problem(preparation, sandbox, ensemble)
        if problem is None:
            lines.append(f"ensemble {ensemble} loads with it and answers")
            continue
        if problem.startswith(UNTRIED):
            lines.append(f"ensemble {ensemble} loads with it, {problem}")
            continue
        before = _as_found_problem(preparation, sandbox, ensemble)
        if before is None:
            raise _refused(model, f"ensemble {ensemble} works with the old version and not with the new one: {problem}",
                           "ensemble")  # fmt: skip
        lines.append(f"ensemble {ensemble} does not work here with what is there either ({before}): not checked")
        failure = sandbox.load(_deployment(model, model.name, tried))
        if failure is not None:
            raise _refused(model, f"the new version does not load again: {failure.message}", failure.code)
    return lines


UNTRIED = "no samples could be made"


def _ensemble_problem(preparation: Preparation, sandbox: Sandbox, name: str) -> str | None:
    try:
        ensemble = read_model(preparation.repository, name, config_name=preparation.settings.config_name)
        failure = _load_members(preparation, sandbox, ensemble, seen={preparation.plan.model.name})
        if failure is not None:
            return f"member {failure.name}: {failure.message}"
        failure = sandbox.load(_as_on_disk(ensemble))
        if failure is not None:
            return failure.message
        samples = synthetic_samples(ensemble, ENSEMBLE_SAMPLES, preparation.settings.inputs.seed)
    except InputError as error:
        return f"{UNTRIED}: {error.problem}"
    datatypes = {spec.name: spec.datatype for spec in ensemble.inputs}
    with TritonClient(sandbox.info.grpc_url) as client:
        for answer in answers_of(client, name, samples, datatypes):
            if isinstance(answer, FailedAnswer):
                return answer.reason
            missing = {spec.name for spec in ensemble.outputs} - set(answer.outputs)
            if missing:
                return f"it does not return {', '.join(sorted(missing))}"
    return None


def _as_found_problem(preparation: Preparation, sandbox: Sandbox, ensemble: str) -> str | None:
    try:
        sandbox.unload(ensemble)
        failure = sandbox.load(_as_on_disk(preparation.plan.model))
    except OptimizerError as error:
        return error.problem
    return failure.message if failure is not None else _ensemble_problem(preparation, sandbox, ensemble)


def _load_members(preparation: Preparation, sandbox: Sandbox, ensemble: Model, seen: set[str]) -> LoadFailure | None:
    for member in ensemble.ensemble_members:
        if member in seen:
            continue
        seen.add(member)
        model = read_model(preparation.repository, member, config_name=preparation.settings.config_name)
        failure = _load_members(preparation, sandbox, model, seen) or sandbox.load(_as_on_disk(model))
        if failure is not None:
            return failure
    return None


def _as_on_disk(model: Model) -> Deployment:
    files: dict[str, Path] = {}
    for version in model.versions:
        if version.served:
            files |= model_files(model.directory, version.path, version.number)
    live = model.live_version
    return Deployment(model.name, model.effective_config_text, files, version=live.number if live else 1)


def _refused(model: Model, problem: str, code: str) -> WriteBackRefused:
    return WriteBackRefused(
        problem,
        where=model.directory,
        field=code,
        remedy="nothing was written; look at the study's report, or start anew",
    )
