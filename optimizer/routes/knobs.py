"""The knob database: TensorRT's build-route knobs, from its own JSON or from a table.

The JSON is what ``IBuilderConfig.all_build_routes`` returns: ``{"tuner_version", "tuner_options": [{"option",
"allowed_values", "default_value", "help"}]}``, with ``allowed_values`` such as ``-k=[on|off]``, ``-k=int`` or
``-k=[1|2|...]``; the last two are unbounded. A table has three columns, separated by tabs: option, allowed values,
default; a fourth is help, and lines that start with ``#`` are comments.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from optimizer.errors import InputError
from optimizer.records.route import Knob, KnobClass, Layer

UNSAFE_PATTERNS = (
    "slice_elim_copy:ignore_io_check",
    "mha_fusion:v2:causal_mask",
    "mha_fusion:v2:skip_causal",
    "formats:assume_0_padded_for_first_conv",
    "kgen:lower_gelu*",
    "custom_layer_transform:noop",
    "*allow_imprecise*",
)
"""Knobs whose own help texts warn of wrong results."""

NUMERIC_PATTERNS = (
    "*fp16_acc",
    "*fp32_acc",
    "*mixed_acc",
    "*bmm?_acc",
    "s2hgemm",
    "promote_gelu",
    "rewrite_fp_div*",
    "kgen:sigmoid_approx",
    "quantize_*",
)
"""Knobs that change the arithmetic, so results change within rounding or a little more."""

_PUBLISHED = "tensorrt-11.1-build-routes.tsv"


@dataclass(frozen=True)
class KnobTable:
    """Knobs in the order of their source. ``note`` says what a reader must know about where they come from."""

    knobs: tuple[Knob, ...]
    tuner_version: str = "unknown"
    origin: str = ""
    note: str = ""

    def __iter__(self) -> Iterator[Knob]:
        return iter(self.knobs)

    def __len__(self) -> int:
        return len(self.knobs)

    def get(self, name: str) -> Knob | None:
        return self._by_name.get(name)

    def nearest(self, name: str) -> list[str]:
        """Up to three names that a misspelt one may have meant, best first."""
        return difflib.get_close_matches(name, list(self._by_name), n=3, cutoff=0.6)

    @cached_property
    def default_route_text(self) -> str:
        """Every knob at its default, spelt out in table order."""
        return " ".join(f"-{knob.name}={knob.default}" for knob in self.knobs)

    @cached_property
    def _by_name(self) -> dict[str, Knob]:
        return {knob.name: knob for knob in self.knobs}


def table_of(knobs: Iterable[Knob], *, origin: str = "") -> KnobTable:
    """A table of knobs of any layer, so that expressions can name them."""
    return KnobTable(tuple(knobs), origin=origin)


def load_knobs(path: Path) -> KnobTable:
    """Reads TensorRT's JSON or a table, whichever ``path`` holds. Raises :class:`InputError` with line or element."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"not a text file: byte {error.start} is not UTF-8", where=path, remedy="give TensorRT's JSON or a table"
        ) from None
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputError(f"cannot be read: {reason}", where=path, remedy="give TensorRT's JSON or a table") from None
    if text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        return parse_json(text.lstrip("\ufeff"), where=path)
    return parse_table(text, where=path)


def published_table() -> KnobTable:
    """The 209 knobs of TensorRT 11.1 as published: a table, not what is installed on this machine."""
    text = (resources.files("optimizer.routes") / "data" / _PUBLISHED).read_text(encoding="utf-8")
    table = parse_table(text, where=_PUBLISHED)
    return replace(
        table,
        note="the published table of TensorRT 11.1, not a TensorRT installed here: its own list is all_build_routes",
    )


def parse_json(text: str, *, where: Path | str = "all_build_routes") -> KnobTable:
    """TensorRT's own list. Raises :class:`InputError`; ``""`` is what a TensorRT without the tuner returns."""
    if not text.strip():
        raise InputError(
            "empty: this TensorRT has no build-route tuner (TensorRT-RTX and Windows builds have none)",
            where=where,
            remedy="use TensorRT 11.1 or later on Linux, or give a file with --from",
        )
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"not valid JSON: {error.msg}", where=f"{where}:{error.lineno}:{error.colno}", remedy="correct the file"
        ) from None
    except RecursionError:
        raise InputError("nested too deeply", where=where, remedy="give TensorRT's JSON") from None
    options = document.get("tuner_options") if isinstance(document, dict) else None
    if not isinstance(options, list):
        raise InputError(
            "no list of options", where=where, field="tuner_options", remedy="give what all_build_routes returns"
        )
    knobs = []
    for index, option in enumerate(options):
        field = f"tuner_options[{index}]"
        if not isinstance(option, dict):
            raise InputError("not an object", where=where, field=field, remedy="correct the file")
        name = _text(option, "option", where, field)
        field = f"{field} ({name})"
        allowed, default = _text(option, "allowed_values", where, field), _text(option, "default_value", where, field)
        about = option.get("help", "")
        knobs.append(_knob(name, allowed, default, about if isinstance(about, str) else "", where, field))
    version = document.get("tuner_version", "unknown")
    return _table(knobs, version if isinstance(version, str) else "unknown", where, [""] * len(knobs))


def parse_table(text: str, *, where: Path | str = "table") -> KnobTable:
    """A table of tab-separated columns. Raises :class:`InputError` naming the line."""
    version = "unknown"
    knobs, addresses = [], []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("#"):
            found = re.search(r"tuner_version\s+(\d[\w.]*\w)", line)
            version = found.group(1) if found else version
            continue
        if not line.strip():
            continue
        columns = [column.strip() for column in line.split("\t")]
        address = f"{where}:{number}"
        if not 3 <= len(columns) <= 4:
            raise InputError(
                f"{len(columns)} columns instead of 3 (option, allowed values, default) or 4 (with help)",
                where=address,
                remedy="separate the columns by tabs",
            )
        knobs.append(_knob(columns[0], columns[1], columns[2], "".join(columns[3:]), address, None))
        addresses.append(address)
    return _table(knobs, version, where, addresses)


def classify(name: str) -> KnobClass:
    """Whether a knob may break results, by its name; ``name`` without the leading dash."""
    if any(fnmatchcase(name, pattern) for pattern in UNSAFE_PATTERNS):
        return KnobClass.UNSAFE
    if any(fnmatchcase(name, pattern) for pattern in NUMERIC_PATTERNS):
        return KnobClass.NUMERIC
    return KnobClass.SAFE


def searchable(table: KnobTable, *, named: Sequence[str] = (), numeric: bool = True) -> tuple[Knob, ...]:
    """Bounded knobs worth searching: no UNSAFE ones unless ``named``, NUMERIC ones only with an accuracy gate."""
    return tuple(
        knob
        for knob in table
        if knob.bounded
        and (
            knob.name in named
            or knob.knob_class is KnobClass.SAFE
            or (numeric and knob.knob_class is KnobClass.NUMERIC)
        )
    )


def _knob(option: str, allowed: str, default: str, about: str, where: Path | str, field: str | None) -> Knob:
    name = option.removeprefix("-")
    if not name or re.search(r"[\s=\[\]|]", name):
        raise InputError(
            f"{option!r} is not an option's name", where=where, field=field, remedy="write it as -name, without blanks"
        )
    if not default or re.search(r"[\s\[\]|]", default):
        raise InputError(f"{default!r} is no default", where=where, field=field, remedy="give one value")
    return Knob(
        name, Layer.COMPILER, _allowed_values(allowed, name, where, field), default, classify(name), about.strip()
    )


def _allowed_values(allowed: str, name: str, where: Path | str, field: str | None) -> tuple[str, ...]:
    text = allowed.removeprefix(f"-{name}=").strip()
    if "[" not in text and "]" not in text:
        if not text:
            raise InputError(
                f"no allowed values for {name}", where=where, field=field, remedy="write [a|b] for a list, int for any"
            )
        return ()
    if not re.fullmatch(r"(?:-[^\[\]\s]+=)?\[[^\[\]]*\]", text):
        raise InputError(
            f"{allowed!r} is no list of values for {name}", where=where, field=field, remedy="write it as [a|b]"
        )
    inside = text[text.index("[") + 1 : -1]
    if "..." in inside:
        return ()
    values = [value.strip() for value in inside.split("|") if value.strip()]
    if not values:
        raise InputError(f"the list of values for {name} is empty", where=where, field=field, remedy="name the values")
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise InputError(f"{name} allows {twice!r} twice", where=where, field=field, remedy="name it once")
    return tuple(values)


def _table(knobs: list[Knob], version: str, where: Path | str, addresses: Sequence[str]) -> KnobTable:
    if not knobs:
        raise InputError("no knobs in it", where=where, remedy="give TensorRT's JSON or a table")
    seen: set[str] = set()
    for index, (knob, address) in enumerate(zip(knobs, addresses, strict=True)):
        if knob.name in seen:
            raise InputError(
                f"the option -{knob.name} is there twice",
                where=address or where,
                field=None if address else f"tuner_options[{index}]",
                remedy="remove one",
            )
        seen.add(knob.name)
    return KnobTable(tuple(knobs), version, str(where))


def _text(option: dict[str, Any], key: str, where: Path | str, field: str) -> str:
    value = option.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise InputError(f"{key} is missing or no text", where=where, field=field, remedy="correct the file")
    return value
