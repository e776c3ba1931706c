"""Every exception that leaves the optimizer, and the exit code it becomes.

::

    OptimizerError
    ├── InputError          2  usage, or a file, field or value of the user's that is wrong
    ├── EnvironmentFailure  3  no server, no GPU, no Docker, a version that does not match
    ├── ReferenceFailure    4  the model as found does not load, or answers wrong or unstably
    ├── StudyInterrupted    5  stopped, or budget spent, before a decision; ``resume`` goes on
    └── WriteBackRefused    6  nothing was written, or what was written has been rolled back

A candidate's failure is never an exception: it is a record (:class:`optimizer.records.engine.BuildFailure`,
:class:`optimizer.records.candidate.Rejection`), since a study goes on without that candidate.
"""

from __future__ import annotations

from pathlib import Path


class OptimizerError(Exception):
    """What was wrong, where, and what to do about it.

    ``where`` is a file (with line and column where known) or another address a user can open; ``field`` is the
    setting, config field or tensor at fault; ``remedy`` is one sentence in the imperative.
    """

    exit_code = 1

    def __init__(
        self,
        problem: str,
        *,
        where: Path | str | None = None,
        field: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.problem = problem
        self.where = str(where) if where is not None else None
        self.field = field
        self.remedy = remedy
        super().__init__(self.message)

    @property
    def message(self) -> str:
        address = ": ".join(part for part in (self.where, self.field) if part)
        text = f"{address}: {self.problem}" if address else self.problem
        return f"{text}\n  remedy: {self.remedy}" if self.remedy else text

    def as_json(self) -> dict[str, object]:
        return {
            "error": type(self).__name__,
            "problem": self.problem,
            "where": self.where,
            "field": self.field,
            "remedy": self.remedy,
            "exit_code": self.exit_code,
        }


class InputError(OptimizerError):
    exit_code = 2


class EnvironmentFailure(OptimizerError):
    exit_code = 3


def of_os_error(error: OSError, *, remedy: str) -> EnvironmentFailure:
    """What the system refused where nobody expected it: a full disk, a file that has gone, a right that is missing."""
    # shutil.Error has a list of (source, target, reason) in place of a number and a text.
    listed = error.args[0] if error.args else None
    first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], tuple) else None
    if first is not None:
        return EnvironmentFailure(str(first[-1]), where=str(first[1]), remedy=remedy)
    return EnvironmentFailure(error.strerror or str(error), where=error.filename, remedy=remedy)


class ReferenceFailure(OptimizerError):
    exit_code = 4


class StudyInterrupted(OptimizerError):
    exit_code = 5


class WriteBackRefused(OptimizerError):
    exit_code = 6
