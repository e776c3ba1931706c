"""What came of a study: the decision, every candidate, who left the comparison, and what to type next."""

from __future__ import annotations

from collections.abc import Sequence

from optimizer.report import findings
from optimizer.report.findings import Document, Row
from optimizer.report.layout import Column, Section, Table, one_line
from optimizer.report.numbers import (
    interval,
    megabytes,
    milliseconds,
    number,
    percent,
    plural,
    rate,
)


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


def what_next(document: Document) -> Section | None:
    if not document["next"]:
        return None
    title = "How to apply, and to roll back" if (document["decision"] or {}).get("winner") else "Next"
    return Section("next", title, commands=tuple(document["next"]))
