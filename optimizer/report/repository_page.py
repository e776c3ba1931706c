"""A whole repository's run as a page: a row a model, the check of all together, links to the models' own pages."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from optimizer.report.markup import Markup, element
from optimizer.report.numbers import interval, megabytes, percent

Document = Mapping[str, Any]
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def repository_page(document: Document, pages: Mapping[str, str]) -> str:
    """``pages`` maps a model's name to the relative address of its own page."""
    style = resources.files("optimizer.report").joinpath("page.css").read_text(encoding="utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{document['repository']}: {verdict(document).lower()}"),
        element("link", rel="icon", href="data:,"),
        element("style", Markup(style)),
    )  # fmt: skip
    body = element(
        "body",
        element(
            "header",
            element("div", element("h1", "A whole repository"), element("p", document["repository"], class_="about")),
        ),
        element(
            "main",
            element(
                "div", element("b", "Result"), element("p", verdict(document)), class_=f"verdict {_state(document)}"
            ),
            element("h2", "Models"),
            element("div", _table(document["columns"], document["rows"], pages), class_="scroll", tabindex="0"),
            *_together(document["together"]),
            element("h2", "Next"),
            element("ul", *(element("li", note) for note in document["notes"] if "triton-optimizer " in note)),
        ),
    )
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


_PAST = {"winner": "with a winner"}


def verdict(document: Document) -> str:
    """One sentence."""
    outcomes = [row[1] for row in document["rows"]]
    counts = [f"{outcomes.count(name)} {_PAST.get(name, name)}" for name in dict.fromkeys(outcomes)]
    together = document["together"]
    tail = "" if together is None else f"; all together: {together['verdict']}"
    return f"{len(outcomes)} models: {', '.join(counts)}{tail}"


def _state(document: Document) -> str:
    together = document["together"]
    if together is None:
        return ""
    return "winner" if together["verdict"] == "passed" else "open"


def _table(columns: list[str], rows: list[list[str]], pages: Mapping[str, str]) -> Markup:
    body = [
        element("tr", *(element("td", _linked(cell, pages) if place == 0 else cell) for place, cell in enumerate(row)))
        for row in rows
    ]
    header = element("thead", element("tr", *(element("th", name, scope="col") for name in columns)))
    return element("table", header, element("tbody", *body))


def _linked(name: str, pages: Mapping[str, str]) -> Markup | str:
    return element("a", name, href=pages[name]) if name in pages else name


def _together(together: Document | None) -> list[Markup]:
    if together is None:
        return []
    shown = [element("h2", "All together"), element("p", together["reason"])]
    if together["ratio"]:
        shown.append(
            element("p", f"Requests/s under the mixed load, winners against as found: {interval(together['ratio'])}, "
                         f"{together['ratio']['pairs']} pairs.")
        )  # fmt: skip
    memory = together["memory"]
    if memory.get("as_found_bytes") and memory.get("tuned_bytes"):
        shown.append(
            element("p", f"Server memory with all models loaded: {megabytes(memory['as_found_bytes'])} MB as found, "
                         f"{megabytes(memory['tuned_bytes'])} MB with the winners.")
        )  # fmt: skip
    rows = [
        [row["model"], "winner" if row["tuned"] else "as found", "yes" if row["asked"] else "no",
         percent(row["latency_ratio"]) if row.get("latency_ratio") else ""]
        for row in together["models"]
    ]  # fmt: skip
    if rows:
        header = ["model", "state", "asked", "latency at the same load"]
        shown.append(element("div", _table(header, rows, {}), class_="scroll", tabindex="0"))
    for label, entries in (
        ("Left out of the check", together["left_out"].items()),
        ("Taken back", ((one["model"], one["reason"]) for one in together["taken_back"])),
    ):
        items = [element("li", f"{name}: {why}") for name, why in entries]
        if items:
            shown += [element("h3", label), element("ul", *items)]
    return shown
