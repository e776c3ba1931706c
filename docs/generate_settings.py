"""Writes docs/settings.md from the settings' own models: ``python docs/generate_settings.py``."""

from __future__ import annotations

import sys
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from optimizer.config import Settings
from optimizer.flags import flag_of

FILE = Path(__file__).with_name("settings.md")

HEAD = """\
# Settings

Written by `python docs/generate_settings.py` from `optimizer/config.py`; a test keeps it up to date.

Settings come from one YAML file (`--config FILE`) and from flags, which lie over the file. Everything is checked before
anything starts; an unknown key is an error that names the nearest one. A section with nothing under it is at its
defaults. Relative paths in a file are relative to the file. A flag for a list can be repeated. `optimize` takes all of
them, `bench` those of `inputs`, `load`, `sandbox`, `gpu` and `config_name`. The settings that a study ran with are in
its `study.json`, and those that are not at their defaults in its report, as a file that repeats it.

"""


def settings_text() -> str:
    sections: list[tuple[str, str, list[tuple[str, FieldInfo]]]] = [("", "At the top of the file.", [])]
    for name, field in Settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            sections.append((name, (kind.__doc__ or "").strip(), list(kind.model_fields.items())))
        else:
            sections[0][2].append((name, field))
    return HEAD + "\n".join(section_text(name, about, fields) for name, about, fields in sections)


def section_text(section: str, about: str, fields: list[tuple[str, FieldInfo]]) -> str:
    lines = [f"## `{section}`" if section else "## Whole file", "", about, ""]
    lines += ["| key | value | default | flag | what it does |", "|---|---|---|---|---|"]
    for name, field in fields:
        dotted = f"{section}.{name}" if section else name
        cells = [f"`{name}`", type_text(field.annotation, field.metadata), default_text(field), f"`{flag_of(dotted)}`"]
        lines.append("| " + " | ".join([*cells, escaped(field.description or "")]) + " |")
    return "\n".join(lines) + "\n"


def type_text(kind: Any, metadata: list[Any]) -> str:
    """``a number > 0``, ``one of a, b``, ``list of …``."""
    origin = typing.get_origin(kind)
    if origin is Annotated:
        inner, *more = typing.get_args(kind)
        return type_text(inner, [*metadata, *more])
    if origin in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(kind) if part is not type(None)]
        return " or ".join(type_text(part, metadata) for part in parts)
    if origin is Literal:
        return "one of " + ", ".join(f"`{value}`" for value in typing.get_args(kind))
    if origin is list:
        return "list of " + type_text(typing.get_args(kind)[0], [])
    if origin is dict:
        return "mapping"
    name = {int: "whole number", float: "number", bool: "yes or no", str: "text", Path: "path"}.get(kind, str(kind))
    return name + bounds_text(metadata)


def bounds_text(metadata: list[Any]) -> str:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    found = []
    for item in metadata:
        for part in [item, *getattr(item, "metadata", [])]:
            found += [
                f"{sign} {getattr(part, key):g}" for key, sign in signs.items() if getattr(part, key, None) is not None
            ]
    return " " + ", ".join(dict.fromkeys(found)) if found else ""


def default_text(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined and field.default_factory is not None:
        value = field.get_default(call_default_factory=True)
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"`{', '.join(map(str, value)) if isinstance(value, list) else value}`"


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    FILE.write_text(settings_text(), encoding="utf-8")
    sys.stdout.write(f"{FILE}\n")
