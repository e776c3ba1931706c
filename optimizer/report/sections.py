"""The report's parts as titles, sentences and tables of texts: what text, Markdown, terminal and page all show.

One place decides which numbers are told and in which words; the forms differ only in how they are laid out. On the
page, charts stand above the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from optimizer.report import circumstances, evidence, outcome
from optimizer.report.findings import Document
from optimizer.report.layout import Section


def sections(document: Document) -> list[Section]:
    """Every part that has something to say, in reading order."""
    parts: Sequence[Callable[[Document], Section | None]] = (
        outcome.decision, outcome.candidates, outcome.left_out, evidence.where_time_goes, evidence.confirmation,
        evidence.race, evidence.knobs, evidence.accuracy, evidence.engines, evidence.noise, circumstances.budget,
        circumstances.environment, circumstances.reproduce, outcome.what_next,
    )  # fmt: skip
    return [section for part in parts if (section := part(document)) is not None]


def summary(document: Document) -> list[Section]:
    """What a person wants on the screen right after a study."""
    parts: Sequence[Callable[[Document], Section | None]] = (
        outcome.decision, outcome.candidates, outcome.left_out, outcome.what_next,
    )  # fmt: skip
    return [section for part in parts if (section := part(document)) is not None]
