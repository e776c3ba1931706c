"""One row per request, in columns, and the ``.npz`` file that keeps them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from optimizer.durable import write_atomically
from optimizer.errors import InputError
from optimizer.load.loop import Report

Column = npt.NDArray[Any]
COLUMNS = ("intended_ns", "sent_ns", "done_ns", "sample", "outcome", "worker")


@dataclass(frozen=True)
class RequestLog:
    """Columns of equal length. Times are int64 nanoseconds relative to the window's start (negative before it).

    ``outcome`` is 0 for an answer and n for ``outcomes[n]``; ``outcomes[0]`` is ``"OK"``.
    """

    intended_ns: Column
    sent_ns: Column
    done_ns: Column
    sample: Column
    outcome: Column
    worker: Column
    outcomes: tuple[str, ...]
    duration_ns: int

    def __len__(self) -> int:
        return len(self.sent_ns)

    @property
    def ok(self) -> Column:
        return np.asarray(self.outcome == 0)

    def save(self, path: Path) -> None:
        buffer = io.BytesIO()
        np.savez(
            buffer,
            **{name: getattr(self, name) for name in COLUMNS},
            outcomes=np.array(self.outcomes, dtype=np.str_),
            duration_ns=np.int64(self.duration_ns),
        )
        write_atomically(path, buffer.getvalue())


def load_request_log(path: Path) -> RequestLog:
    """Raises :class:`InputError` for a file that is no request log."""
    try:
        with np.load(path) as file:
            return RequestLog(
                **{name: file[name] for name in COLUMNS},
                outcomes=tuple(str(text) for text in file["outcomes"]),
                duration_ns=int(file["duration_ns"]),
            )
    except (OSError, KeyError, ValueError) as error:
        raise InputError(
            f"not a request log ({error})", where=path, remedy="name a .npz file that a measurement wrote"
        ) from None


def merge_reports(reports: Sequence[Report], *, window_start_ns: int, duration_ns: int) -> RequestLog:
    """The processes' reports as one log, ordered by the time of sending."""
    outcomes = ["OK"]
    codes: dict[str, int] = {}
    outcome_parts: list[Column] = []
    for report in reports:
        translation = [0]
        for text in report.failures:
            if text not in codes:
                codes[text] = len(outcomes)
                outcomes.append(text)
            translation.append(codes[text])
        outcome_parts.append(np.array(translation, dtype=np.int16)[np.frombuffer(report.outcome, dtype=np.int16)])

    def column(name: str, dtype: type[np.generic]) -> Column:
        parts = [np.frombuffer(getattr(report, name), dtype=dtype) for report in reports]
        return np.concatenate(parts) if parts else np.empty(0, dtype)

    sent = column("sent", np.int64)
    order = np.argsort(sent, kind="stable")
    workers = [np.full(len(report.sent), number, dtype=np.int16) for number, report in enumerate(reports)]
    return RequestLog(
        intended_ns=column("intended", np.int64)[order] - window_start_ns,
        sent_ns=sent[order] - window_start_ns,
        done_ns=column("done", np.int64)[order] - window_start_ns,
        sample=column("sample", np.int32)[order],
        outcome=np.concatenate(outcome_parts)[order] if outcome_parts else np.empty(0, np.int16),
        worker=np.concatenate(workers)[order] if workers else np.empty(0, np.int16),
        outcomes=tuple(outcomes),
        duration_ns=duration_ns,
    )
