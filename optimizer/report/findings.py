"""What a study's document says, worked out once for every form of the report. Pure: JSON values in, values out.

Everything that comes from the race is exploratory: the best of many noisy scores is too good, so only the finalists'
fresh confirmation pairs say how large a gain is.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optimizer.records.route import AS_FOUND, Route

Document = Mapping[str, Any]
Row = Mapping[str, Any]

PHASES = ("queue", "compute_input", "compute_infer", "compute_output", "client_and_network")
PHASE_NAMES = ("queue", "input", "infer", "output", "client and network")


def measured(document: Document) -> list[Row]:
    return [row for row in document["candidates"] if row["throughput"]]


# Latency: which figure every candidate can be compared by


@dataclass(frozen=True)
class Latency:
    """The latency figure that the report compares candidates by. ``key`` is a percentile or ``mean``."""

    key: str
    name: str
    why: str

    def of(self, row: Row) -> float | None:
        """In µs."""
        value = row["latency_mean_us"] if self.key == "mean" else row["percentiles_us"].get(self.key)
        return None if value is None else float(value)


_PREFERRED = ("p99", "p95", "p90", "p50")
_ENOUGH = 0.8
"""Part of the measured candidates that a percentile must be supported for, to stand for all."""


def latency(document: Document) -> Latency:
    """p99, or the highest percentile that the windows of most candidates support, and those of the ones that matter
    most; or else the mean."""
    rows = measured(document)
    needed = {row["id"] for _, row in compared(document) if row["throughput"]}
    for key in _PREFERRED:
        supported = sum(key in row["percentiles_us"] for row in rows)
        lacking = any(row["id"] in needed and key not in row["percentiles_us"] for row in rows)
        if rows and not lacking and supported >= _ENOUGH * len(rows):
            why = "" if key == "p99" else "the highest percentile that the windows' numbers of requests support"
            if supported < len(rows):
                why += f"{'; ' if why else ''}{len(rows) - supported} of {len(rows)} candidates have too few for it"
            return Latency(key, f"{key} latency", why)
    return Latency("mean", "mean latency", "the windows hold too few requests for any percentile" if rows else "")


# Who is who


def as_found(document: Document) -> Row | None:
    return next((row for row in document["candidates"] if row["id"] == AS_FOUND), None)


def default(document: Document) -> Row | None:
    """The engine family's default route; ``None`` where that is what is there already, or was not tried."""
    return next((row for row in document["candidates"] if row["id"] != AS_FOUND and not row["route"]), None)


def best(document: Document) -> Row | None:
    """The winner, or the finalist with the largest confirmed gain, or what the race saw best: never a rejected one."""
    rows = [row for row in document["candidates"] if row["id"] != AS_FOUND and row["state"] != "rejected"]
    return (
        next((row for row in rows if row["state"] == "winner"), None)
        or max((row for row in rows if confirmed_gain(row)), key=lambda row: _ratio(confirmed_gain(row)), default=None)
        or max((row for row in rows if row["race_ratio"]), key=lambda row: float(row["race_ratio"]), default=None)
    )


def _ratio(interval: Mapping[str, Any] | None) -> float:
    return float(interval["ratio"]) if interval else -math.inf


def confirmed_gain(row: Row) -> Mapping[str, Any] | None:
    """Over what is there; over the default route where what is there could not be served."""
    gain: Mapping[str, Any] | None = row["gain_over_as_found"] or row["gain_over_default"]
    return gain


def role(row: Row) -> str:
    """For people: ``as found``, ``default route``, ``winner``, ``finalist``, ``rejected``, ``candidate``."""
    if row["id"] == AS_FOUND:
        return "as found"
    if row["state"] in ("winner", "finalist", "rejected"):
        return str(row["state"])
    return "candidate" if row["route"] else "default route"


_PLACES = {"as found": 0, "default route": 1, "winner": 2, "finalist": 3, "candidate": 4, "rejected": 5}


def best_first(document: Document) -> list[Row]:
    """What is there, the default, the winner, finalists by confirmed gain, the others by what the race saw."""

    def place(row: Row) -> tuple[float, ...]:
        return (_PLACES[role(row)], -_ratio(confirmed_gain(row)), -(row["race_ratio"] or 0.0))

    return sorted(document["candidates"], key=place)


def compared(document: Document) -> list[tuple[str, Row]]:
    """As found, the default route, and the winner (or the best finalist, or the best of the race), as far as known."""
    chosen = [("as found", as_found(document)), ("default", default(document))]
    top = best(document)
    name = {"winner": "winner", "finalist": "best finalist"}.get(top["state"], "best of the race") if top else ""
    chosen.append((name, top))
    seen: dict[str, tuple[str, Row]] = {}
    for title, row in chosen:
        if row is not None:
            seen[row["id"]] = (title if row["id"] not in seen else f"{seen[row['id']][0]}, {title}", row)
    return list(seen.values())


# How far an unfinished study came


def progress_made(document: Document) -> str:
    """The last thing that an undecided study was at."""
    purposes = Counter(pair["purpose"] for pair in document["pairs"])
    tried = [row for row in document["candidates"] if row["id"] != AS_FOUND]
    if purposes["confirm"] or purposes["confirm-fresh"]:
        return "It was confirming its finalists."
    if purposes["race"] or document["search"]:
        counted = f"{len(tried)} tried, {len([row for row in tried if row['state'] == 'rejected'])} of them rejected"
        return f"It was searching: {counted}, {purposes['race']} pairs measured."
    if purposes["noise"]:
        return "It was measuring the noise of this machine."
    if tried:
        return "It was trying the default route."
    return "It was loading the model as found." if document["candidates"] else "Nothing was measured."


# Failures by reason


@dataclass(frozen=True)
class Reason:
    """Candidates that left the comparison at one stage for one reason."""

    stage: str
    code: str
    rows: tuple[Row, ...]


def rejected(document: Document) -> list[Reason]:
    """Most frequent first."""
    groups: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in document["candidates"]:
        if row["state"] == "rejected":
            groups[row["rejected_at"], row["code"]].append(row)
    reasons = [Reason(stage, code, tuple(rows)) for (stage, code), rows in groups.items()]
    return sorted(reasons, key=lambda reason: -len(reason.rows))


# Gain per knob


@dataclass(frozen=True)
class KnobValue:
    knob: str
    value: str
    """``not set`` where the route leaves the knob at its default."""
    ratio: float
    """Geometric mean of the race ratios of the candidates with this value."""
    candidates: int


NOT_SET = "not set"


def knob_gains(document: Document) -> list[tuple[str, list[KnobValue]]]:
    """By knob, the knob whose values differ most first. Exploratory: other knobs vary along."""
    rows = [
        (dict(Route.parse(row["route"]).assignments), math.log(row["race_ratio"]))
        for row in document["candidates"]
        if row["race_ratio"] and row["id"] != AS_FOUND
    ]
    found = []
    for knob in sorted({name for assigned, _ in rows for name in assigned}):
        ratios: defaultdict[str, list[float]] = defaultdict(list)
        for assigned, ratio in rows:
            ratios[assigned.get(knob, NOT_SET)].append(ratio)
        values = [KnobValue(knob, value, math.exp(statistics.fmean(each)), len(each)) for value, each in ratios.items()]
        found.append((knob, sorted(values, key=lambda one: (one.value != NOT_SET, _natural(one.value)))))
    return sorted(found, key=lambda item: -_spread(item[1]))


def _natural(value: str) -> tuple[float, str]:
    try:
        return float(value), ""
    except ValueError:
        return math.inf, value


def _spread(values: Sequence[KnobValue]) -> float:
    ratios = [math.log(value.ratio) for value in values]
    return max(ratios) - min(ratios)


# The race, round by round


@dataclass(frozen=True)
class Turn:
    """One candidate's pairs in one round."""

    candidate_id: str
    pairs: int
    usable: int
    ratio: float | None
    """Geometric mean over all its usable pairs so far: what decides whether it goes on."""


def rounds(document: Document) -> list[list[Turn]]:
    """Race pairs grouped into rounds, by the order of measuring: everyone has one turn a round."""
    found: list[list[Turn]] = []
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    for pair in document["pairs"]:
        if pair["purpose"] != "race":
            continue
        candidate, usable = pair["candidate_id"], int(pair["usable"])
        if usable:
            ratios[candidate].append(pair["log_ratio"])
        mean = math.exp(statistics.fmean(ratios[candidate])) if ratios[candidate] else None
        if found and _goes_on(found[-1], candidate):
            turn = found[-1][-1]
            found[-1][-1] = Turn(candidate, turn.pairs + 1, turn.usable + usable, mean)
            continue
        if not found or any(turn.candidate_id == candidate for turn in found[-1]):
            found.append([])
        found[-1].append(Turn(candidate, 1, usable, mean))
    return found


def _goes_on(turns: Sequence[Turn], candidate: str) -> bool:
    """Whether the candidate's turn that came last goes on. The last one of a round may be the first of the next, as
    its best: it has then had as many usable pairs as anyone in this round."""
    *others, last = turns
    if last.candidate_id != candidate:
        return False
    return not others or last.usable < max(turn.usable for turn in others) or last.usable == 0


# Confirmation


@dataclass(frozen=True)
class Confirmed:
    """One finalist against one reference: the pairs, and the interval that the decision rests on."""

    finalist: Mapping[str, Any]
    reference: str
    interval: Mapping[str, Any] | None
    pairs: tuple[Mapping[str, Any], ...]


def confirmations(document: Document) -> list[Confirmed]:
    """Every finalist against what must be beaten, and against the default route where that is another."""
    decision = document["decision"]
    pairs = [pair for pair in document["pairs"] if pair["purpose"].startswith("confirm")]
    labels = {row["id"]: row["label"] for row in document["candidates"]}
    judged = {one["candidate_id"]: one for one in (decision["finalists"] if decision else ())}
    found = []
    for candidate in dict.fromkeys([*judged, *(pair["candidate_id"] for pair in pairs)]):
        own = [pair for pair in pairs if pair["candidate_id"] == candidate]
        finalist = judged.get(candidate) or {
            "candidate_id": candidate, "label": labels.get(candidate, candidate), "accepted": False,
            "reason": "not judged yet", "gain_over_as_found": None, "gain_over_default": None, "p99_ratio": None,
        }  # fmt: skip
        references = list(dict.fromkeys(pair["reference_id"] for pair in own)) or [AS_FOUND]
        for reference in references:
            interval = finalist["gain_over_as_found" if reference == AS_FOUND else "gain_over_default"]
            against = tuple(pair for pair in own if pair["reference_id"] == reference)
            found.append(Confirmed(finalist, labels.get(reference, reference), interval, against))
    return found


# Accuracy


def judged_parities(row: Row) -> list[Mapping[str, Any]]:
    return list(row["parity"].values())


def by_tag(parity: Mapping[str, Any]) -> dict[str, list[tuple[str, float]]]:
    """Output and metric to (tag, loss), worst first."""
    found: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
    for tag, losses in parity["per_tag"].items():
        for name, value in losses.items():
            found[name].append((tag, float(value)))
    return {name: sorted(losses, key=lambda item: (-item[1], item[0])) for name, losses in found.items()}


def worst_loss(row: Row) -> str:
    """The loss that comes closest to its tolerance, or lies furthest beyond it."""
    parities = judged_parities(row)
    if any(parity["defects"] for parity in parities):
        return "defect"
    outputs = [output for parity in parities for output in parity["outputs"]]
    given = [output for output in outputs if output["threshold"] is not None] or outputs
    if not given:
        return ""
    worst = max(given, key=excess)
    return f"{worst['metric']} {worst['loss']:.2g}"


def excess(output: Mapping[str, Any]) -> float:
    """Loss as a part of its tolerance; above 1 it fails."""
    value, threshold = float(output["loss"]), output["threshold"]
    if threshold:
        return value / float(threshold)
    return value if threshold is None else (math.inf if value > 0 else 0.0)


# Warnings of the measurements


def warning_counts(document: Document) -> list[tuple[str, int, str]]:
    """Code, number of candidates that have it, and one example."""
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for row in document["candidates"]:
        for code in {warning.partition(":")[0] for warning in row["warnings"]}:
            counts[code] += 1
        for warning in row["warnings"]:
            examples.setdefault(warning.partition(":")[0], warning.partition(":")[2].strip())
    return [(code, count, examples[code]) for code, count in counts.most_common()]
