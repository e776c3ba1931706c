"""Canaries whose outcome is known: toy models with one fault each, on real servers, through the real commands.

The quick forms fit a test suite; the ``soak`` forms have the default margins and doubled patience.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from optimizer.canary.planning import make_plan
from optimizer.canary.run import run_canary
from optimizer.progress import Progress
from optimizer.records.deployment import Deployment
from optimizer.sandbox._base import Sandbox, SandboxOptions
from optimizer.sandbox.launchers import launcher
from optimizer.testing.models import ToyModel, faulty_model

NO_ADDRESSES: Mapping[str, str | None] = {
    "baseline_http": None, "candidate_http": None, "baseline_metrics": None, "candidate_metrics": None,
}  # fmt: skip

DEFAULTS: Mapping[str, Any] = {
    "candidate": None, "study": None, "model": None, "repository": None, "addresses": NO_ADDRESSES,
    "tolerances": ["lInf<=1e-5"], "inputs": None, "synthetic": True, "synthetic_count": 256, "shapes": [],
    "int_ranges": [], "trace": None, "rate": None, "concurrency": 8, "window_s": 0.5, "seed": 0,
    "steps": "shadow,5,25,50,100", "margins": [], "confidence": 0.95, "detect": "1/1000", "detect_confidence": 0.99,
    "min_pairs": 3, "max_pairs": 24, "max_failures": 0, "memory_margin": 1024.0, "check_memory": True, "proxy": None,
    "processes": 1,
}  # fmt: skip
"""Of :func:`optimizer.canary.planning.make_plan`, short windows."""


@dataclass(frozen=True)
class Scenario:
    """``model`` is of both arms, ``fault`` of the candidate alone; ``outcomes`` are the states that are right, and
    ``checks`` the names of checks of which one must be the reason."""

    name: str
    outcomes: tuple[str, ...]
    checks: tuple[str, ...] = ()
    model: Mapping[str, Any] = field(default_factory=dict)
    fault: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    own_server: bool = False
    """The candidate has a server of its own."""


FAST: Mapping[str, Any] = {"service_s": 0.0, "instances": 1}
STEADY: Mapping[str, Any] = {"service_s": 0.010, "instances": 4}
"""Long enough for its percentiles to be the model's own and not the machine's."""
WIDE = ["latency=40%", "p99=150%", "throughput=30%"]
"""For a machine that does other things as well; the soak has the default margins."""

QUICK = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "identical",
            ("promoted",),
            model={"service_s": 0.002, "instances": 2},
            options={"steps": "shadow,50,100", "margins": WIDE, "detect": "1/200", "concurrency": 4},
        ),
        Scenario(
            "slower",
            ("rolled_back", "inconclusive"),
            ("p50", "p90", "p99", "throughput"),
            {"service_s": 0.010, "instances": 2},
            {"service_s": 0.011},
            {"steps": "50,100", "max_pairs": 6, "detect": "1/100", "concurrency": 4},
        ),
        Scenario("wrong", ("rolled_back",), ("answers",), FAST, {"wrong_every": 1000}),
        Scenario(
            "dies", ("rolled_back",), ("restarts", "failures"), FAST, {"dies_after": 300, "takes_server": True},
            own_server=True,
        ),
        Scenario("leaks", ("rolled_back",), ("memory",), FAST, {"leak_bytes": 1 << 15}),
        Scenario(
            "slow_tail",
            ("rolled_back",),
            ("p99",),
            STEADY,
            # Far more than double, so that it shows beside whatever else the machine does.
            {"slow_part": 0.02, "slow_s": 0.100},
            {
                "steps": "100", "margins": ["latency=60%", "p99=100%", "throughput=80%"], "detect": "1/100",
                "concurrency": 4,
            },
        ),
    )
}  # fmt: skip

PATIENT = {"window_s": 1.0, "min_pairs": 4, "max_pairs": 64}
SOAK = {
    scenario.name: scenario
    for scenario in (
        replace(QUICK["identical"], model=STEADY, options={**PATIENT, "margins": ["p99=25%"]}),
        replace(QUICK["slower"], model=STEADY, options={**PATIENT, "margins": ["p99=25%"]}),
        *(QUICK[name] for name in ("wrong", "dies", "leaks")),
        Scenario("nan", ("rolled_back",), ("non_finite",), FAST, {"nan_every": 1000}),
        Scenario("stub_dies", ("rolled_back",), ("restarts", "failures"), FAST, {"dies_after": 300}, own_server=True),
        replace(
            QUICK["slow_tail"],
            fault={"slow_part": 0.02, "slow_s": 0.020},
            options={**PATIENT, "steps": "shadow,50,100", "margins": ["p99=25%"], "detect": "1/100"},
        ),
    )
}


def serve(sandbox: Sandbox, model: ToyModel, directory: Path) -> None:
    source = directory / f"{model.name}.py"
    source.write_text(model.source, encoding="utf-8")
    failure = sandbox.load(Deployment(model.name, model.config_text, {"1/model.py": source}))
    if failure is not None:
        raise RuntimeError(f"{model.name} does not load: {failure.message}")


@contextlib.contextmanager
def server(directory: Path) -> Iterator[Sandbox]:
    directory.mkdir(parents=True, exist_ok=True)
    with launcher("embedded").start(SandboxOptions(workdir=directory)) as sandbox:
        yield sandbox


def play(scenario: Scenario, sandbox: Sandbox, directory: Path, progress: Progress) -> dict[str, Any]:
    """Runs it on ``sandbox`` (the baseline's server, and the candidate's unless it has its own): the document."""
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(server(directory / "server")) if scenario.own_server else sandbox
        names = ("canary_baseline", "canary_candidate")
        serve(sandbox, faulty_model(names[0], **scenario.model), directory)
        stack.callback(sandbox.unload, names[0])
        serve(other, faulty_model(names[1], **{**scenario.model, **scenario.fault}), directory)
        if not scenario.own_server:
            stack.callback(sandbox.unload, names[1])
        state = directory / "state"
        make_plan(
            state,
            **{
                **DEFAULTS,
                "baseline": f"{sandbox.info.grpc_url}/{names[0]}",
                "candidate": f"{other.info.grpc_url}/{names[1]}",
                "addresses": {
                    **NO_ADDRESSES,
                    "baseline_metrics": sandbox.info.metrics_url,
                    "candidate_metrics": other.info.metrics_url,
                },
                **scenario.options,
            },
        )
        return run_canary(state, progress=progress)


def complaint(scenario: Scenario, document: Mapping[str, Any]) -> str:
    """What is wrong with an outcome; empty: it is as it must be."""
    if document["state"] not in scenario.outcomes:
        return f"{document['state']}, not {' or '.join(scenario.outcomes)}: {document['reason']}"
    failed = {
        check["name"]
        for verdict in document["verdicts"].values()
        for check in verdict["checks"]
        if check["state"] in ("fail", "unknown")
    }
    if scenario.checks and not failed & set(scenario.checks):
        return f"for another reason: {document['reason']}"
    return ""
