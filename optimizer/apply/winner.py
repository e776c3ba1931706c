"""``apply``: a study's winner becomes a new version of its model, or a refusal that says why not."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optimizer.accuracy.kept_references import load_references
from optimizer.apply import checks, live, policy, transaction
from optimizer.apply.journal import Image, Journal, Kind
from optimizer.apply.load_test import Tried, load_test
from optimizer.apply.lock import RepositoryLock
from optimizer.apply.provenance import provenance_bytes
from optimizer.apply.recovery import settle_all
from optimizer.apply.transaction import Owner
from optimizer.durable import sha256_file
from optimizer.errors import InputError, WriteBackRefused
from optimizer.ledger import Ledger
from optimizer.preparation import Preparation, references_file
from optimizer.records.decision import Decision, Verdict
from optimizer.records.engine import Engine
from optimizer.records.route import AS_FOUND, Route
from optimizer.records.samples import SampleSet
from optimizer.repository.config_text import config_diff, edit_config
from optimizer.repository.reader import read_model
from optimizer.repository.versions import PROVENANCE_FILE, scan_versions
from optimizer.routes.serving import apply_serving
from optimizer.triton.protobuf import parse_config, print_config

SCHEMA = 1


@dataclass(frozen=True)
class Winner:
    """What a study's ledger says of the candidate that won."""

    decision: Decision
    candidate: str
    route: Route
    engine: Engine


@dataclass(frozen=True)
class Write:
    """Everything that will be written, worked out before anything is."""

    journal: Journal
    owner: Owner
    sources: Mapping[str, Path | bytes]
    final: policy.FinalPolicy
    config_text: str
    diff: str
    why_this_way: str


def apply_winner(
    preparation: Preparation,
    *,
    dry_run: bool,
    server_url: str | None,
    replace_served_versions: bool,
    accept_unserved_baseline: bool,
) -> dict[str, Any]:
    """A document of kind ``applied``. Where the decision was to keep what is there, it says so and nothing is written.

    Raises :class:`WriteBackRefused` with the reason (nothing written, or what was written taken back), and
    :class:`InputError` for a study without a decision.
    """
    plan = preparation.plan
    ledger = Ledger.view(plan.directory)
    decision = ledger.load("decision", "final", Decision)
    if decision is None:
        raise InputError(
            "has not reached a decision",
            where=plan.directory,
            remedy=f"finish it: triton-optimizer resume {plan.directory}",
        )
    if decision.verdict is Verdict.KEEP or decision.winner is None:
        return _kept(preparation, decision)
    refuse_by_decision(preparation, decision, accept_unserved_baseline=accept_unserved_baseline)
    winner = read_winner(ledger, decision, plan.directory)
    repository = preparation.repository
    checks.check_links(plan.model)
    checks.check_writable(repository, plan.model)
    if server_url is not None:
        live.check_explicit(server_url)
    held_out = expected_outputs(preparation)
    if dry_run:
        write = work_out(preparation, winner, server_url, replace_served_versions=replace_served_versions)
        return _document(preparation, winner, write, ["nothing was written: dry run"], dry_run=True)
    try:
        with RepositoryLock(repository):
            lines = settle_all(repository)
            refuse_changed(preparation)
            write = work_out(preparation, winner, server_url, replace_served_versions=replace_served_versions)
            lines += _write(preparation, winner, write, held_out)
    except OSError as error:
        raise WriteBackRefused(
            f"could not be written: {error.strerror or error}",
            where=error.filename or plan.model.directory,
            remedy="free space or give the right to write there; nothing of it is live, and what is left goes with the "
            "next command",
        ) from None
    return _document(preparation, winner, write, lines, dry_run=False)


def refuse_by_decision(preparation: Preparation, decision: Decision, *, accept_unserved_baseline: bool) -> None:
    directory = preparation.plan.directory
    if not preparation.plan.tolerances or not decision.tolerance_given:
        raise WriteBackRefused(
            "the study has no tolerance: nobody has said which answers are right",
            where=directory,
            field="--tolerance",
            remedy="start a study with one, for instance --tolerance '*:lInf<=1e-3'",
        )
    if decision.reference_id != AS_FOUND and not accept_unserved_baseline:
        raise WriteBackRefused(
            "the model as found could not be served here, so the gain over what is live is unknown",
            where=directory,
            field="--accept-unserved-baseline",
            remedy="run the study where its backend is installed, or accept this with --accept-unserved-baseline",
        )


def read_winner(ledger: Ledger, decision: Decision, directory: Path) -> Winner:
    """Raises :class:`WriteBackRefused` where its engine is gone or is not the one that was measured."""
    facts = ledger.get("candidate", str(decision.winner)) or {}
    engine = ledger.load("build", str(facts.get("engine", "")), Engine)
    if engine is None:
        raise WriteBackRefused(
            f"the winner's engine {facts.get('engine', '')} is not in the ledger", where=ledger.path,
            remedy="start a new study",
        )  # fmt: skip
    missing = [str(path) for path in engine.files.values() if not path.exists()]
    if missing:
        raise WriteBackRefused(
            f"the winner's engine is gone: {', '.join(missing)}", where=directory, remedy="start a new study"
        )
    # Builds are not reproducible bit for bit: what was measured is what is shipped.
    if len(engine.files) == 1:
        path = next(iter(engine.files.values()))
        if path.is_file() and sha256_file(path) != engine.sha256:
            raise WriteBackRefused(
                "is not the engine that was measured: its sha256 differs", where=path, remedy="start a new study"
            )
    return Winner(decision, str(decision.winner), Route.parse(str(facts.get("route", ""))), engine)


def expected_outputs(preparation: Preparation) -> SampleSet:
    """The held-out samples with what the reference answered in the study."""
    path = references_file(preparation.plan.directory)
    try:
        return load_references(path, preparation.plan.held_out)
    except InputError as error:
        raise WriteBackRefused(
            f"the expected outputs of the held-out samples {error.problem}", where=path, remedy="start a new study"
        ) from None


def refuse_changed(preparation: Preparation) -> None:
    model = preparation.plan.model
    now = read_model(preparation.repository, model.name, config_name=preparation.settings.config_name)
    if now.content_hash != model.content_hash:
        raise WriteBackRefused(
            "the model was changed since the study looked at it", where=model.directory, remedy="start a new study"
        )


def work_out(
    preparation: Preparation, winner: Winner, server_url: str | None, *, replace_served_versions: bool
) -> Write:
    """Configs, version number, files with hashes, way. Reads only. Raises :class:`WriteBackRefused`."""
    plan, repository = preparation.plan, preparation.repository
    model = plan.model
    effective = parse_config(model.effective_config_text)
    target = apply_serving(plan.family.configure(effective, winner.engine, winner.route), winner.route)
    known = live.known_versions(server_url, model.name) if server_url else ()
    number = policy.next_version(scan_versions(model.directory), effective, known)
    final = policy.final(effective, target, model, number, replace_served_versions=replace_served_versions)
    owner = checks.owner_like(model)
    config_file = model.config_path or model.directory / "config.pbtxt"
    old = transaction.read_image(config_file)
    if old.data is None:
        directory = model.directory.stat()
        new = Image(print_config(final.config).encode(), owner.file_mode, directory.st_uid, directory.st_gid)
        pinned: Image | None = replace(new, data=print_config(policy.pinned(effective, model)).encode())
        text = ""
    else:
        text = old.data.decode()
        new = replace(old, data=edit_config(text, final.config, where=config_file).encode())
        quiet = edit_config(text, policy.pinned(effective, model), where=config_file).encode()
        pinned = replace(old, data=quiet) if quiet != old.data else None
    token = secrets.token_hex(6)
    way, stage, why = checks.choose_way(repository, token, plan.directory)
    files = checks.hashed_files(winner.engine.files)
    files.pop(PROVENANCE_FILE, None)
    checks.check_space(way, repository, stage, sum(path.stat().st_size for path in files.values()))
    journal = Journal(
        transaction=token,
        kind=Kind.APPLY,
        model=model.name,
        config=config_file.relative_to(model.directory).as_posix(),
        version=number,
        way=way,
        stage=str(stage),
        old=old,
        pinned=pinned,
        new=new,
        files={name: sha256_file(path) for name, path in files.items()},
        started_at=time.time(),
        server_url=server_url,
    )
    text_after = (new.data or b"").decode()
    return Write(journal, owner, files, final, text_after, config_diff(text, text_after, old_name=journal.config), why)


def _write(preparation: Preparation, winner: Winner, write: Write, held_out: SampleSet) -> list[str]:
    """Under the lock. Everything that fails is taken back before it is raised."""
    repository, journal = preparation.repository, write.journal
    provenance = provenance_bytes(
        journal, study=preparation.plan.directory, route=winner.route.text, decision=winner.decision,
        engine=winner.engine, fingerprint=preparation.fingerprint,
        previous=policy.served_numbers(preparation.plan.model), served=write.final.served, repository=repository,
        load_test=[f"held-out samples: {len(held_out)}", f"tolerance: {', '.join(preparation.settings.tolerance)}"],
    )  # fmt: skip
    journal = replace(journal, files={**journal.files, PROVENANCE_FILE: hashlib.sha256(provenance).hexdigest()})
    plan = preparation.plan
    lines: list[str] = []

    def check_staged(staged: Path) -> None:
        tried = Tried(write.config_text, journal.version, staged, write.final.served)
        lines.extend(load_test(preparation, tried, held_out))
        # The test takes a while: whoever wrote to the model meanwhile is not overwritten.
        refuse_changed(preparation)

    def verify() -> None:
        if journal.server_url is not None:
            lines.extend(
                live.load_and_verify(
                    journal.server_url, journal.model, write.final.served, held_out, plan.tolerances, plan.datatypes,
                    {spec.name: spec.datatype for spec in plan.model.outputs},
                )
            )  # fmt: skip

    def reload() -> None:
        if journal.server_url is not None:
            live.load_again(journal.server_url, journal.model)

    transaction.write_version(
        repository, journal, {**write.sources, PROVENANCE_FILE: provenance}, write.owner,
        check_staged=check_staged, verify=verify, reload=reload,
    )  # fmt: skip
    return lines


# Documents


def _kept(preparation: Preparation, decision: Decision) -> dict[str, Any]:
    model = preparation.plan.model
    return {
        "schema": SCHEMA,
        "kind": "applied",
        "changed": False,
        "lines": [f"{model.name}: what is there is kept, nothing to write", decision.sentence],
        "diff": "",
        "model": model.name,
        "repository": str(preparation.repository),
        "version": None,
        "way": None,
        "config": None,
        "engine_sha256": None,
        "study": str(preparation.plan.directory),
    }


def _document(
    preparation: Preparation, winner: Winner, write: Write, lines: list[str], *, dry_run: bool
) -> dict[str, Any]:
    model, journal = preparation.plan.model, write.journal
    verb = "would be written" if dry_run else "is written"
    told = [
        f"{model.name}: version {journal.version} {verb} ({winner.decision.winner_label})",
        winner.decision.sentence,
        write.final.sentence,
        f"way: {journal.way.value} ({write.why_this_way})",
        *lines,
    ]
    if preparation.plan.held_out.synthetic:
        told.append(
            "CAUTION: checked on synthetic inputs only; random data say nothing about accuracy on yours: give real "
            "samples with --inputs"
        )
    told += [f"caveat: {caveat}" for caveat in winner.decision.caveats if not caveat.startswith("synthetic inputs")]
    if not dry_run:
        if journal.server_url is None:
            told.append(f"a server that runs serves it after an explicit load of {model.name}, or its next start")
        told.append(f"take it back with: triton-optimizer rollback {preparation.repository} --model {model.name}")
    return {
        "schema": SCHEMA,
        "kind": "applied",
        "changed": not dry_run,
        "dry_run": dry_run,
        "lines": told,
        "diff": write.diff,
        "model": model.name,
        "repository": str(preparation.repository),
        "version": journal.version,
        "served": list(write.final.served),
        "way": journal.way.value,
        "config": str(model.directory / journal.config),
        "engine_sha256": winner.engine.sha256,
        "route": winner.route.text,
        "study": str(preparation.plan.directory),
        "transaction": journal.transaction,
        "server_url": journal.server_url,
    }
