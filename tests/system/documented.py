"""The tables of docs/json.md, and whether a document is what they say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\| `([^`]+)` \| ([^|]+) \|")
TYPES: dict[str, Any] = {
    "text": str, "number": (int, float), "whole number": int, "yes or no": bool, "list": list, "object": dict,
    "null": type(None),
}  # fmt: skip


def schemas() -> dict[str, dict[str, str]]:
    """Name of a document to its fields with their types."""
    found: dict[str, dict[str, str]] = {}
    for name, table in re.findall(r"<!-- schema: (\w+) -->\n((?:\|.*\n)+)", (ROOT / "docs/json.md").read_text()):
        found[name] = {field: kind.strip() for field, kind in ROW.findall(table)}
    return found


SCHEMAS = schemas()


def values(document: Any, path: str) -> Iterator[tuple[bool, Any]]:
    """Every place that ``path`` names: whether it is there, and its value."""
    head, _, rest = path.partition(".")
    many = head.endswith("[]")
    key = head.removesuffix("[]")
    if not isinstance(document, dict):
        return
    if key not in document:
        yield False, None
        return
    inner = document[key]
    if not rest:
        yield True, inner
        return
    for one in inner if many else [inner]:
        yield from values(one, rest)


def check(name: str, document: dict[str, Any]) -> None:
    fields = SCHEMAS[name]
    undocumented = set(document) - {field.split(".")[0].removesuffix("[]") for field in fields}
    assert not undocumented, f"{name}: not in docs/json.md: {sorted(undocumented)}"
    for path, told in fields.items():
        kind = told.removesuffix(", sometimes")
        allowed = [one.strip() for one in kind.split(" or ")] if kind != "yes or no" else ["yes or no"]
        for there, value in values(document, path):
            assert there or told.endswith(", sometimes"), f"{name}: {path} is missing"
            if there:
                fits = any(
                    isinstance(value, TYPES[one]) and (one == "yes or no" or not isinstance(value, bool))
                    for one in allowed
                )
                assert fits, f"{name}: {path} is {value!r}, documented as {told}"
