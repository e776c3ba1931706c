"""What is in a repository (``inspect``), and what is live in it (``status``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from optimizer.report.layout import Column, Table
from optimizer.terminal.tables import CELL_STYLES, fitting

Document = Mapping[str, Any]


def show_inspection(console: Console, document: Document) -> None:
    entries = document["models"]
    if len(entries) > 1:
        counts = ", ".join(f"{count} {status}" for status, count in document["summary"].items() if count)
        console.print(Text(f"{len(entries)} models: {counts}", style="bold"))
        console.print(fitting(_overview(entries), console.width))
    for entry in entries:
        console.print()
        console.print(_unreadable(entry) if "error" in entry else _model(entry, console.width))


def _overview(entries: Sequence[Document]) -> Table:
    rows = tuple(
        (
            entry["name"],
            entry["status"],
            entry.get("served_by") or entry.get("error", {}).get("problem", ""),
            str(entry.get("max_batch_size", "")),
            str(entry.get("live_version") or ""),
            "yes" if entry.get("plan_possible") else "no",
        )
        for entry in entries
    )
    columns = (
        Column("model"), Column("status"), Column("served by"), Column("max batch", True, 3),
        Column("live version", True, 2), Column("TensorRT plan", rank=1),
    )  # fmt: skip
    return Table(columns, rows)


def _unreadable(entry: Document) -> Tree:
    tree = Tree(_named(entry))
    error = entry["error"]
    address = ": ".join(part for part in (error["where"], error["field"]) if part)
    tree.add(Text(f"{address}: {error['problem']}" if address else error["problem"], style="red"))
    if error["remedy"]:
        tree.add(Text(f"remedy: {error['remedy']}"))
    return tree


def _named(entry: Document) -> Text:
    return Text(entry["name"], style="bold").append(f"  {entry['status']}", style=CELL_STYLES[entry["status"]])


def _model(entry: Document, width: int) -> Tree:
    tree = Tree(_named(entry))
    tree.add(Text(entry["served_by"] or f"no file is served ({entry['format']})"))
    config = entry["config"]
    if config["path"] is None:
        tree.add(Text("config: none, Triton completes it from the model"))
    else:
        tree.add(Text(f"config: {config['path']}{' (incomplete: Triton fills it up)' if config['completed'] else ''}"))
    tree.add(Text(f"batching: {_batching(entry)}"))
    tree.add(Text(f"versions: {_versions(entry) or 'none'}; policy {entry['version_policy']}"))
    tree.add(Text("tensors")).add(fitting(_tensors(entry), width - 8))
    for name, key in _LISTS.items():
        if entry[key]:
            tree.add(Text(f"{name}: {', '.join(map(str, entry[key]))}"))
    if entry["onnx_source"]:
        tree.add(Text(f"ONNX source: {entry['onnx_source']}"))
    plan = "nothing known stands in its way" if entry["plan_possible"] else "not possible as it stands"
    tree.add(Text(f"TensorRT plan: {plan}"))
    for blocker in entry["blockers"]:
        style = "red" if blocker["fatal"] else "yellow"
        found = tree.add(Text(f"{'blocks' if blocker['fatal'] else 'mind'}: {blocker['reason']}", style=style))
        if blocker["remedy"]:
            found.add(Text(f"remedy: {blocker['remedy']}"))
    for note in entry["notes"]:
        tree.add(Text(f"note: {note}", style="dim"))
    return tree


_LISTS = {"ensemble of": "ensemble_members", "labels": "label_files", "warm-up": "warmup_files"}


def _versions(entry: Document) -> str:
    return ", ".join(
        f"{version['number']}{' live' if version['number'] == entry['live_version'] else ''}"
        f"{'' if version['served'] else ' not served'} ({version['format']}, {_size(version['size_bytes'])})"
        for version in entry["versions"]
    )


def _batching(entry: Document) -> str:
    if entry["max_batch_size"] == 0:
        kind = "none (max_batch_size 0)"
    else:
        kind = f"up to {entry['max_batch_size']}, " + ("dynamic" if entry["dynamic_batching"] else "not dynamic")
    more = [name for name in ("sequence_batching", "decoupled") if entry[name]]
    return ", ".join([kind, *(name.replace("_", " ") for name in more)])


def _tensors(entry: Document) -> Table:
    rows = tuple(
        (side, tensor["name"], tensor["datatype"], _shape(tensor), ", ".join(_traits(tensor)))
        for side, tensors in (("in", entry["inputs"]), ("out", entry["outputs"]))
        for tensor in tensors
    )
    return Table((Column(""), Column("name"), Column("type"), Column("dims"), Column("", rank=1)), rows)


def _shape(tensor: Document) -> str:
    dims = "[" + ", ".join(map(str, tensor["dims"])) + "]"
    return dims if tensor["reshape"] is None else f"{dims} reshaped to {tensor['reshape']}"


def _traits(tensor: Document) -> list[str]:
    return [name.replace("_", " ") for name in ("optional", "ragged", "shape_tensor") if tensor[name]]


def _size(size_bytes: int | None) -> str:
    return "unknown size" if size_bytes is None else f"{size_bytes / 1e6:,.1f} MB"


def show_status(console: Console, document: Document) -> None:
    """A line a model, then what is behind those that were written."""
    rows = document["models"]
    if len(rows) > 1:
        console.print(fitting(_status_overview(rows), console.width))
        console.print()
    for row in rows:
        if row.get("error"):
            console.print(Text(f"{row['model']}: {row['error']}", style="red"))
            continue
        first, *others = row["lines"]
        console.print(Text(first, style="bold"))
        for line in others:
            console.print(Text(line, style="yellow" if "STALE" in line else ""))
        if row.get("roll_back"):
            console.print(Text(f"  take it back: {row['roll_back']}"))


def _status_overview(rows: Sequence[Document]) -> Table:
    cells = []
    for row in rows:
        if row.get("error"):
            cells.append((row["model"], "unreadable", "", "", ""))
            continue
        evidence = "" if not row["written"] else "stale" if row["stale"] else "holds"
        gain = row.get("gain")
        told = f"{(gain['ratio'] - 1) * 100:+.1f}%" if gain else ""
        cells.append((row["model"], f"{row['version']} ({row['format']})", row.get("route") or "", told, evidence))
    columns = (
        Column("model"), Column("live version"), Column("route", rank=1), Column("gain", True), Column("evidence"),
    )  # fmt: skip
    return Table(columns, tuple(cells))
