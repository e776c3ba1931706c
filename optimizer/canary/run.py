"""The canary's loop: one step after the other, each judged on fresh evidence; the traffic follows the verdicts.

The order of things is what makes a crash harmless: a verdict is on disk before a weight grows, a weight falls before
the verdict that makes it fall is written, and while a step is under way a guard stands by.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from optimizer.canary import second
from optimizer.canary.arms import Arms
from optimizer.canary.evidence import StepEvidence, WindowPair
from optimizer.canary.guard import Guard
from optimizer.canary.judge import Outcome, Rules, StepVerdict, judge
from optimizer.canary.plan import SHADOW, CanaryPlan, read_plan
from optimizer.canary.proxy import Proxy, proxy_of
from optimizer.canary.state import FINAL, End, own, progressed, save_end, save_verdict, status_document, stop_owner
from optimizer.errors import InputError, OptimizerError, ReferenceFailure, StudyInterrupted
from optimizer.ledger import Ledger
from optimizer.progress import Progress

SHADOW_CHUNKS = 10
"""Parts of the shadow's comparisons: memory needs a few windows to show a trend."""
MORE_CHUNKS = 20
"""Further ones where the memory cannot be told yet."""


def run_canary(
    directory: Path, *, progress: Progress, apply: Callable[[Path, str], dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Runs what is left of the plan in ``directory``; a document of kind ``canary``. With ``apply``, a promoted study
    is written back: it gets the study's directory and the server's gRPC address.

    Raises :class:`StudyInterrupted` when stopped, with the traffic at the baseline, and :class:`ReferenceFailure` where
    the baseline itself fails.
    """
    plan = read_plan(directory)
    if apply is not None and plan.study is None:
        raise InputError(
            "only a study can be applied", where=directory, field="--apply",
            remedy="leave it out, or plan with --from-study",
        )  # fmt: skip
    with own(directory) as ledger:
        state = progressed(ledger)
        if state.end not in FINAL:
            with Guard(directory) as guard:
                canary = Canary(plan, ledger, directory, progress)
                try:
                    end = canary.run()
                except BaseException as error:
                    canary.back_to_baseline("interrupted")
                    guard.disarm()
                    if isinstance(error, KeyboardInterrupt):
                        raise StudyInterrupted(
                            "interrupted; the traffic is on the baseline", where=directory,
                            remedy=f"go on with: triton-optimizer canary run --state {directory}",
                        ) from None  # fmt: skip
                    raise
                # Only now is everything where it shall stay without anybody watching.
                guard.disarm()
            progress("decision", verdict=end.value, sentence=f"canary: {end.value}")
            state = progressed(ledger)
        if apply is not None and state.end is End.PROMOTED and not state.applied:
            _write_back(plan, ledger, directory, apply)
    return status_document(directory)


def abort_canary(directory: Path) -> dict[str, Any]:
    """Ends it for good, running or not: no traffic to the candidate, no second model, the proxy's file as it was."""
    plan = read_plan(directory)
    stop_owner(directory)
    with own(directory) as ledger:
        proxy_of(plan, plan.candidate, directory).restore()
        ledger.append("weight", "", {"weight": 0, "why": "aborted"})
        second.remove(plan)
        ledger.append("second", plan.candidate.model, {"there": False})
        if progressed(ledger).end not in (End.ROLLED_BACK, End.ABORTED):
            save_end(ledger, End.ABORTED, "aborted by hand")
    return status_document(directory)


def _write_back(
    plan: CanaryPlan, ledger: Ledger, directory: Path, apply: Callable[[Path, str], dict[str, Any]]
) -> None:
    """The baseline's own name then serves the winner, so the traffic goes back to it and the second model goes."""
    assert plan.study is not None
    applied = apply(Path(plan.study), plan.baseline.grpc_url)
    ledger.append("applied", "", {"lines": applied.get("lines", [])})
    proxy_of(plan, plan.candidate, directory).set_weight(0)
    ledger.append("weight", "", {"weight": 0, "why": "applied: the baseline's name serves the winner"})
    second.remove(plan)
    ledger.append("second", plan.candidate.model, {"there": False})


class Canary:
    def __init__(self, plan: CanaryPlan, ledger: Ledger, directory: Path, progress: Progress) -> None:
        self.plan = plan
        self._ledger = ledger
        self._directory = directory
        self._progress = progress
        self._proxy: Proxy = proxy_of(plan, plan.candidate, directory)

    def run(self) -> End:
        plan = self.plan
        self._proxy.prepare()
        # A known beginning, whatever an earlier run left: the next step raises the weight again.
        self._set_weight(0, "start")
        if plan.synthetic:
            self._progress("warning", text="SYNTHETIC LOAD: random inputs stand in for the users' requests")
        if plan.study is not None:
            self._progress("stage", text=f"loading the study's winner as {plan.candidate.model}")
            self._ledger.append("second", plan.candidate.model, {"there": True})
            second.make(plan)
        with Arms(plan, plan.candidate, self._directory) as arms:
            if plan.check_memory and not arms.memory_readable:
                raise InputError(
                    "the memory of the candidate's server cannot be read from here", where=plan.candidate.grpc_url,
                    field="--candidate-metrics",
                    remedy="give its metrics endpoint (and the baseline's), or leave memory unwatched: --no-memory",
                )  # fmt: skip
            state = progressed(self._ledger)
            accepted = state.accepted_weight(plan)
            for step in state.left(plan):
                end = self._step(arms, step, accepted)
                if end is not None:
                    return end
                accepted = plan.weight_of(step)
        save_end(self._ledger, End.PROMOTED, f"every step accepted: {', '.join(plan.steps)}")
        return End.PROMOTED

    def _step(self, arms: Arms, step: str, accepted: int) -> End | None:
        """``None`` where it was accepted."""
        weight = self.plan.weight_of(step)
        self._ledger.append("begin", step, {"weight": weight})
        self._progress("stage", text=f"step {step}: {weight}% of the traffic to the candidate")
        self._set_weight(weight, f"step {step}")
        verdict = self._observe(arms, step)
        self._progress("stage", text=f"step {step}: {verdict.outcome.value}: {verdict.reason}")
        self._progress("stage", text=f"step {step}: {verdict.power}")
        if verdict.outcome is Outcome.ACCEPT:
            save_verdict(self._ledger, step, verdict, accepted=True)
            return None
        if verdict.outcome is Outcome.ROLL_BACK:
            try:
                self.back_to_baseline(f"step {step}: {verdict.reason}")
            finally:
                # Also where the proxy does not obey: the verdict stands, and the guard tries once more.
                save_verdict(self._ledger, step, verdict, accepted=False)
                save_end(self._ledger, End.ROLLED_BACK, f"step {step}: {verdict.reason}")
            return End.ROLLED_BACK
        self._set_weight(accepted, f"step {step} was inconclusive")
        if accepted == 0:
            self._remove_second()
        save_verdict(self._ledger, step, verdict, accepted=False)
        save_end(self._ledger, End.INCONCLUSIVE, f"step {step}: {verdict.reason}")
        return End.INCONCLUSIVE

    def _observe(self, arms: Arms, step: str) -> StepVerdict:
        rules = self.plan.rules_at(step)
        return self._shadow(arms, rules) if step == SHADOW else self._windows(arms, step, rules)

    def _shadow(self, arms: Arms, rules: Rules) -> StepVerdict:
        pairs: list[WindowPair] = []
        # Both arms work at once: where one process serves both, its memory is judged in the windows of later steps.
        rules = replace(rules, check_memory=rules.check_memory and arms.own_memory)
        size = -(-rules.comparisons // SHADOW_CHUNKS)
        with arms.shadow() as sender:
            while True:
                done = sum(pair.compared.comparisons for pair in pairs)
                wanted = min(size, rules.comparisons - done) if done < rules.comparisons else size
                pairs.append(self._checked(arms.shadow_chunk(sender, wanted)))
                verdict = judge(StepEvidence(tuple(pairs), timed=False), rules)
                if verdict.outcome is not Outcome.MORE or len(pairs) >= SHADOW_CHUNKS + MORE_CHUNKS:
                    return verdict

    def _windows(self, arms: Arms, step: str, rules: Rules) -> StepVerdict:
        pairs: list[WindowPair] = []
        looked = 0
        while True:
            pairs.append(self._checked(arms.pair(step, len(pairs))))
            usable = sum(pair.usable for pair in pairs)
            evidence = StepEvidence(tuple(pairs))
            last = usable >= rules.looks[-1] or len(pairs) >= 2 * rules.looks[-1]
            if last or (usable in rules.looks and usable > looked):
                looked = usable
                verdict = judge(evidence, rules)
                self._progress("stage", text=f"step {step}: {len(pairs)} window pairs: {verdict.reason}")
                if last or verdict.outcome is not Outcome.MORE:
                    return verdict
            else:
                # Between the looks only what needs no statistics may end the step.
                verdict = judge(replace(evidence, timed=False), rules)
                if verdict.outcome is Outcome.ROLL_BACK:
                    return verdict

    def _checked(self, pair: WindowPair) -> WindowPair:
        """Raises :class:`ReferenceFailure` where it is the baseline that fails: nothing can be judged against that."""
        failures = pair.baseline.failures
        # No answer and no failure either is a machine that stood still: such a window is not used.
        if pair.baseline.restarted or (failures and not pair.baseline.requests):
            worst = max(failures, key=lambda reason: failures[reason], default="")
            raise ReferenceFailure(
                f"the baseline failed during the canary: {pair.baseline.restarted or worst}",
                where=self.plan.baseline.grpc_url,
                field=self.plan.baseline.model,
                remedy="repair it, then run the canary again; the traffic is on the baseline",
            )
        return pair

    def back_to_baseline(self, why: str) -> None:
        self._set_weight(0, why)
        self._remove_second()

    def _remove_second(self) -> None:
        if self.plan.study is not None and progressed(self._ledger).second:
            second.remove(self.plan)
            with contextlib.suppress(OptimizerError):
                self._ledger.append("second", self.plan.candidate.model, {"there": False})

    def _set_weight(self, percent: int, why: str) -> None:
        self._proxy.set_weight(percent)
        self._ledger.append("weight", "", {"weight": percent, "why": why})
