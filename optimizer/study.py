"""One study of one model: read, propose, build, deploy, measure, validate, judge. Writing back is ``optimizer.apply``.

``run_study`` is the sentence; what each of its words does on a real server is in :mod:`optimizer.laboratory`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from optimizer.accuracy.hard_cases import tag_hard_cases
from optimizer.accuracy.kept_references import load_references, save_references
from optimizer.accuracy.references import with_references
from optimizer.baseline import CAVEAT, lacks_gpu_runtime
from optimizer.durable import write_json
from optimizer.errors import EnvironmentFailure, OptimizerError, ReferenceFailure, StudyInterrupted, of_os_error
from optimizer.evidence import capacity_of, caveats, front, spent_so_far, worth
from optimizer.gpu import busy_reasons, read_state
from optimizer.judge.decide import Confirmation, Context, JudgeSettings, decide, out_of_reach, pairs_needed
from optimizer.judge.statistics import Noise, noise_of
from optimizer.laboratory import CONFIRM, FRESH, NOISE, TWIN_NAME, StudyLaboratory
from optimizer.ledger import Ledger
from optimizer.preparation import Preparation, references_file, refuse_changed
from optimizer.progress import Progress
from optimizer.records.candidate import Pair, Rejection, Stage
from optimizer.records.codec import from_json, to_json
from optimizer.records.decision import Decision
from optimizer.records.measurement import Measurement
from optimizer.records.route import Candidate, Route
from optimizer.records.samples import SampleSet
from optimizer.search._base import BudgetSpent, Standing
from optimizer.search.budget import Budget
from optimizer.search.choose import choose_strategy
from optimizer.stand import Stand

MOST_RESERVED = 0.5
"""Of a limited time, the largest part that is kept for confirming finalists."""


@dataclass(frozen=True)
class StudyResult:
    directory: Path
    decision: Decision
    preparation: Preparation


def run_study(preparation: Preparation, progress: Progress) -> StudyResult:
    """Raises :class:`ReferenceFailure`, :class:`StudyInterrupted`, :class:`optimizer.errors.EnvironmentFailure`."""
    with Ledger.open(preparation.plan.directory) as ledger:
        return study_in(ledger, preparation, progress)


def study_in(ledger: Ledger, preparation: Preparation, progress: Progress) -> StudyResult:
    """The sentence, on a ledger that is open already."""
    decision = ledger.load("decision", "final", Decision)
    if decision is None:
        report_busy_gpu(ledger, preparation, progress)
        with why_it_stopped(ledger), open_laboratory(preparation, ledger, progress) as laboratory:
            establish_references(laboratory, preparation)
            noise = measure_noise(laboratory, preparation)
            standings, spent = search(laboratory, preparation)
            confirmations = confirm(laboratory, preparation, standings, noise)
            refuse_changed(preparation)
            decision = judge(laboratory, preparation, confirmations, noise, spent=spent)
    keep(ledger, preparation, decision)
    progress("decision", verdict=decision.verdict.value, sentence=decision.sentence)
    return StudyResult(preparation.plan.directory, decision, preparation)


def report_busy_gpu(ledger: Ledger, preparation: Preparation, progress: Progress) -> None:
    """Before the study's own server is on it, whoever else uses the GPU is seen; remembered as a caveat."""
    if preparation.gpu is None:
        return
    reasons = busy_reasons(read_state(preparation.gpu))
    if reasons:
        progress("warning", text=f"the GPU is busy, measurements will be disturbed: {'; '.join(reasons)}")
        ledger.append("fact", "gpu_busy", {"reasons": list(reasons)})


@contextlib.contextmanager
def why_it_stopped(ledger: Ledger) -> Iterator[None]:
    """Records what ended a study before its decision, so that its report tells the story to that point.

    Ctrl-C becomes :class:`StudyInterrupted`, which says what is kept and how to go on.
    """
    try:
        yield
    except KeyboardInterrupt:
        _tell_why(ledger, {"problem": "interrupted"})
        screened, pairs = (len(list(ledger.records(kind))) for kind in ("screened", "pair"))
        directory = ledger.path.parent
        raise StudyInterrupted(
            f"interrupted; {screened} screened candidates and {pairs} measured pairs are kept",
            where=directory,
            remedy=f"go on with it: triton-optimizer resume {directory}",
        ) from None
    except OptimizerError as error:
        _tell_why(ledger, error.as_json())
        raise
    except OSError as error:
        failure = of_os_error(error, remedy=f"put that right, then: triton-optimizer resume {ledger.path.parent}")
        _tell_why(ledger, failure.as_json())
        raise failure from error


def _tell_why(ledger: Ledger, told: Mapping[str, object]) -> None:
    with contextlib.suppress(EnvironmentFailure):
        ledger.append("fact", "stopped", told)


@contextlib.contextmanager
def open_laboratory(preparation: Preparation, ledger: Ledger, progress: Progress) -> Iterator[StudyLaboratory]:
    """A sandbox with a load generator, and a way to a second, freshly started one."""
    plan, settings = preparation.plan, preparation.settings
    preparation.options.workdir.mkdir(parents=True, exist_ok=True)

    def stand() -> Stand:
        return Stand(
            preparation.launcher,
            preparation.options,
            client_processes=settings.load.processes,
            transport=settings.load.transport,
            shared_memory=settings.load.shared_memory,
            logs=plan.directory / "requests",
        )

    def fresh() -> AbstractContextManager[Stand]:
        return stand()

    budget = open_budget(preparation, ledger)
    progress(
        "stage",
        stage="sandbox",
        text=f"starting the sandbox ({preparation.launcher.name}: {preparation.why['sandbox']})",
    )
    with stand() as common:
        facts = {**common.info.facts, "launcher": common.info.launcher, "version": common.info.version}
        ledger.append("fact", "server", facts)
        try:
            yield StudyLaboratory(plan, ledger, common, fresh, budget, progress)
        finally:
            # A resumed study goes on counting where this run stops.
            with contextlib.suppress(EnvironmentFailure):
                ledger.append("fact", "spent", dataclasses.asdict(budget.spent))


def open_budget(preparation: Preparation, ledger: Ledger) -> Budget:
    """Searching stops early enough to leave time for confirming the finalists."""
    settings, window_s = preparation.settings, preparation.plan.workload.duration_s
    minutes = settings.budget.minutes
    confirmation_s = settings.judge.finalists * settings.judge.max_pairs * 3 * window_s
    return Budget(
        minutes * 60 if minutes else None,
        settings.budget.builds,
        settings.budget.gpu_hours,
        reserve_s=min(confirmation_s, minutes * 60 * MOST_RESERVED) if minutes else 0.0,
        spent=spent_so_far(ledger),
    )


def establish_references(laboratory: StudyLaboratory, preparation: Preparation) -> None:
    """As-found answers, rightly and stably; every sample gets its expected outputs; the default route is tried."""
    laboratory.remember(laboratory.as_found)
    serve_as_found(laboratory)
    tune, held_out = expected_outputs(laboratory, preparation)
    laboratory.plan = replace(laboratory.plan, tune=tune, held_out=held_out)
    laboratory.stand.prepare(tune, laboratory.plan.datatypes, batched=laboratory.plan.model.batched)
    establish_default(laboratory)


def serve_as_found(laboratory: StudyLaboratory) -> None:
    """As the repository has it; on the CPU where the sandbox lacks its GPU runtime; not at all where no backend is."""
    plan = laboratory.plan
    laboratory.progress("stage", text=f"loading {plan.model.name} as found")
    failure = laboratory.stand.serve(laboratory.deployment(laboratory.as_found, None), pin=True)
    if failure is not None and lacks_gpu_runtime(failure):
        laboratory.as_found_on_cpu = True
        laboratory.progress("warning", text=CAVEAT)
        failure = laboratory.stand.serve(laboratory.deployment(laboratory.as_found, None), pin=True)
    if failure is None:
        return
    if failure.code != "missing_backend":
        raise ReferenceFailure(
            f"the model as found does not load: {failure.message}",
            where=plan.model.directory,
            field=failure.code,
            remedy="make it load on a Triton server first; `inspect` may tell what is wrong",
        )
    laboratory.as_found_served = False
    laboratory.progress("warning", text=f"as-found cannot be served here: {failure.message}")


def expected_outputs(laboratory: StudyLaboratory, preparation: Preparation) -> tuple[SampleSet, SampleSet]:
    """Both sets with expected outputs, kept in the study with their hash and origin: a resumed study, and a write-back,
    hold answers against the very same ones.

    Where the user tagged no sample, the hard ones (least margin, extreme values, odd batches) get tags, so that losses
    are shown for them too. Tags of ours add no requirement.
    """
    plan, directory = laboratory.plan, laboratory.plan.directory
    sets = (plan.tune, plan.held_out)
    files = [references_file(directory, samples.name) for samples in sets]
    known = laboratory.ledger.get("fact", "references")
    if known is not None:
        tune, held_out = (
            replace(load_references(file, samples), details={**samples.details, **known["details"][samples.name]})
            for file, samples in zip(files, sets, strict=True)
        )
    else:
        laboratory.progress("stage", text=f"reference outputs for {len(sets[0])} + {len(sets[1])} samples")
        tune, held_out = with_references(
            sets,
            plan.model,
            kind=preparation.settings.inputs.reference,
            answers=laboratory.reference_answers if laboratory.as_found_served else None,
            onnx=plan.source,
            tolerances=plan.tolerances,
        )
        if not any(sample.tags for samples in (tune, held_out) for sample in samples.samples):
            tune, held_out = tag_hard_cases(tune), tag_hard_cases(held_out)
        files[0].parent.mkdir(exist_ok=True)
        sha256 = {one.name: save_references(file, one) for file, one in zip(files, (tune, held_out), strict=True)}
        details = {one.name: {name: one.details[name] for name in ("noise", "notes")} for one in (tune, held_out)}
        facts = {"origin": tune.references, "sha256": sha256, "details": details}
        laboratory.ledger.append("fact", "references", facts)
    return tune, held_out


def establish_default(laboratory: StudyLaboratory) -> None:
    """The family's default route, where it is not the very same thing as what is there."""
    default = laboratory.candidate(Route())
    if laboratory.as_found_judges and laboratory.serves_the_same(default, laboratory.as_found):
        laboratory.default_is_as_found = True
        laboratory.default = laboratory.as_found
        return
    rejection = laboratory.screen(default)
    if rejection is None:
        laboratory.default = default
        return
    if not laboratory.as_found_judges:
        raise ReferenceFailure(
            f"neither as-found nor the default route can be served: {rejection.message}",
            where=laboratory.plan.model.directory,
            field=rejection.code,
            remedy="look at the evidence in the ledger; try another --sandbox or --family",
        )
    laboratory.default = laboratory.as_found
    laboratory.progress("warning", text=f"the default route left the comparison: {rejection.message}")


def measure_noise(laboratory: StudyLaboratory, preparation: Preparation) -> Noise:
    """A/A pairs: the reference against a second copy of itself."""
    reference = laboratory.default
    wanted = preparation.settings.judge.noise_pairs
    laboratory.progress("stage", stage="noise", text=f"measuring noise: {wanted} pairs of the reference", pairs=wanted)
    known = laboratory.ledger.load("fact", "noise", Noise)
    if known is None:
        laboratory.pin_with_twin(reference)
    else:
        pin(laboratory, reference)
    pairs = []
    for index in range(wanted if known is None else 0):
        pair = laboratory.compare(reference, reference, index, NOISE, laboratory.stand)
        if isinstance(pair, Rejection):
            raise ReferenceFailure(
                f"the reference fails under load: {pair.message}",
                where=laboratory.plan.model.directory,
                field=pair.code,
                remedy="lower --concurrency, or mend the model",
            )
        pairs.append(pair)
    laboratory.stand.drop(TWIN_NAME)
    noise = known or noise_of(pairs)
    laboratory.noise = noise.sd_upper
    laboratory.throttling_is_normal = mostly_throttled(laboratory.ledger)
    if known is None:
        laboratory.ledger.append("fact", "noise", to_json(noise))
    laboratory.progress("stage", text=f"noise of a pair: {noise.sd:.1%} (at most {noise.sd_upper:.1%})")
    return noise


def pin(laboratory: StudyLaboratory, reference: Candidate) -> None:
    failure = laboratory.stand.serve(laboratory.deployment(reference, laboratory.built(reference)), pin=True)
    if failure is not None:
        raise EnvironmentFailure(
            f"the reference does not load any more: {failure.message}",
            field=failure.code,
            remedy="give the sandbox more memory, and `resume`",
        )


def mostly_throttled(ledger: Ledger) -> bool:
    """Whether the GPU held its clocks down in most windows of the reference against itself."""
    seen = [
        from_json(Measurement, entry.data).resources.gpu_throttled
        for entry in ledger.records("measurement")
        if entry.key.startswith(NOISE)
    ]
    return 2 * sum(one is True for one in seen) > len(seen)


def search(laboratory: StudyLaboratory, preparation: Preparation) -> tuple[Sequence[Standing], bool]:
    """Standings of the candidates that may compete, best first, and whether the budget ended it."""
    settings = preparation.settings
    strategy, why = choose_strategy(
        settings.search.strategy, laboratory.plan.space, preparation.expansions, laboratory.budget,
        noise=laboratory.noise, finalists=settings.judge.finalists, limit=settings.search.max_candidates,
        hints=preparation.hints, seconds_a_pair=2 * laboratory.plan.workload.duration_s,
    )  # fmt: skip
    laboratory.ledger.append("search", strategy.name, {"strategy": strategy.name, "why": why})
    laboratory.progress("stage", stage="search", text=f"searching: {strategy.name}: {why}")
    try:
        return strategy.search(laboratory), False
    except BudgetSpent as spent:
        laboratory.progress("warning", text=f"the budget is spent: {spent}")
        return strategy.standings, True


def confirm(
    laboratory: StudyLaboratory, preparation: Preparation, standings: Sequence[Standing], noise: Noise
) -> list[Confirmation]:
    """Finalists again: on held-out samples, in fresh pairs with each reference, one of them on a fresh server.

    Racing data are not looked at again. Who cannot be accepted any more is measured no further, unless the number of
    pairs was given.
    """
    judge_settings = preparation.settings.judge
    # What is judged against is no finalist: it cannot beat itself, and each finalist widens the others' intervals.
    judged_against = laboratory.as_found if laboratory.as_found_judges else laboratory.default
    no_finalist = {laboratory.as_found.id, judged_against.id}
    finalists = [one.candidate for one in standings if one.candidate.id not in no_finalist]
    finalists = finalists[: judge_settings.finalists]
    rules = judge_rules(preparation)
    pairs = judge_settings.pairs or pairs_needed(
        noise.sd_upper, judge_settings.min_gain, len(finalists), settings=rules
    )

    def decided(done: Sequence[Pair]) -> bool:
        return judge_settings.pairs is None and out_of_reach(done, len(finalists), rules)

    if finalists:
        laboratory.budget.release_reserve()
        laboratory.progress(
            "stage", stage="confirm", text=f"confirming {len(finalists)} finalists, up to {pairs} fresh pairs each",
            finalists=len(finalists), pairs=pairs,
        )  # fmt: skip
        laboratory.stand.prepare(
            laboratory.plan.held_out, laboratory.plan.datatypes, batched=laboratory.plan.model.batched
        )
    confirmations = [confirm_one(laboratory, finalist, pairs, decided) for finalist in finalists]
    if finalists and laboratory.as_found_on_cpu:
        laboratory.measure(laboratory.as_found, f"{CONFIRM}:{laboratory.as_found.id}")
    return confirmations


def confirm_one(
    laboratory: StudyLaboratory, candidate: Candidate, pairs: int, decided: Callable[[Sequence[Pair]], bool]
) -> Confirmation:
    """``decided`` says of the pairs with what must be beaten that no more of them are needed."""
    references = [laboratory.as_found] if laboratory.as_found_judges else []
    if laboratory.default.id not in (candidate.id, laboratory.as_found.id):
        references.append(laboratory.default)
    rejection = laboratory.serve(laboratory.stand, candidate)
    if rejection is not None:
        return Confirmation(candidate.id, candidate.label, (), None, rejection)
    held_out = laboratory.validate(candidate, laboratory.plan.held_out)
    if not held_out.passed:
        rejected = Rejection(candidate.id, Stage.VALIDATE, "held_out", f"held-out samples: {held_out.reason}")
        laboratory.reject(rejected)
        return Confirmation(candidate.id, candidate.label, (), held_out)
    done: list[Pair] = []
    with contextlib.ExitStack() as stack:
        for index in range(pairs):
            # The last pair runs on a server that has seen nothing else.
            last = index == pairs - 1
            stand = stack.enter_context(laboratory.fresh_stand(references)) if last else laboratory.stand
            for reference in references:
                pair = laboratory.compare(candidate, reference, index, FRESH if last else CONFIRM, stand)
                if isinstance(pair, Rejection):
                    return Confirmation(candidate.id, candidate.label, tuple(done), held_out, pair)
                done.append(pair)
            if decided([pair for pair in done if pair.reference_id == references[0].id]):
                break
    compared = [pair for pair in done if pair.reference_id == references[0].id and pair.usable]
    latencies = [arms for pair in compared if (arms := laboratory.latencies(pair)) is not None]
    return Confirmation(candidate.id, candidate.label, tuple(done), held_out, latencies=latencies)


def judge_rules(preparation: Preparation) -> JudgeSettings:
    settings = preparation.settings.judge
    return JudgeSettings(
        min_gain=settings.min_gain,
        confidence=settings.confidence,
        p99_guard=settings.largest_p99_ratio,
        max_pairs=settings.max_pairs,
    )


def judge(
    laboratory: StudyLaboratory,
    preparation: Preparation,
    confirmations: Sequence[Confirmation],
    noise: Noise,
    *,
    spent: bool,
) -> Decision:
    if spent and not confirmations and not laboratory.screened_any:
        raise StudyInterrupted(
            "the budget was spent before any candidate was measured",
            where=laboratory.plan.directory,
            field="budget",
            remedy="give a larger budget, then `resume`",
        )
    excluded = {
        entry.key: f"{entry.data['stage']}/{entry.data['code']}: {entry.data['message']}"
        for entry in laboratory.ledger.records("rejection")
    }
    decision = decide(
        confirmations,
        judge_rules(preparation),
        Context(
            as_found_served=laboratory.as_found_judges,
            default_id=laboratory.default.id,
            noise=noise.sd,
            excluded=excluded,
            caveats=tuple(caveats(laboratory, noise, confirmations)),
            tolerance_given=bool(laboratory.plan.tolerances),
            held_out_samples=len(laboratory.plan.held_out),
            budget_spent=spent,
            objective=laboratory.plan.objective.name,
        ),
    )
    ledger, plan = laboratory.ledger, laboratory.plan
    ledger.append("fact", "pareto", front(ledger, plan.objective))
    decision = worth(
        decision, laboratory.budget.spent, plan.objective, preparation.settings.budget,
        gpu=plan.gpu is not None, capacity_per_s=capacity_of(confirmations, decision.reference_id),
    )  # fmt: skip
    ledger.save("decision", "final", decision)
    return decision


def keep(ledger: Ledger, preparation: Preparation, decision: Decision) -> None:
    """Writes ``decision.json``; losing engines and the sandbox's directory go. Done again where it was cut short."""
    plan = preparation.plan
    shutil.rmtree(preparation.options.workdir, ignore_errors=True)
    if not plan.save_all_engines:
        winner = ledger.get("candidate", decision.winner) if decision.winner is not None else None
        for engine in (plan.directory / "engines").glob("*"):
            if winner is None or engine.name != winner["engine"]:
                shutil.rmtree(engine, ignore_errors=True)
    write_json(plan.directory / "decision.json", {"schema": 1, "model": plan.model.name, "decision": to_json(decision)})
