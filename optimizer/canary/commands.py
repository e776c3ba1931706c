"""``triton-optimizer canary``: the command line. What is heavy is imported inside the commands.

Exit codes: 0 promoted (or planned, or shown) · 5 inconclusive or interrupted, ``canary run`` goes on · 6 rolled back.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="canary",
    help="A candidate beside the baseline on live servers: shadow, 5%, 25%, 50%, promoted; or rolled back.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

StateDirectory = Annotated[
    Path, typer.Option("--state", metavar="DIR", help="Where plan, state and verdicts are kept.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print one machine-readable document on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Address = Annotated[str | None, typer.Option(metavar="HOST:PORT")]

EXIT_CODES = {"rolled_back": 6, "inconclusive": 5, "interrupted": 5}


@app.command()
def plan(
    state: StateDirectory,
    baseline: Annotated[
        str, typer.Option(metavar="HOST:PORT[/MODEL]", help="gRPC endpoint of what serves today.", show_default=False)
    ],
    candidate: Annotated[
        str | None, typer.Option(metavar="HOST:PORT[/MODEL]", help="gRPC endpoint of what is to replace it.")
    ] = None,
    from_study: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A study: its winner becomes a second model on the baseline's server."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="The model's name on both.")] = None,
    repository: Annotated[
        Path | None, typer.Option(metavar="REPO", help="With --from-study: the server's repository. Default: its own.")
    ] = None,
    baseline_http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="HTTP endpoint, for nginx.")] = None,
    candidate_http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="HTTP endpoint, for nginx.")] = None,
    baseline_metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Prometheus endpoint: failures by reason, memory.")
    ] = None,
    candidate_metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Prometheus endpoint: failures by reason, memory.")
    ] = None,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(help="[OUTPUT:]METRIC<=LOSS between the arms' answers (or golden outputs); repeatable."),
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Recorded requests: .npz, a directory, perf_analyzer's JSON.")
    ] = None,
    synthetic: Annotated[bool, typer.Option("--synthetic", help="Random inputs, and called so.")] = False,
    synthetic_count: Annotated[int, typer.Option(min=4, help="How many different ones.")] = 1024,
    shape: Annotated[list[str] | None, typer.Option(help="Dimensions of a free input: x=3x48x320.")] = None,
    int_range: Annotated[list[str] | None, typer.Option(help="Values of an integer input: ids=0:30521.")] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help='Arrivals: lines of {"at_s": …, "sample": …}.')
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Poisson arrivals, requests/s at 100%.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Closed loop: requests in flight at 100%.")] = 8,
    window_s: Annotated[float, typer.Option(min=0.05, help="Length of a window.")] = 5.0,
    seed: Annotated[int, typer.Option(min=0, help="Of random inputs and arrivals.")] = 0,
    steps: Annotated[str, typer.Option(help="'shadow' and percentages, the last one 100.")] = "shadow,5,25,50,100",
    margin: Annotated[
        list[str] | None,
        typer.Option(help="latency=5%, p50=, p90=, p99=, throughput=3%: how much worse is still no worse."),
    ] = None,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.999, help="One-sided, of every interval.")] = 0.95,
    detect: Annotated[str, typer.Option(help="Rate of wrong answers that the first step must be able to see.")] = (
        "1/1000"
    ),
    detect_confidence: Annotated[float, typer.Option(min=0.5, max=0.9999, help="With this probability.")] = 0.99,
    min_pairs: Annotated[int, typer.Option(min=2, help="Window pairs before speed is judged first.")] = 4,
    max_pairs: Annotated[int, typer.Option(min=2, help="Window pairs after which a step is inconclusive.")] = 32,
    max_failures: Annotated[int, typer.Option(min=0, help="Failures that pass, for each reason new to it.")] = 0,
    memory_margin: Annotated[float, typer.Option(min=0, help="Growth in bytes a request that is no leak.")] = 1024.0,
    no_memory: Annotated[bool, typer.Option("--no-memory", help="Promote without having watched memory.")] = False,
    nginx_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Split real traffic: nginx's directory (prefix).")
    ] = None,
    http_listen: Annotated[str, typer.Option(help="In a new nginx.conf.")] = "127.0.0.1:8080",
    grpc_listen: Annotated[str, typer.Option(help="In a new nginx.conf.")] = "127.0.0.1:8081",
    reload: Annotated[str | None, typer.Option(help="Instead of `nginx -p DIR -c nginx.conf -s reload`.")] = None,
    weight_command: Annotated[
        str | None, typer.Option(help="Another proxy: a command with {weight}, the candidate's percentage.")
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Load processes for each server.")] = None,
    json_output: Json = False,
) -> None:
    """Writes a plan, and checks all that can be checked; moves no traffic."""
    from optimizer.canary.plan import ProxyPlan
    from optimizer.canary.planning import make_plan, plan_document

    proxy = None
    if nginx_dir is not None or weight_command is not None:
        proxy = ProxyPlan(
            directory=None if nginx_dir is None else str(nginx_dir.absolute()),
            reload=tuple(shlex.split(reload or "")), http_listen=http_listen, grpc_listen=grpc_listen,
            command=tuple(shlex.split(weight_command or "")),
        )  # fmt: skip
    made = make_plan(
        state, baseline=baseline, candidate=candidate, study=from_study, model=model, repository=repository,
        addresses={
            "baseline_http": baseline_http, "candidate_http": candidate_http, "baseline_metrics": baseline_metrics,
            "candidate_metrics": candidate_metrics,
        },
        tolerances=tolerance or [], inputs=inputs, synthetic=synthetic, synthetic_count=synthetic_count,
        shapes=shape or [], int_ranges=int_range or [], trace=trace, rate=rate, concurrency=concurrency,
        window_s=window_s, seed=seed, steps=steps, margins=margin or [], confidence=confidence, detect=detect,
        detect_confidence=detect_confidence, min_pairs=min_pairs, max_pairs=max_pairs, max_failures=max_failures,
        memory_margin=memory_margin, check_memory=not no_memory, proxy=proxy, processes=processes,
    )  # fmt: skip
    _show(plan_document(state, made), json_output)


@app.command()
def run(
    state: StateDirectory,
    apply: Annotated[bool, typer.Option("--apply", help="Write a promoted study back into its repository.")] = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Runs a plan, or what is left of it. Ctrl-C leaves the traffic on the baseline; run again to go on."""
    from optimizer.canary.run import run_canary

    document = run_canary(state, progress=_progress(quiet=quiet), apply=_apply if apply else None)
    _show(document, json_output)
    if code := EXIT_CODES.get(document["state"], 0):
        sys.exit(code)


@app.command()
def status(state: StateDirectory, json_output: Json = False) -> None:
    """Where a canary stands: steps, weights, verdicts and what they stand on."""
    from optimizer.canary.state import status_document

    _show(status_document(state), json_output)


@app.command()
def abort(state: StateDirectory, json_output: Json = False) -> None:
    """Ends a canary for good, running or not: all traffic to the baseline, what it made is removed."""
    from optimizer.canary.run import abort_canary

    _show(abort_canary(state), json_output)


def _apply(study: Path, server_url: str) -> dict[str, Any]:
    from optimizer.tuning import apply_study

    return apply_study(study, server_url=server_url)


def _progress(*, quiet: bool) -> Any:
    if quiet:
        from optimizer.progress import silent

        return silent
    from optimizer.terminal import LiveProgress

    return LiveProgress()


def _show(document: dict[str, Any], json_output: bool) -> None:
    if json_output:
        shown = {key: value for key, value in document.items() if key not in ("columns", "rows", "notes")}
        print(json.dumps(shown, indent=2, sort_keys=True, default=str))
        return
    from optimizer.terminal import show_document

    show_document({**document, "kind": "table"})
