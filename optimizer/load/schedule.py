"""When requests are due, and with which samples. Pure: everything follows from the workload and its seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from optimizer.errors import InputError
from optimizer.load.request_log import Column
from optimizer.records.measurement import Arrival, Workload

ORDER_LENGTH = 4096


def arrival_times(workload: Workload, *, lead_s: float) -> Column:
    """Absolute due times in ns relative to the window's start, from ``-lead_s`` to its end. The same seed gives the
    same times, so that both arms of a comparison meet the same load.
    """
    if workload.rate_per_s is None or not workload.rate_per_s > 0:
        raise InputError(
            f"{workload.arrival.value} arrivals need a rate above 0, not {workload.rate_per_s}",
            field="rate_per_s",
            remedy="give requests per second",
        )
    length_s = lead_s + workload.duration_s
    if workload.arrival is Arrival.CONSTANT:
        times_s = np.arange(int(np.ceil(length_s * workload.rate_per_s))) / workload.rate_per_s
    else:
        generator = np.random.default_rng([workload.seed, 1])
        expected = length_s * workload.rate_per_s
        # Enough exponential gaps to pass the end but for odds of 1e-9 and below; the rest is drawn one by one.
        gaps = generator.exponential(1 / workload.rate_per_s, int(expected + 6 * np.sqrt(expected) + 20))
        times_s = np.cumsum(gaps)
        while times_s[-1] < length_s:
            times_s = np.append(times_s, times_s[-1] + generator.exponential(1 / workload.rate_per_s))
    times_s = times_s[times_s < length_s]
    return np.asarray(np.round((times_s - lead_s) * 1e9), dtype=np.int64)


def sample_order(
    samples: int, seed: int, *, length: int | None = None, weights: Sequence[float] | None = None
) -> Column:
    """Sample indices in the order of sending, for all processes together.

    Without ``weights`` every sample comes once a round, in an order that the seed chooses and that stays the same over
    the rounds: neighbours differ, so no two equal inputs are in flight unless more are in flight than there are
    samples. With weights they are drawn at random with those odds.
    """
    generator = np.random.default_rng([seed, 2])
    if weights is not None:
        odds = np.asarray(weights, dtype=float)
        if odds.shape != (samples,) or not np.isfinite(odds).all() or (odds < 0).any() or odds.sum() == 0:
            raise InputError(
                f"sample weights must be {samples} numbers of at least 0 that are not all 0",
                field="sample_weights",
                remedy="give one weight per sample",
            )
        return generator.choice(samples, size=length or ORDER_LENGTH, p=odds / odds.sum()).astype(np.int32)
    order = generator.permutation(samples).astype(np.int32)
    return np.resize(order, length) if length is not None else order


def read_trace(
    path: Path, sample_ids: Sequence[str], stand_ins: Mapping[str, str] | None = None
) -> tuple[Column, Column]:
    """A trace: JSON lines ``{"at_s": seconds, "sample": id}``, or a JSON list of such. ``sample`` may be left out:
    the samples then come in turn. ``stand_ins``: other ids that may be named, with the sample that is sent for each.
    Returns due times in ns from the first request on, and sample indices.
    """
    numbers = {identifier: number for number, identifier in enumerate(sample_ids)}
    numbers = {other: numbers[own] for other, own in (stand_ins or {}).items()} | numbers
    times: list[float] = []
    samples: list[int] = []
    for where, row in _rows(path):
        at = row.get("at_s") if isinstance(row, dict) else None
        if isinstance(at, bool) or not isinstance(at, int | float) or not np.isfinite(at):
            raise InputError("needs a number of seconds", where=where, field="at_s", remedy="give the time of sending")
        identifier = row.get("sample") if isinstance(row, dict) else None
        if identifier is None:
            number = len(samples) % len(sample_ids)
        elif str(identifier) in numbers:
            number = numbers[str(identifier)]
        else:
            raise InputError(
                f"no sample has the id {identifier!r}", where=where, field="sample",
                remedy=f"use one of: {', '.join(list(sample_ids)[:10])}",
            )  # fmt: skip
        times.append(float(at))
        samples.append(number)
    if not times:
        raise InputError("is empty", where=path, remedy='write lines of {"at_s": …, "sample": …}')
    order = np.argsort(times, kind="stable")
    due = np.asarray(times)[order]
    return np.round((due - due[0]) * 1e9).astype(np.int64), np.asarray(samples, dtype=np.int32)[order]


def samples_named(path: Path) -> list[str]:
    """The ids in a trace, each once, in the order of the file."""
    named = (row.get("sample") for _, row in _rows(path) if isinstance(row, dict))
    return list(dict.fromkeys(str(identifier) for identifier in named if identifier is not None))


def _rows(path: Path) -> list[tuple[str, object]]:
    """Every row of a trace, and where it is."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read ({error})", where=path, remedy="name a readable trace file") from None
    try:
        if text.lstrip().startswith("["):
            return [(f"{path}: entry {number}", row) for number, row in enumerate(json.loads(text), 1)]
        lines = enumerate(text.splitlines(), 1)
        return [(f"{path}:{number}", json.loads(line)) for number, line in lines if line.strip()]
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON ({error})", where=path, remedy='write lines of {"at_s": …, "sample": …}') from None
