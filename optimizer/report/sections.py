"""The report's parts as titles, sentences and tables of texts: what text, Markdown, terminal and page all show.

One place decides which numbers are told and in which words; the forms differ only in how they are laid out. On the
page, charts stand above the same tables.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from optimizer.report import findings
from optimizer.report.findings import Document, Row
from optimizer.report.numbers import (
    duration,
    interval,
    loss,
    megabytes,
    milliseconds,
    number,
    percent,
    plural,
    rate,
)


@dataclass(frozen=True)
class Column:
    """``rank`` orders columns by importance: where space is short, those with the highest rank go first."""

    name: str
    numeric: bool = False
    rank: int = 0


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    note: str = ""


@dataclass(frozen=True)
class Section:
    """``key`` is stable: the page hangs its charts on it, and uses it as an anchor."""

    key: str
    title: str
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = field(default=())
    commands: tuple[str, ...] = ()
    """To be typed, or kept as a file: shown in a fixed pitch."""
    caveats: tuple[str, ...] = ()


def sections(document: Document) -> list[Section]:
    """Every part that has something to say, in reading order."""
    parts: Sequence[Callable[[Document], Section | None]] = (
        decision, candidates, left_out, where_time_goes, confirmation, race, knobs, accuracy, engines, noise, budget,
        environment, reproduce, what_next,
    )  # fmt: skip
    return [section for part in parts if (section := part(document)) is not None]


def summary(document: Document) -> list[Section]:
    """What a person wants on the screen right after a study."""
    parts: Sequence[Callable[[Document], Section | None]] = (decision, candidates, left_out, what_next)
    return [section for part in parts if (section := part(document)) is not None]


def headline(document: Document) -> str:
    """The decision in one sentence, or how far the study came."""
    if document["decision"]:
        return str(document["decision"]["sentence"])
    stopped = document["stopped"]
    if stopped:
        return f"The study has not reached a decision. It stopped: {stopped['problem']}"
    return "The study has not reached a decision: it is running, or was killed."


def decision(document: Document) -> Section:
    lines = [headline(document)]
    made = document["decision"]
    if not made:
        stopped = document["stopped"] or {}
        lines += [f"Remedy: {stopped['remedy']}"] if stopped.get("remedy") else []
        lines.append(findings.progress_made(document))
        top = findings.best(document)
        if top and top["race_ratio"]:
            lines.append(
                f"Best so far in the race, which is no result: {top['label']}, {percent(top['race_ratio'])} over "
                f"{plural(top['race_pairs'], 'pair')}."
            )
    elif made["pairs_to_settle"]:
        lines.append(f"About {made['pairs_to_settle']} pairs a finalist would settle it at the spread that was seen.")
    if document["dropped"]:
        lines.append(f"The end of the ledger was dropped: {document['dropped']}.")
    tables = (_finalists(made["finalists"]),) if made and made["finalists"] else ()
    return Section("decision", "Decision", tuple(lines), tables, caveats=tuple(made["caveats"] if made else ()))


def _finalists(finalists: Sequence[Row]) -> Table:
    # Where the default route is what is there, or nothing else was measured, one gain says it.
    both = any(one["gain_over_default"] not in (None, one["gain_over_as_found"]) for one in finalists)
    rows = tuple(
        (
            one["label"],
            interval(one["gain_over_as_found"]),
            *([interval(one["gain_over_default"])] if both else []),
            interval(one["p99_ratio"]),
            str((one["gain_over_as_found"] or one["gain_over_default"] or {"pairs": 0})["pairs"]),
            "accepted" if one["accepted"] else one["reason"],
        )
        for one in finalists
    )
    confidence = next(
        (
            one[key]["confidence"]
            for one in finalists
            for key in ("gain_over_as_found", "gain_over_default")
            if one[key]
        ),
        0.95,
    )
    columns = (
        Column("finalist"), Column("gain over as found", True),
        *([Column("gain over default", True, 2)] if both else []),
        Column("tail latency", True, 1), Column("pairs", True, 3), Column("verdict"),
    )  # fmt: skip
    note = f"From fresh pairs. Each bound of an interval holds at {confidence:.0%}, for all finalists together."
    return Table(columns, rows, "Finalists", note)


CANDIDATE_COLUMNS = (
    Column("candidate"),
    Column("state"),
    Column("inferences/s", True),
    Column("p50 ms", True, 3),
    Column("p99 ms", True, 1),
    Column("gain", True),
    Column("build s", True, 4),
    Column("size MB", True, 5),
    Column("memory MB", True, 6),
    Column("worst loss", False, 2),
)


def candidates(document: Document) -> Section | None:
    rows = findings.best_first(document)
    if not rows:
        return None
    shown = findings.latency(document)
    columns = tuple(
        Column(f"{shown.key} ms", True, 1) if column.name == "p99 ms" and shown.key != "p99" else column
        for column in CANDIDATE_COLUMNS
        if not (column.name == "p50 ms" and shown.key == "p50")
    )
    cells = tuple(tuple(candidate_cells(row, shown)) for row in rows)
    note = "Gain over what is there, confirmed on fresh pairs; in brackets what the race saw, which is no result."
    if any(row["throughput"] for row in rows):
        note += " Memory is the GPU's where it is known, else what the engine asks for, else the server's."
    if shown.why:
        note += f" Shown is the {shown.name}: {shown.why}."
    table = Table(columns, cells, note=note)
    workload = document["fingerprint"]["facts"].get("workload", "")
    lines = (f"Load: {workload}. Figures are medians over windows.",) if workload else ()
    return Section("candidates", "Candidates", lines, (table,))


def candidate_cells(row: Row, shown: findings.Latency) -> list[str]:
    gain = findings.confirmed_gain(row)
    if gain:
        gained = f"{percent(gain['ratio'])} (≥ {percent(gain['lower'])})"
    else:
        gained = f"[{percent(row['race_ratio'])}]" if row["race_ratio"] is not None else ""
    measured = bool(row["throughput"])
    memory = row["gpu_memory_bytes"] or row["device_memory_bytes"] or row["server_rss_bytes"]
    built = row["build_s"] is not None
    return [
        row["label"],
        row["state"],
        rate(row["throughput"]) if measured else "",
        *([milliseconds(row["p50_us"]) if measured else ""] if shown.key != "p50" else []),
        milliseconds(shown.of(row)) if measured else "",
        gained,
        number(row["build_s"], 1) if built else "",
        megabytes(row["size_bytes"]) if row["size_bytes"] else "",
        megabytes(memory) if memory else "",
        findings.worst_loss(row),
    ]


FEW = 3


def left_out(document: Document) -> Section | None:
    reasons = findings.rejected(document)
    if not reasons:
        return None
    count = sum(len(reason.rows) for reason in reasons)
    line = f"{plural(count, 'candidate')} left the comparison, and {'is' if count == 1 else 'are'} not ranked."
    by_reason = Table(
        (Column("reason"), Column("candidates", True), Column("for example")),
        tuple(
            (f"{reason.stage}: {reason.code}", f"{len(reason.rows):,}", one_line(reason.rows[0]["reason"]))
            for reason in reasons
        ),
    )
    each = Table(
        (Column("candidate"), Column("reason", rank=1), Column("what happened")),
        tuple(
            (row["label"], f"{reason.stage}: {reason.code}", one_line(row["reason"]))
            for reason in reasons
            for row in reason.rows
        ),
    )
    return Section("left-out", "Left the comparison", (line,), (each,) if count <= FEW else (by_reason, each))


def where_time_goes(document: Document) -> Section | None:
    rows = tuple(
        (
            row["label"],
            *(milliseconds(row["breakdown_us"][phase]) for phase in findings.PHASES),
            milliseconds(sum(row["breakdown_us"][phase] for phase in findings.PHASES)),
            number(row["mean_batch"], 2),
        )
        for _, row in findings.compared(document)
        if row["breakdown_us"]
    )
    if not rows:
        return None
    columns = (
        Column("candidate"),
        *(Column(f"{name} ms", True) for name in findings.PHASE_NAMES),
        Column("all ms", True),
        Column("mean batch", True, 1),
    )
    line = "Mean time of a request, by Triton's own statistics; what is left of the client's latency is its own share."
    return Section("time", "Where the time goes", (line,), (Table(columns, rows),))


def confirmation(document: Document) -> Section | None:
    confirmed = [one for one in findings.confirmations(document) if one.pairs]
    if not confirmed:
        return None
    rows = tuple(
        (
            one.finalist["label"],
            one.reference,
            str(pair["index"] + 1) + (" (fresh server)" if pair["purpose"] == "confirm-fresh" else ""),
            rate(pair["candidate_throughput"]),
            rate(pair["reference_throughput"]),
            _gain_of(pair),
            "yes" if pair["usable"] else "no: " + pair["note"].partition(":")[0],
        )
        for one in confirmed
        for pair in one.pairs
    )
    columns = (
        Column("finalist"), Column("against", rank=2), Column("pair", True, 1), Column("candidate/s", True),
        Column("reference/s", True), Column("gain", True), Column("usable"),
    )  # fmt: skip
    return Section("confirmation", "Confirmation", (CONFIRMATION_SAYS,), (Table(columns, rows, "Every pair"),))


CONFIRMATION_SAYS = (
    "Finalists were measured again in fresh pairs with what is there, the last one on a freshly started server. Only "
    "these decide; disturbed pairs are left out."
)


def _gain_of(pair: Row) -> str:
    return percent(2.718281828459045 ** pair["log_ratio"])


BEST_OF_A_ROUND = 3


def race(document: Document) -> Section | None:
    rounds = findings.rounds(document)
    if not rounds:
        return None
    labels = {row["id"]: row["label"] for row in document["candidates"]}
    rows = []
    for position, turns in enumerate(rounds, start=1):
        first = sorted((turn for turn in turns if turn.ratio), key=lambda turn: -(turn.ratio or 0))
        ahead = "; ".join(
            f"{labels[turn.candidate_id]} [{percent(turn.ratio or 1)}]" for turn in first[:BEST_OF_A_ROUND]
        )
        rows.append((str(position), f"{len(turns):,}", str(sum(turn.pairs for turn in turns)), ahead))
    columns = (Column("round", True), Column("candidates", True), Column("pairs", True), Column("ahead after it"))
    why = [f"{search['strategy']}: {search['why']}." for search in document["search"][-1:]]
    says = "The race picks finalists and nothing else: the best of many noisy scores is too good."
    return Section("race", "The race", (*why, says), (Table(columns, tuple(rows)),))


def knobs(document: Document) -> Section | None:
    gains = findings.knob_gains(document)
    if not gains:
        return None
    rows = tuple(
        (knob, value.value, percent(value.ratio), f"{value.candidates:,}") for knob, values in gains for value in values
    )
    columns = (Column("knob"), Column("value"), Column("mean gain in the race", True), Column("candidates", True))
    return Section("knobs", "Gain per knob", (KNOBS_SAY,), (Table(columns, rows),))


KNOBS_SAY = (
    "Exploratory: the geometric mean of what the race saw, over the candidates with each value. Other knobs vary "
    "along, and few pairs stand behind most of them."
)


def accuracy(document: Document) -> Section | None:
    # A candidate that failed says more than one of hundreds that passed; finalists say most.
    interesting = [row for row in document["candidates"] if row["parity"] and row["state"] != "screened"]
    order = {"winner": 0, "finalist": 1, "rejected": 2}
    interesting.sort(key=lambda row: order.get(row["state"], 3))
    shown = interesting[:MOST_ACCURACY_ROWS]
    if not shown:
        return None
    outputs: list[tuple[str, ...]] = []
    tags: list[tuple[str, ...]] = []
    for row in shown:
        for parity in findings.judged_parities(row):
            outputs += [
                (row["label"], parity["sample_set"], "", "defect", "", "failed", one_line(defect))
                for defect in parity["defects"][:1]
            ]
            outputs += [_output_cells(row, parity, output) for output in parity["outputs"]]
    for row in shown[:MOST_TAGGED]:
        for parity in findings.judged_parities(row):
            for name, losses in findings.by_tag(parity).items():
                tags.append((row["label"], parity["sample_set"], name, _worst_tags(losses)))
    columns = (
        Column("candidate"), Column("samples", rank=1), Column("output and metric"), Column("loss", True),
        Column("tolerance", True), Column("verdict"), Column("worst sample", rank=2),
    )  # fmt: skip
    tables = [Table(columns, tuple(outputs), "By output")]
    if tags:
        tag_columns = (
            Column("candidate"), Column("samples", rank=1), Column("output and metric"),
            Column("loss by tag, worst first"),
        )  # fmt: skip
        tables.append(Table(tag_columns, tuple(tags), "By tag"))
    lines = [ACCURACY_SAYS]
    if len(shown) < len(interesting):
        lines.append(f"Shown are {len(shown)} of {len(interesting)} candidates: finalists and failures first.")
    return Section("accuracy", "Accuracy", tuple(lines), tuple(tables))


MOST_ACCURACY_ROWS = 40
MOST_TAGGED = 4
ACCURACY_SAYS = (
    "Answers through the server against the reference outputs. Finalists are checked again on samples that the search "
    "has not seen (held_out). The loss is also the tolerance that would have been needed."
)


MOST_TAGS = 6


def _worst_tags(losses: Sequence[tuple[str, float]]) -> str:
    told = ", ".join(f"{tag} {loss(value)}" for tag, value in losses[:MOST_TAGS])
    left = losses[MOST_TAGS:]
    return told + (f", {len(left)} more up to {loss(left[0][1])}" if left else "")


def _output_cells(row: Row, parity: Row, output: Row) -> tuple[str, ...]:
    told = loss(output["loss"])
    if output["misses"] is not None:
        told += f" ({output['misses']} of {output['units']:,})"
    given = output["threshold"]
    verdict = "not judged" if given is None else ("passed" if output["passed"] else "failed")
    name = f"{output['output']}: {output['metric']}"
    return (
        row["label"], f"{parity['sample_set']} ({parity['samples']})", name, told,
        "" if given is None else loss(given), verdict, output["worst_sample"] or "",
    )  # fmt: skip


def engines(document: Document) -> Section | None:
    built = document["engines"]
    if not built:
        return None
    routes: dict[str, list[str]] = {}
    for row in document["candidates"]:
        routes.setdefault(row["engine"], []).append(row["label"])
    rows = tuple(
        (
            engine["id"],
            "; ".join(routes.get(engine["id"], [])[:1]) + _and_more(len(routes.get(engine["id"], [])) - 1),
            number(engine["build_s"], 1),
            megabytes(engine["size_bytes"]) if engine["size_bytes"] else "",
            megabytes(engine["device_memory_bytes"]) if engine["device_memory_bytes"] else "",
            one_line(engine["failure"]) if engine["failure"] else engine["builder"],
            (engine["sha256"] or "")[:12],
        )
        for engine in sorted(built, key=lambda engine: -engine["build_s"])
    )
    columns = (
        Column("engine", rank=2), Column("first candidate"), Column("build s", True), Column("size MB", True),
        Column("device memory MB", True, 1), Column("builder, or why it failed"), Column("sha256", rank=3),
    )  # fmt: skip
    failed = sum(1 for engine in built if engine["failure"])
    line = f"{plural(len(built), 'build')}, {duration(document['time']['build_s'])} in all" + (
        f", {failed} of them failed." if failed else "."
    )
    return Section("engines", "Builds, memory, plan sizes", (line,), (Table(columns, rows),))


def _and_more(count: int) -> str:
    return f" (and {count} more)" if count > 0 else ""


def noise(document: Document) -> Section | None:
    pairs = [pair for pair in document["pairs"] if pair["purpose"] == "noise"]
    found = document["facts"].get("noise")
    if not pairs and not found:
        return None
    lines = []
    if found and isinstance(found["sd"], (int, float)):
        lines.append(
            f"Two copies of the reference, measured in {plural(found['pairs'], 'pair')}, differ by {found['sd']:.1%} "
            f"from pair to pair (standard deviation; at most {found['sd_upper']:.1%} at 80%)"
            + (f"; {found['dropped']} disturbed pairs left out." if found["dropped"] else ".")
        )
        if found["biased"]:
            lines.append("The two copies are not alike: something on this machine favours one of them.")
    rows = tuple(
        (str(pair["index"] + 1), rate(pair["candidate_throughput"]), rate(pair["reference_throughput"]), _gain_of(pair),
         "yes" if pair["usable"] else "no: " + pair["note"].partition(":")[0])
        for pair in pairs
    )  # fmt: skip
    columns = (
        Column("A/A pair", True), Column("copy/s", True), Column("reference/s", True), Column("difference", True),
        Column("usable"),
    )  # fmt: skip
    counted = findings.warning_counts(document)
    warnings = tuple((code, f"{count:,}", example) for code, count, example in counted)
    tables = [Table(columns, rows, "A/A pairs")]
    if warnings:
        named = (Column("warning"), Column("candidates", True), Column("for example"))
        tables.append(Table(named, warnings, "Warnings of the measurements"))
    return Section("noise", "Noise of this machine", tuple(lines), tuple(tables))


def budget(document: Document) -> Section | None:
    spent = document["facts"].get("spent", {})
    times = document["time"]
    wall_s = spent.get("wall_s") or times["last_at"] - times["first_at"]
    if not wall_s:
        return None
    limits = document["settings"].get("budget", {})
    lines = [
        f"Took {duration(wall_s)}" + (f" of {limits['minutes']:g} min." if limits.get("minutes") else ", no limit.")
    ]
    lines.append(
        f"Of that {duration(times['build_s'])} in builds and {duration(times['window_s'])} in "
        f"{plural(times['windows'], 'measurement window')}; the rest is loading, warming up and checking answers."
    )
    told = (document["decision"] or {}).get("break_even", {}).get("sentence")
    if told:
        lines.append(f"Break-even: {told}")
    elif document["decision"]:
        lines.append("Break-even: there is nothing to earn back, since what is there stays.")
    return Section("budget", "Budget and break-even", tuple(lines))


def environment(document: Document) -> Section:
    fingerprint = document["fingerprint"]
    facts = {"model hash": fingerprint["model"][:16], **fingerprint["facts"]}
    facts |= {
        name.removeprefix("why_").replace("_", " ") + ", why": reason
        for name, reason in document["notes"].items()
        if name.startswith("why_")
    }
    rows = tuple((name, str(value)) for name, value in sorted(facts.items()))
    line = "The result is tied to this: elsewhere it is guidance."
    return Section("environment", "Environment", (line,), (Table((Column("fact"), Column("value")), rows),))


def reproduce(document: Document) -> Section:
    created = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(document["created_at"]))
    line = (
        f"Study {document['directory']} of {document['repository']}, begun {created} with triton-optimizer "
        f"{document['version']}. Save this as settings.yaml, next to the files it names:"
    )
    changed = {name: value for name, value in document["changed_settings"].items() if name != "models"}
    commands = (
        *json.dumps(changed, indent=2).splitlines(),
        f"triton-optimizer optimize {document['repository']} --model {document['model']} --config settings.yaml "
        "--study NEW_DIRECTORY",
    )
    return Section("reproduce", "How to reproduce", (line,), commands=commands)


_MEANS = {"apply": "write it back", "rollback": "take it back", "resume": "go on", "report": "read this again"}


def what_next(document: Document) -> Section | None:
    if not document["next"]:
        return None
    title = "How to apply, and to roll back" if (document["decision"] or {}).get("winner") else "Next"
    return Section("next", title, commands=tuple(document["next"]))


def one_line(text: str) -> str:
    return " ".join(text.split())
