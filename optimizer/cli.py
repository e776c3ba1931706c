"""The command line. Every command is a thin layer over the package; what is heavy is imported inside the command.

Results go to stdout (with ``--json``: one document), everything else to stderr. Exit codes are those of
:mod:`optimizer.errors`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from optimizer import __version__
from optimizer.canary.commands import app as canary
from optimizer.errors import InputError, OptimizerError, StudyInterrupted, of_os_error
from optimizer.flags import with_settings_flags

app = typer.Typer(
    name="triton-optimizer",
    help="Tunes Triton Inference Server model repositories at the serving level: it builds an engine for each "
    "candidate route, serves and measures each one, validates the answers, and writes the winner back.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(canary)

Repository = Annotated[Path, typer.Argument(metavar="REPO", help="A Triton model repository.", show_default=False)]
StudyDirectory = Annotated[Path, typer.Argument(metavar="DIR", help="A study's directory.", show_default=False)]
OneModel = Annotated[str, typer.Option("--model", "-m", help="The model's name.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one machine-readable document on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
JsonLines = Annotated[bool, typer.Option("--progress-json", help="Progress as JSON lines on stderr.")]
SettingsFile = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings (YAML).")]


TYPER_INTERRUPTED = 130
"""What typer makes of a Ctrl-C that nobody caught, in place of raising it; no command of ours returns it."""


def main() -> NoReturn:
    """Runs the command line, and turns every error of ours into its message and its exit code."""
    # SIGTERM takes the way of Ctrl-C, so that every `with` block closes what it opened.
    signal.signal(signal.SIGTERM, lambda *_: _interrupt())
    as_json = "--json" in sys.argv
    try:
        returned = app(_arguments(sys.argv[1:]), standalone_mode=False)
        if returned == TYPER_INTERRUPTED:
            raise KeyboardInterrupt
        code = returned if isinstance(returned, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        code = _complain(StudyInterrupted("interrupted", remedy="`resume` goes on with a study"), as_json=as_json)
    except OptimizerError as error:
        code = _complain(error, as_json=as_json)
    except BrokenPipeError:
        # The reader of our output has gone: nothing is wrong, and there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        failure = of_os_error(error, remedy="free space, give the right, or bring the file back; then run it again")
        code = _complain(failure, as_json=as_json)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except Exception as error:
        # click's usage errors know how to show themselves; anything else is a bug, and its traceback is the report.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        code = InputError.exit_code
        if as_json:
            problem = error.format_message() if hasattr(error, "format_message") else str(error)
            print(json.dumps(InputError(problem, field="command line", remedy="see --help").as_json()))
    sys.exit(code)


def _arguments(given: list[str]) -> list[str]:
    """A route expression starts with a dash like an option, so `routes` gets it behind a ``--``, in one piece."""
    if given[:1] != ["routes"] or "--" in given:
        return given
    terms = [word for word in given[1:] if word.startswith("-") and not word.startswith("--") and "=" in word]
    others = [word for word in given[1:] if word not in terms]
    return ["routes", *others, "--", " ".join(terms)] if terms else given


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt


def _complain(error: OptimizerError, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(error.as_json()))
    print(f"error: {error.message}", file=sys.stderr)
    return error.exit_code


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, sort_keys=True, default=str))


def _settle(repository: Path) -> None:
    """For commands that only read: what a killed write-back left is settled where it can be; where not, that is said,
    and what is there is shown all the same."""
    # An unfinished write-back is rare, and `inspect` is to be quick.
    if not any(repository.glob(".triton-optimizer.*")):
        return
    from optimizer.apply import recover

    try:
        for line in recover(repository):
            print(f"warning: {line}", file=sys.stderr)
    except OptimizerError as error:
        print(f"warning: {error.message}", file=sys.stderr)


@contextlib.contextmanager
def _progress(*, quiet: bool, lines: bool) -> Iterator[Any]:
    """The status line is gone before a result or an error is printed."""
    from optimizer import progress

    if lines:
        yield progress.JsonLines()
        return
    if quiet:
        yield progress.silent
        return
    from optimizer.terminal import LiveProgress

    live = LiveProgress()
    try:
        yield live
    finally:
        live.close()


@app.callback(invoke_without_command=True)
def version_option(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def inspect(
    repository: Repository,
    model: Annotated[list[str] | None, typer.Option("--model", "-m", help="Only this model; repeatable.")] = None,
    config_name: Annotated[str | None, typer.Option(help="The server's --model-config-name.")] = None,
    json_output: Json = False,
) -> None:
    """What is there: models, live config, versions, tensors, and what would block a plan, and why."""
    from optimizer.repository.inspection import inspection_document
    from optimizer.repository.reader import read_model, read_repository

    _settle(repository)
    if model:
        models: Any = [read_model(repository, name, config_name=config_name) for name in model]
    else:
        models = read_repository(repository, config_name=config_name)
    document = {"kind": "inspection", **inspection_document(models, repository=repository)}
    if json_output:
        _print_json(document)
    else:
        from optimizer.terminal import show_inspection

        show_inspection(document)


@app.command()
@with_settings_flags()
def optimize(
    repository: Repository,
    config: SettingsFile = None,
    study: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the study is kept. Default: ./studies/MODEL.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List candidates, estimated time and disk; build nothing.")
    ] = False,
    write_back: Annotated[bool, typer.Option("--write-back", help="Write the winner into the repository.")] = False,
    json_output: Json = False,
    quiet: Quiet = False,
    progress_json: JsonLines = False,
    *,
    overrides: dict[str, Any],
) -> None:
    """The main job: find the best route that answers right, and optionally write it back."""
    from optimizer import api
    from optimizer.config import load_settings

    settings = load_settings(config, overrides)
    with _progress(quiet=quiet, lines=progress_json) as progress:
        document = api.optimize(
            repository, settings=settings, study=study, write_back=write_back, dry_run=dry_run, progress=progress
        )
    _show_outcome(document, json_output)


@app.command()
def resume(
    directory: StudyDirectory,
    write_back: Annotated[bool, typer.Option("--write-back", help="Write the winner into the repository.")] = False,
    json_output: Json = False,
    quiet: Quiet = False,
    progress_json: JsonLines = False,
) -> None:
    """Goes on with an interrupted study from its ledger."""
    from optimizer.tuning import resume_study

    with _progress(quiet=quiet, lines=progress_json) as progress:
        document = resume_study(directory, write_back=write_back, progress=progress)
    _show_outcome(document, json_output)


def _show(document: dict[str, Any], json_output: bool) -> None:
    if json_output:
        _print_json(document)
    else:
        from optimizer.terminal import show_document

        show_document(document)


def _show_outcome(document: dict[str, Any], json_output: bool) -> None:
    """A whole repository's run can end well for some models and not for others: its document says with which code."""
    _show(document, json_output)
    if document.get("exit_code"):
        raise typer.Exit(document["exit_code"])


@app.command()
@with_settings_flags(only=("inputs", "load", "sandbox", "gpu", "config_name"))
def bench(
    repository: Annotated[
        Path | None, typer.Argument(metavar="[REPO]", help="A Triton model repository.", show_default=False)
    ] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="The model's name.", show_default=False)] = ...,  # type: ignore[assignment]
    server_url: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="A running server's gRPC endpoint, instead of REPO.")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="REPO", help="A second repository with the same model, in pairs.")
    ] = None,
    compare_model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A second model of the same repository or server, in pairs.")
    ] = None,
    windows: Annotated[int, typer.Option(min=1, help="Windows at each load.")] = 3,
    p99_ms: Annotated[float | None, typer.Option(help="Search the highest rate with this p99.")] = None,
    check_with: Annotated[
        str | None, typer.Option(metavar="[perf_analyzer]", help="A second witness on the same load.")
    ] = None,
    config: SettingsFile = None,
    json_output: Json = False,
    quiet: Quiet = False,
    *,
    overrides: dict[str, Any],
) -> None:
    """Serving-level benchmark of a model as it stands."""
    from optimizer import api
    from optimizer.config import load_settings

    with _progress(quiet=quiet, lines=False) as progress:
        document = api.bench(
            repository, model, settings=load_settings(config, overrides), server_url=server_url, compare=compare,
            compare_model=compare_model, windows=windows, p99_ms=p99_ms, check_with=check_with, progress=progress,
        )  # fmt: skip
    _show(document, json_output)


@app.command()
def knobs(
    layer: Annotated[str | None, typer.Option(help="precision, builder, profile, compiler or serving.")] = None,
    source: Annotated[Path | None, typer.Option("--from", metavar="FILE", help="TensorRT's JSON, or a TSV.")] = None,
    module: Annotated[str | None, typer.Option(help="Builder module: tensorrt or tensorrt_rtx.")] = None,
    json_output: Json = False,
) -> None:
    """The knobs with values, defaults and class: of the installed TensorRT, or from a file."""
    from optimizer.catalogue import knob_document

    _show(knob_document(layer, source, module), json_output)


@app.command()
def routes(
    expression: Annotated[str, typer.Argument(metavar="EXPR", help="-knob=[a|b] varies, -knob=v pins.")],
    search: Annotated[str, typer.Option(help="fast, mixed or full.")] = "fast",
    source: Annotated[Path | None, typer.Option("--from", metavar="FILE", help="TensorRT's JSON, or a TSV.")] = None,
    module: Annotated[str | None, typer.Option(help="Builder module: tensorrt or tensorrt_rtx.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most routes to print.")] = 10000,
    json_output: Json = False,
) -> None:
    """What a route expression expands to, in trtexec's order."""
    from optimizer.catalogue import routes_document

    _show(routes_document(expression, search, source, module, limit), json_output)


@app.command()
def apply(
    directory: StudyDirectory,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the config's difference; write nothing.")] = False,
    server_url: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="gRPC endpoint of the explicit-mode server to load it.")
    ] = None,
    replace_served_versions: Annotated[
        bool, typer.Option(help="Accept that versions served today by `all` or `specific` are no longer served.")
    ] = False,
    accept_unserved_baseline: Annotated[
        bool, typer.Option(help="Accept that the model as found could not be measured.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Writes a study's winner into its repository."""
    from optimizer.tuning import apply_study

    document = apply_study(
        directory, dry_run=dry_run, server_url=server_url, replace_served_versions=replace_served_versions,
        accept_unserved_baseline=accept_unserved_baseline,
    )  # fmt: skip
    _show_outcome(document, json_output)


@app.command()
def rollback(
    repository: Repository,
    model: OneModel,
    server_url: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="gRPC endpoint of the explicit-mode server to load it.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Takes the last write-back of a model back."""
    from optimizer.apply import rollback as roll_back

    _show(roll_back(repository, model, server_url=server_url), json_output)


@app.command()
def status(
    repository: Repository,
    model: Annotated[list[str] | None, typer.Option("--model", "-m", help="Only this model; repeatable.")] = None,
    json_output: Json = False,
) -> None:
    """What is live, since when, on which evidence, and whether that is stale here."""
    from optimizer.tuning import status_document

    _settle(repository)
    _show(status_document(repository, model or []), json_output)


@app.command()
def report(
    directory: StudyDirectory,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one self-contained page.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    json_output: Json = False,
) -> None:
    """A study as text, as Markdown, or as a page, finished or not; a whole repository's run as its summary."""
    from optimizer.tuning import report_document

    if html is not None and html.is_dir():
        raise InputError("is a directory", where=html, field="--html", remedy="name a file")
    document = report_document(directory, html)
    if markdown and not json_output and document["kind"] == "study":
        from optimizer.report.text import study_markdown

        print(study_markdown(document), end="")
    else:
        _show(document, json_output)


@app.command()
def doctor(
    clean: Annotated[bool, typer.Option("--clean", help="Remove what dead studies left behind.")] = False,
    json_output: Json = False,
) -> None:
    """What this machine has (GPU, driver, TensorRT, Triton, Docker), and what each part needs."""
    from optimizer.doctor import diagnosis

    _show(diagnosis(clean=clean), json_output)
