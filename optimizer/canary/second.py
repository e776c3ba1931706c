"""The candidate as a second model on the baseline's own server: a study's winner, under a name that was free.

Made before the first step, removed at the end; where a promoted canary is not applied it stays, since it serves.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from optimizer.canary.plan import CanaryPlan
from optimizer.errors import EnvironmentFailure, InputError
from optimizer.ledger import STUDY_FILE, Ledger, read_study
from optimizer.records.decision import Decision, Verdict
from optimizer.records.deployment import Deployment
from optimizer.sandbox import _repository
from optimizer.stand import model_files
from optimizer.triton.client import TritonClient, TritonError
from optimizer.triton.protobuf import parse_config, print_config


def winner_of(study: Path) -> tuple[str, Decision]:
    """The model's name and the decision. Raises :class:`InputError` where the study has no winner."""
    header = read_study(study)
    decision = Ledger.view(study).load("decision", "final", Decision)
    if decision is None:
        raise InputError(
            "has not reached a decision", where=study, field="--from-study",
            remedy=f"finish it: triton-optimizer resume {study}",
        )  # fmt: skip
    if decision.verdict is Verdict.KEEP or decision.winner is None:
        raise InputError(
            f"has no winner to try: {decision.sentence}", where=study, field="--from-study",
            remedy="keep what is there",
        )  # fmt: skip
    return header.notes["model"], decision


def second_name(model: str, decision: Decision) -> str:
    return f"{model}_canary_{str(decision.winner)[:8]}"


def deployment_of(study: Path, name: str) -> Deployment:
    """The winner under ``name``: the engine that was measured, with the config that would be written back."""
    # A canary between two servers needs none of this, and a guard must be quick.
    from optimizer.apply.winner import read_winner
    from optimizer.config import parse_settings
    from optimizer.preparation import prepare
    from optimizer.routes.serving import apply_serving

    _, decision = winner_of(study)
    header = read_study(study)
    settings = parse_settings(header.settings, where=study / STUDY_FILE)
    plan = prepare(Path(header.notes["repository"]), header.notes["model"], settings, study).plan
    winner = read_winner(Ledger.view(study), decision, study)
    config = apply_serving(
        plan.family.configure(parse_config(plan.model.effective_config_text), winner.engine, winner.route),
        winner.route,
    )
    version = plan.model.live_version
    if version is None:
        raise EnvironmentFailure("no version is served", where=plan.model.directory, remedy="see `inspect`")
    files = model_files(plan.model.directory, version.path, version.number)
    files = {path: file for path, file in files.items() if not path.startswith(f"{version.number}/")}
    files |= {f"{version.number}/{inside}": file for inside, file in winner.engine.files.items()}
    return Deployment(name, print_config(config), files, winner.candidate, version.number)


def make(plan: CanaryPlan) -> None:
    """Writes and loads it; what an interrupted run left under its name is replaced. Raises on failure, with nothing
    left behind."""
    assert plan.study is not None
    assert plan.repository is not None
    name, repository = plan.candidate.model, Path(plan.repository)
    _repository.write(repository, deployment_of(Path(plan.study), name), copy=True)
    with TritonClient(plan.baseline.grpc_url) as client:
        try:
            client.load(name)
        except TritonError as error:
            _repository.remove(repository, name)
            raise EnvironmentFailure(
                f"the candidate does not load: {error.problem}", where=plan.baseline.grpc_url, field=name,
                remedy="start the server with --model-control-mode=explicit on this repository, or look into its log",
            ) from None  # fmt: skip


def remove(plan: CanaryPlan) -> None:
    """Unloads it and removes its directory; no error where there is none, or no server."""
    if plan.study is None or plan.repository is None:
        return
    with TritonClient(plan.baseline.grpc_url) as client, contextlib.suppress(TritonError):
        client.unload(plan.candidate.model)
    _repository.remove(Path(plan.repository), plan.candidate.model)


def check_free(plan: CanaryPlan) -> None:
    """Raises :class:`InputError` where the name is somebody else's: only what is made here is ever removed."""
    assert plan.repository is not None
    name, repository = plan.candidate.model, Path(plan.repository)
    if not repository.is_dir():
        raise InputError(
            "not a directory", where=repository, field="--repository",
            remedy="name the server's model repository by a path that is valid here",
        )  # fmt: skip
    with TritonClient(plan.baseline.grpc_url) as client:
        taken = any(row[0] == name and row[3] != "unloaded" for row in client.repository_index())
    if taken or (repository / name).exists():
        raise InputError(
            f"there is a model {name} already", where=repository, field="--from-study",
            remedy="abort the canary that made it, or remove it",
        )  # fmt: skip
