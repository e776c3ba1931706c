"""Edits ``config.pbtxt``: the text comes to mean another message, and every byte that need not change stays.

Pure: text and messages in, text out. What is kept: comments, order, blanks, line endings, a missing last newline,
``{ }`` and ``< >``, ``[ ]`` lists and repeated fields, separators, adjacent strings. What changes is the value of a
field that differs, a field that is new, and a field that is gone. The result is parsed and compared before it is
returned. Imports protobuf on first use.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from optimizer.errors import InputError, OptimizerError
from optimizer.repository.message_edit import MessageEditor
from optimizer.repository.text_tree import TreeError, read_tree
from optimizer.triton.protobuf import parse_config

if TYPE_CHECKING:
    from optimizer.triton.protobuf import ModelConfig


def edit_config(text: str, target: ModelConfig, *, where: Path | str = "config.pbtxt") -> str:
    """``text`` changed so that it parses to exactly ``target``; ``text`` itself where it already does.

    Raises :class:`InputError` where ``text`` is no valid config. A top-level field whose fine edit does not give the
    intended message is replaced as a whole; :class:`OptimizerError` where not even that does, since writing a config
    that means something else is never right.
    """
    current = parse_config(text, where=where)
    check_syntax(text, where=where)
    if current == target:
        return text
    coarse: frozenset[str] = frozenset()
    while True:
        edited = MessageEditor(text).edited(current, target, coarse)
        wrong = _differing_fields(edited, target)
        if not wrong:
            return edited
        if wrong <= coarse:
            raise OptimizerError(
                f"editing the config did not give the intended message: {', '.join(sorted(wrong))}",
                where=where,
                remedy="this is a defect of triton-optimizer: report it with the config; nothing was changed",
            )
        coarse |= wrong


def check_syntax(text: str, *, where: Path | str = "config.pbtxt") -> None:
    """Raises :class:`InputError` for what protobuf's parser for Python lets pass and Triton's does not: blanks that are
    not ASCII, such as a no-break space pasted from a web page.
    """
    try:
        read_tree(text)
    except TreeError as error:
        line = text.count("\n", 0, error.offset) + 1
        column = error.offset - (text.rfind("\n", 0, error.offset) + 1) + 1
        raise InputError(
            f"{error}: Triton's parser does not accept it",
            where=f"{where}:{line}:{column}",
            remedy="correct the file; blanks outside of strings and comments are ASCII",
        ) from None


def set_name(text: str, name: str) -> str:
    """The same config under another model name."""
    target = parse_config(text)
    target.name = name
    return edit_config(text, target)


def without_name(text: str) -> str:
    """The same config without ``name``: Triton takes the directory's."""
    target = parse_config(text)
    target.ClearField("name")
    return edit_config(text, target)


def config_diff(old: str, new: str, *, old_name: str = "config.pbtxt", new_name: str = "config.pbtxt (new)") -> str:
    """Unified diff for people; ``""`` where nothing changed. Carriage returns are shown as ``\\r``."""
    lines: list[str] = []
    for line in difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), old_name, new_name):
        body = line.removesuffix("\n")
        lines.append(body.replace("\r", "\\r"))
        if body == line:
            lines.append("\\ No newline at end of file")
    return "".join(f"{line}\n" for line in lines)


def _differing_fields(text: str, target: ModelConfig) -> set[str]:
    """Top-level fields whose value in ``text`` is not that of ``target``; all of them where ``text`` does not parse."""
    from google.protobuf import text_format

    result = type(target)()
    try:
        text_format.Parse(text, result)
    except text_format.ParseError:
        return {each.name for each in target.DESCRIPTOR.fields}
    names = set()
    for each in target.DESCRIPTOR.fields:
        same_presence = not each.has_presence or result.HasField(each.name) == target.HasField(each.name)
        if not same_presence or getattr(result, each.name) != getattr(target, each.name):
            names.add(each.name)
    return names
