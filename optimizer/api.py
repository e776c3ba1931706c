"""The Python interface, which the command line uses too: ``from optimizer import optimize, bench, Study``.

Every function returns the document that the command of the same name prints with ``--json`` (plain JSON values, see
docs/json.md) and raises an :class:`optimizer.errors.OptimizerError` that says what was wrong, where, and what to do.
``settings`` is a YAML file, a mapping laid out like one, or :class:`optimizer.config.Settings`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from optimizer.progress import Progress, silent

if TYPE_CHECKING:
    from optimizer.config import Settings
    from optimizer.records.decision import Decision

Document: TypeAlias = dict[str, Any]
AnyPath: TypeAlias = str | PathLike[str]
AnySettings: TypeAlias = "Settings | Mapping[str, Any] | str | PathLike[str] | None"

__all__ = ["Study", "bench", "optimize"]


def optimize(
    repository: AnyPath,
    models: Sequence[str] = (),
    *,
    settings: AnySettings = None,
    study: AnyPath | None = None,
    write_back: bool = False,
    dry_run: bool = False,
    progress: Progress = silent,
) -> Document:
    """Tunes ``models`` of a Triton repository, or every model that can be tuned where none is named.

    ``study`` is the directory that keeps the measurements (default: ``studies/MODEL``, or ``studies`` with several
    models). Writes a winner into the repository only with ``write_back``, which needs a tolerance in the settings.
    ``dry_run`` lists the candidates and what they would take, and starts nothing.
    """
    from optimizer.tuning import dry_run_document, optimize_repository

    chosen = read_settings(settings)
    if models:
        chosen = chosen.model_copy(update={"models": list(models)})
    directory = Path(study) if study is not None else None
    if dry_run:
        return dry_run_document(Path(repository), chosen)
    return optimize_repository(Path(repository), chosen, study=directory, write_back=write_back, progress=progress)


def bench(
    repository: AnyPath | None,
    model: str,
    *,
    settings: AnySettings = None,
    server_url: str | None = None,
    compare: AnyPath | None = None,
    compare_model: str | None = None,
    windows: int = 3,
    p99_ms: float | None = None,
    check_with: str | None = None,
    progress: Progress = silent,
) -> Document:
    """Measures a model as it stands, at every load of the settings: of ``repository`` in a sandbox, or of the running
    server at ``server_url`` (gRPC ``host:port``; ``repository`` is then ``None``).

    ``compare`` (a second repository with the same model) or ``compare_model`` adds a comparison in pairs, ``p99_ms``
    a search for the highest rate with that p99, ``check_with="perf_analyzer"`` a second witness.
    """
    from optimizer.benchmark import benchmark

    return benchmark(
        Path(repository) if repository is not None else None,
        model,
        read_settings(settings),
        server_url=server_url,
        compare=Path(compare) if compare is not None else None,
        compare_model=compare_model,
        windows=windows,
        p99_ms=p99_ms,
        check_with=check_with,
        progress=progress,
    )


class Study:
    """A study's directory: what it knows, and what can be done with it. Holds nothing open and caches nothing, so that
    it always tells what is on disk, also while another process runs the study."""

    def __init__(self, directory: AnyPath) -> None:
        """Raises :class:`optimizer.errors.InputError` where there is no study."""
        from optimizer.ledger import read_study

        self.directory = Path(directory)
        read_study(self.directory)

    def __repr__(self) -> str:
        return f"Study({str(self.directory)!r})"

    @property
    def document(self) -> Document:
        """Everything the study knows, finished or not: what ``report --json`` prints."""
        from optimizer.summary import study_document

        return study_document(self.directory)

    @property
    def decision(self) -> Decision | None:
        """``None`` until it is reached."""
        from optimizer.ledger import Ledger
        from optimizer.records.decision import Decision

        return Ledger.view(self.directory).load("decision", "final", Decision)

    def resume(self, *, write_back: bool = False, progress: Progress = silent) -> Document:
        """Goes on from the ledger; a finished study is left as it is. Refused in another environment than the study
        began in (:class:`optimizer.errors.EnvironmentFailure`) and for a changed model (``InputError``)."""
        from optimizer.tuning import resume_study

        return resume_study(self.directory, write_back=write_back, progress=progress)

    def apply(
        self,
        *,
        dry_run: bool = False,
        server_url: str | None = None,
        replace_served_versions: bool = False,
        accept_unserved_baseline: bool = False,
    ) -> Document:
        """Writes the winner into the repository as a new version; with ``dry_run`` only the difference is shown.
        Raises :class:`optimizer.errors.WriteBackRefused` with the reason."""
        from optimizer.tuning import apply_study

        return apply_study(
            self.directory,
            dry_run=dry_run,
            server_url=server_url,
            replace_served_versions=replace_served_versions,
            accept_unserved_baseline=accept_unserved_baseline,
        )

    def report_html(self, file: AnyPath | None = None) -> str:
        """The study as one self-contained page; also written to ``file`` where one is given."""
        from optimizer.durable import write_atomically
        from optimizer.report.page import study_page

        page = study_page(self.document)
        if file is not None:
            write_atomically(Path(file), page)
        return page


def read_settings(given: AnySettings) -> Settings:
    """Validated settings of any of the accepted forms. Raises :class:`optimizer.errors.InputError`."""
    from optimizer.config import Settings, load_settings, parse_settings

    if isinstance(given, Settings):
        return given
    if isinstance(given, Mapping):
        return parse_settings(given)
    return load_settings(Path(given) if given is not None else None)
