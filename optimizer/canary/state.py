"""A canary's memory: ``plan.json``, and a ledger with every step begun, every verdict and every weight that was set."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from optimizer.canary.judge import Outcome, StepVerdict
from optimizer.canary.plan import CanaryPlan, read_plan
from optimizer.errors import EnvironmentFailure, InputError
from optimizer.ledger import LEDGER_FILE, LOCK_FILE, Ledger
from optimizer.records.codec import from_json, to_json

STOP_TIMEOUT_S = 60.0
OUTCOMES = {Outcome.ACCEPT: "accepted", Outcome.MORE: "inconclusive", Outcome.ROLL_BACK: "rolled back"}


class End(str, Enum):
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    INCONCLUSIVE = "inconclusive"
    ABORTED = "aborted"


FINAL = frozenset({End.PROMOTED, End.ROLLED_BACK, End.ABORTED})
"""An inconclusive canary may be run again: with more patience, or on a quieter machine."""


@dataclass(frozen=True)
class Progressed:
    """What the ledger comes down to."""

    accepted: tuple[str, ...]
    verdicts: Mapping[str, StepVerdict]
    """The latest of each step."""
    weight: int | None
    """The last one that was set; ``None``: never."""
    end: End | None
    reason: str
    begun: str | None
    """The step that was begun last."""
    running: bool = False
    applied: bool = False
    second: bool = False
    """A second model was made, and not removed yet."""

    def accepted_weight(self, plan: CanaryPlan) -> int:
        return max((plan.weight_of(step) for step in self.accepted), default=0)

    def left(self, plan: CanaryPlan) -> tuple[str, ...]:
        return tuple(step for step in plan.steps if step not in self.accepted)


def progressed(ledger: Ledger, *, running: bool = False) -> Progressed:
    """Pure but for the ledger that it reads."""
    accepted: list[str] = []
    verdicts: dict[str, StepVerdict] = {}
    weight, end, reason, begun, applied, second = None, None, "", None, False, False
    for entry in ledger.records():
        data = entry.data
        if entry.kind == "verdict":
            verdicts[entry.key] = from_json(StepVerdict, data["verdict"])
            if data["accepted"] and entry.key not in accepted:
                accepted.append(entry.key)
        elif entry.kind == "begin":
            begun, end, reason = entry.key, None, ""
        elif entry.kind == "weight":
            weight = int(data["weight"])
        elif entry.kind == "end":
            end, reason = End(data["state"]), str(data["reason"])
        elif entry.kind == "applied":
            applied = True
        elif entry.kind == "second":
            second = bool(data["there"])
    return Progressed(tuple(accepted), verdicts, weight, end, reason, begun, running, applied, second)


@contextlib.contextmanager
def own(directory: Path) -> Iterator[Ledger]:
    """The state for this process alone. Raises :class:`InputError` where another process runs the canary."""
    read_plan(directory)
    try:
        ledger = Ledger.open(directory)
    except InputError as error:
        if "in use" not in error.problem:
            raise
        raise InputError(
            error.problem.replace("this study", "this canary"), where=directory, field="--state",
            remedy="see `canary status`; end it with `canary abort`, or Ctrl-C where it runs",
        ) from None  # fmt: skip
    with ledger:
        yield ledger


def view(directory: Path) -> Progressed:
    """What is known, whether somebody runs it or not."""
    read_plan(directory)
    if not (directory / LEDGER_FILE).exists():
        return Progressed((), {}, None, None, "", None)
    return progressed(Ledger.view(directory), running=owner_of(directory) is not None)


def owner_of(directory: Path) -> int | None:
    """The process that runs this canary now."""
    import fcntl

    try:
        with (directory / LOCK_FILE).open("r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                text = file.read(32).decode("ascii", "replace").strip()
                return int(text) if text.isdigit() else None
    except OSError:
        return None
    return None


def stop_owner(directory: Path) -> None:
    """Asks the process that runs this canary to end, as Ctrl-C does, and waits for it."""
    pid = owner_of(directory)
    if pid is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while owner_of(directory) is not None:
        if time.monotonic() > deadline:
            raise EnvironmentFailure(
                f"process {pid} did not end {STOP_TIMEOUT_S:g} s after it was asked to", where=directory,
                remedy=f"kill -9 {pid}: its guard then takes the traffic back to the baseline",
            )  # fmt: skip
        time.sleep(0.1)


def save_verdict(ledger: Ledger, step: str, verdict: StepVerdict, *, accepted: bool) -> None:
    ledger.append("verdict", step, {"accepted": accepted, "verdict": to_json(verdict)})


def save_end(ledger: Ledger, end: End, reason: str) -> None:
    ledger.append("end", "", {"state": end.value, "reason": reason})


def status_document(directory: Path) -> dict[str, Any]:
    """A document of kind ``canary``: state, weights, every verdict; ``lines``, ``columns`` and ``rows`` for people."""
    from optimizer.canary.proxy import proxy_of

    plan, state = read_plan(directory), view(directory)
    proxy = proxy_of(plan, plan.candidate, directory).weight()
    if state.running:
        name = "running"
    elif state.end is not None:
        name = state.end.value
    else:
        name = "planned" if state.begun is None else "interrupted"
    lines = [
        f"{plan.baseline.model} at {plan.baseline.grpc_url} (baseline), {plan.candidate.model} at "
        f"{plan.candidate.grpc_url} (candidate): {name}" + (f", {state.reason}" if state.reason else ""),
    ]
    if state.running:
        lines.append(f"at step {state.begun}")
    if plan.synthetic:
        lines.append("SYNTHETIC LOAD: random inputs, no user's requests; their answers and speeds may differ")
    accepted = state.accepted_weight(plan)
    shown = "" if proxy is None else f"; the proxy's file says {proxy}%"
    lines.append(f"last accepted weight {accepted}%, last one set {state.weight or 0}%{shown}")
    if proxy is not None and not state.running and proxy != (state.weight or 0):
        lines.append("the proxy's file was changed by hand, or its change was not written down: run or abort sets it")
    rows = []
    for step in plan.steps:
        verdict = state.verdicts.get(step)
        outcome = "" if verdict is None else "accepted" if step in state.accepted else OUTCOMES[verdict.outcome]
        rows.append(
            [
                step if step == "shadow" else f"{step}%", outcome or "not yet",
                "" if verdict is None else verdict.power, "" if verdict is None else verdict.reason,
            ]
        )  # fmt: skip
    return {
        "schema": 1, "kind": "canary", "state": name, "reason": state.reason, "directory": str(directory),
        "accepted_weight": accepted, "weight": state.weight, "proxy_weight": proxy, "step": state.begun,
        "synthetic": plan.synthetic, "applied": state.applied,
        "verdicts": {step: to_json(verdict) for step, verdict in state.verdicts.items()},
        "plan": to_json(plan), "lines": lines, "columns": ["step", "verdict", "what it stands on", "why"],
        "rows": rows, "notes": check_lines(state, plan),
    }  # fmt: skip


def check_lines(state: Progressed, plan: CanaryPlan) -> list[str]:
    """The checks of the step that was judged last."""
    judged = [step for step in plan.steps if step in state.verdicts]
    if not judged:
        return []
    verdict = state.verdicts[judged[-1]]
    return [
        f"  {judged[-1]} {check.name}: {check.state.value}{' (critical)' if check.critical else ''}: {check.text}"
        for check in verdict.checks
    ]
