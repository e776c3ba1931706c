"""Fields of protobuf messages, one at a time: compared, copied, and written as text in a config's own layout.

Works with any message and its descriptors, so that nothing here names a field of ``ModelConfig``. Imports protobuf on
first use.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

from optimizer.repository.text_layout import TextLayout


class FieldWriter:
    """Writes fields as protobuf's printer does, with the layout's indentation, line ends and colons."""

    def __init__(self, layout: TextLayout) -> None:
        self._layout = layout

    def field(self, descriptor: Any, message: Any, indent: str, *, multiline: bool, separator: str = "") -> str:
        """The field of ``message``, without blanks before and behind it; lines after the first are indented."""
        from google.protobuf import text_format

        alone = only_field(descriptor, message)
        written = text_format.MessageToString(
            alone, as_utf8=True, use_short_repeated_primitives=True, as_one_line=not multiline
        ).strip()
        # Strings hold no raw line breaks, so that this finds empty messages only.
        lines = re.sub(r"\{\n\s*\}", "{ }", written).split("\n")
        if self._layout.colon != ": ":
            lines = [re.sub(r"^(\s*\w+): ", lambda match: match.group(1) + self._layout.colon, line) for line in lines]
        lines = [self._reindent(line) for line in lines]
        return f"{self._layout.newline}{indent}".join(self._with_separators(lines, separator))

    def _with_separators(self, lines: list[str], separator: str) -> list[str]:
        """Behind every field that starts without indentation, which is where a field of the block ends."""
        if not separator:
            return lines
        done = []
        for index, line in enumerate(lines):
            following = lines[index + 1] if index + 1 < len(lines) else ""
            ends_field = not following[:1].isspace() and not following.startswith("}") and not line.endswith("{")
            done.append(line + separator if ends_field else line)
        return done

    def element(self, descriptor: Any, single: Any, indent: str, *, multiline: bool) -> str:
        """The one element of the repeated field as a list element."""
        if descriptor.message_type is None:
            (value,) = getattr(single, descriptor.name)
            return scalar_text(descriptor, value)
        written = self.field(descriptor, single, indent, multiline=multiline)
        return written[written.index("{") :]

    def _reindent(self, line: str) -> str:
        depth = (len(line) - len(line.lstrip(" "))) // 2
        return self._layout.unit * depth + line.lstrip(" ")


def is_repeated(descriptor: Any) -> bool:
    # ``is_repeated`` came with protobuf 6.31, which warns about ``label``.
    if hasattr(descriptor, "is_repeated"):
        return bool(descriptor.is_repeated)
    return bool(descriptor.label == descriptor.LABEL_REPEATED)


def is_map(descriptor: Any) -> bool:
    return descriptor.message_type is not None and bool(descriptor.message_type.GetOptions().map_entry)


def is_set(descriptor: Any, message: Any) -> bool:
    """Whether text format would print the field."""
    if is_repeated(descriptor):
        return bool(len(getattr(message, descriptor.name)))
    if descriptor.has_presence:
        return bool(message.HasField(descriptor.name))
    return bool(getattr(message, descriptor.name) != descriptor.default_value)


def keeps_its_line(descriptor: Any) -> bool:
    """A number or a flag that returns to its default is written as ``0`` or ``false``: its line and comment stay."""
    numeric = descriptor.cpp_type not in (descriptor.CPPTYPE_STRING, descriptor.CPPTYPE_ENUM)
    return numeric and not descriptor.has_presence


def equal(descriptor: Any, current: Any, target: Any) -> bool:
    if descriptor.has_presence and current.HasField(descriptor.name) != target.HasField(descriptor.name):
        return False
    return bool(getattr(current, descriptor.name) == getattr(target, descriptor.name))


def identity(value: Any) -> Hashable:
    """What makes an element of a repeated field the same one: its name, else its whole value."""
    descriptor = getattr(value, "DESCRIPTOR", None)
    if descriptor is None:
        return (type(value).__name__, value)
    for name in ("name", "model_name"):
        if name in descriptor.fields_by_name and getattr(value, name):
            return ("named", getattr(value, name))
    return ("bytes", value.SerializeToString(deterministic=True))


def scalar_text(descriptor: Any, value: Any) -> str:
    from io import StringIO

    from google.protobuf import text_format

    out = StringIO()
    text_format.PrintFieldValue(descriptor, value, out, as_utf8=True)
    return out.getvalue()


def only(message_type: Any, descriptor: Any, values: list[Any]) -> Any:
    message = message_type()
    getattr(message, descriptor.name).extend(values)
    return message


def only_field(descriptor: Any, message: Any) -> Any:
    """A message of the same type that has nothing but this field."""
    alone = type(message)()
    if is_map(descriptor):
        for key in getattr(message, descriptor.name):
            copy_map_entry(descriptor, getattr(message, descriptor.name), key, alone)
    elif is_repeated(descriptor):
        getattr(alone, descriptor.name).extend(getattr(message, descriptor.name))
    elif descriptor.message_type is not None:
        getattr(alone, descriptor.name).CopyFrom(getattr(message, descriptor.name))
        getattr(alone, descriptor.name).SetInParent()
    else:
        setattr(alone, descriptor.name, getattr(message, descriptor.name))
    return alone


def same_map_value(now: Any, then: Any, key: Any) -> bool:
    return key in now and bool(now[key] == then[key])


def copy_map_entry(descriptor: Any, source: Any, key: Any, message: Any) -> None:
    entries = getattr(message, descriptor.name)
    if descriptor.message_type.fields_by_name["value"].message_type is not None:
        entries[key].CopyFrom(source[key])
    else:
        entries[key] = source[key]


def entry(descriptor: Any, entries: Any, key: Any) -> Any:
    """One map entry as a message of its own, with ``key`` and ``value``."""
    from google.protobuf import message_factory

    entry: Any = message_factory.GetMessageClass(descriptor.message_type)()
    entry.key = key
    if descriptor.message_type.fields_by_name["value"].message_type is not None:
        entry.value.CopyFrom(entries[key])
        entry.value.SetInParent()
    else:
        entry.value = entries[key]
    return entry
