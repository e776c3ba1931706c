"""A study's document (see :mod:`optimizer.summary`) as plain text and as Markdown. Pure: a document in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]
UNKNOWN = "unknown"


def decision_lines(document: Document) -> list[str]:
    decision = document.get("decision")
    if decision is None:
        return ["The study has not reached a decision."]
    lines = [decision["sentence"]]
    lines += [f"Caveat: {caveat}" for caveat in decision["caveats"]]
    return lines


COLUMNS = (
    "candidate", "state", "inferences/s", "p50 ms", "p99 ms", "gain", "build s", "size MB", "memory MB", "worst loss",
)  # fmt: skip


def candidate_cells(row: Document) -> list[str]:
    """Cells of :data:`COLUMNS`. The gain is a confirmed one, or in brackets what the race saw, which is no result."""
    confirmed = row["gain_over_as_found"] or row["gain_over_default"]
    if confirmed:
        gain = f"{percent(confirmed['ratio'])} (≥ {percent(confirmed['lower'])})"
    elif row["race_ratio"] is not None:
        gain = f"[{percent(row['race_ratio'])}]"
    else:
        gain = ""
    memory = row["gpu_memory_bytes"] or row["device_memory_bytes"] or row["server_rss_bytes"]
    return [
        row["label"],
        row["state"],
        number(row["throughput"], 1),
        milliseconds(row["p50_us"]),
        milliseconds(row["p99_us"]),
        gain,
        number(row["build_s"], 1),
        megabytes(row["size_bytes"]),
        megabytes(memory),
        worst_loss(row),
    ]


def worst_loss(row: Document) -> str:
    parities = list(row["parity"].values())
    if not parities:
        return ""
    outputs = [output for parity in parities for output in parity["outputs"]]
    given = [output for output in outputs if output["threshold"] is not None] or outputs
    if any(parity["defects"] for parity in parities):
        return "defect"
    if not given:
        return ""
    worst = max(given, key=lambda output: _excess(output))
    return f"{worst['metric']} {worst['loss']:.2g}"


def _excess(output: Document) -> float:
    loss, threshold = float(output["loss"]), output["threshold"]
    return loss / threshold if threshold else loss


def rejections(document: Document) -> list[tuple[str, str]]:
    return [
        (row["label"], f"{row['rejected_at']}/{row['code']}: {row['reason']}")
        for row in document["candidates"]
        if row["state"] == "rejected"
    ]


def study_text(document: Document) -> str:
    lines = [
        f"Study of {document['model']} in {document['repository']}",
        f"  {document['directory']}, triton-optimizer {document['version']}, {document['state']}",
        "",
        *decision_lines(document),
        "",
        *table(COLUMNS, [candidate_cells(row) for row in document["candidates"]]),
    ]
    rejected = rejections(document)
    if rejected:
        lines += ["", "Left the comparison:", *(f"  {label}: {reason}" for label, reason in rejected)]
    breakdown = _breakdown_table(document)
    if breakdown:
        lines += ["", "Where the time of a request goes (µs):", *breakdown]
    lines += ["", "Environment:", *(f"  {name}: {value}" for name, value in sorted(environment(document).items()))]
    lines += ["", "Next:", *(f"  {command}" for command in document["next"])]
    return "\n".join(lines) + "\n"


def study_markdown(document: Document) -> str:
    lines = [f"# {document['model']}", "", *(f"{line}  " for line in decision_lines(document)), ""]
    lines += _markdown_table(COLUMNS, [candidate_cells(row) for row in document["candidates"]])
    rejected = rejections(document)
    if rejected:
        lines += ["", "## Left the comparison", "", *(f"- `{label}`: {reason}" for label, reason in rejected)]
    lines += [
        "",
        "## Environment",
        "",
        *(f"- {name}: {value}" for name, value in sorted(environment(document).items())),
    ]
    lines += ["", "## Next", "", "```", *document["next"], "```"]
    return "\n".join(lines) + "\n"


PHASES = ("queue", "compute_input", "compute_infer", "compute_output", "client_and_network")


def _breakdown_table(document: Document) -> list[str]:
    rows = [
        [row["label"], *(number(row["breakdown_us"][phase], 0) for phase in PHASES), number(row["mean_batch"], 2)]
        for row in document["candidates"]
        if row["breakdown_us"] and row["state"] in ("reference", "winner", "finalist")
    ]
    return table(("candidate", *(phase.replace("_", " ") for phase in PHASES), "mean batch"), rows) if rows else []


def environment(document: Document) -> dict[str, str]:
    fingerprint = document["fingerprint"]
    return {"model hash": fingerprint["model"][:16], **fingerprint["facts"]}


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in (header, *rows)]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return [line.rstrip() for line in lines]


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [
        "| " + " | ".join(header) + " |",
        "|" + " --- |" * len(header),
        *("| " + " | ".join(row) + " |" for row in escaped),
    ]


def number(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def milliseconds(value_us: float | None) -> str:
    return "too few" if value_us is None else f"{value_us / 1e3:.2f}"


def megabytes(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value / 1e6:,.1f}"


def percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f}%"
