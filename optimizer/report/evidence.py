"""What the decision rests on: times, confirmation, race, knobs, accuracy, builds and the machine's noise."""

from __future__ import annotations

from collections.abc import Sequence

from optimizer.report import findings
from optimizer.report.findings import Document, Row
from optimizer.report.layout import Column, Section, Table, one_line
from optimizer.report.numbers import (
    duration,
    loss,
    megabytes,
    milliseconds,
    number,
    percent,
    plural,
    rate,
)


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
    "Finalists were measured again in fresh pairs with what is there, each one's last on a freshly started server. "
    "Only these decide; disturbed pairs are left out. Who could not reach the minimum gain any more was measured no "
    "further, and has no pair on the fresh server."
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
