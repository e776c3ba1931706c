"""The edits that turn the text of one protobuf message into the text of another, field by field.

Works on the tree of :mod:`optimizer.repository.text_tree` and on two messages of one type: the message that the text
means now and the one that it shall mean. Edits are collected against the original text and applied at the end.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from optimizer.repository.text_tree import Block, Field, Scalar, Value, read_tree

# A new field of one of these names goes behind the last of them that is there; any other goes to the end of its block.
_HEADER = ("name", "platform", "backend", "runtime", "default_model_filename")


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    text: str


class MessageEditor:
    """One text. ``edited`` may be called once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tree = read_tree(text)
        self._edits: list[_Edit] = []
        newline = re.search(r"\r?\n", text)
        self._newline = newline.group() if newline else "\n"
        self._unit = self._indent_unit(self._tree) or "  "
        self._colon = self._colon_style(self._tree) or ": "

    def edited(self, current: Any, target: Any, coarse: frozenset[str] = frozenset()) -> str:
        """``coarse`` names top-level fields to be deleted and written anew instead of edited."""
        self._edit_block(self._tree, current, target, coarse)
        return self._apply()

    # Fields of a block

    def _edit_block(self, block: Block, current: Any, target: Any, coarse: frozenset[str] = frozenset()) -> None:
        added: list[tuple[Any, Any]] = []
        deleted: set[int] = set()
        for descriptor in sorted(target.DESCRIPTOR.fields, key=lambda each: each.number):
            if _equal(descriptor, current, target):
                continue
            places = block.named(descriptor.name)
            if descriptor.name in coarse or not places:
                deleted |= {id(place) for place in places}
                if _is_set(descriptor, target):
                    added.append((descriptor, target))
            elif _is_map(descriptor):
                deleted |= self._edit_map(block, descriptor, places, current, target, added)
            elif _is_repeated(descriptor):
                deleted |= self._edit_repeated(block, descriptor, places, current, target)
            elif descriptor.message_type is not None:
                if not target.HasField(descriptor.name):
                    deleted |= {id(place) for place in places}
                else:
                    (value,) = places[-1].values
                    assert isinstance(value, Block)
                    self._edit_block(value, getattr(current, descriptor.name), getattr(target, descriptor.name))
            elif _is_set(descriptor, target) or _keeps_its_line(descriptor):
                (value,) = places[-1].values
                self._replace_scalar(value, descriptor, getattr(target, descriptor.name))
            else:
                deleted |= {id(place) for place in places}
        for place in block.fields:
            if id(place) in deleted:
                self._delete_field(place)
        if added:
            self._add_fields(block, added, [place for place in block.fields if id(place) not in deleted])

    def _replace_scalar(self, value: Value, descriptor: Any, number_or_text: Any) -> None:
        written = _scalar_text(descriptor, number_or_text)
        # Both kinds of quotes are escaped inside, so the user's own can stand outside.
        if written[:1] == '"' and self._text[value.start] == "'":
            written = f"'{written[1:-1]}'"
        self._change(value.start, value.end, written)

    def _edit_map(
        self,
        block: Block,
        descriptor: Any,
        places: list[Field],
        current: Any,
        target: Any,
        added: list[tuple[Any, Any]],
    ) -> set[int]:
        """Entries by key. The last definition of a key counts; a key that goes loses all its definitions."""
        now, then = getattr(current, descriptor.name), getattr(target, descriptor.name)
        elements = [(place, value) for place in places for value in place.values]
        keys = [self._entry_key(value, descriptor, type(target)) for _, value in elements]
        last = {key: index for index, key in enumerate(keys)}
        gone = {index for index, key in enumerate(keys) if key not in then}
        for key, index in last.items():
            if key in then and not _same_map_value(now, then, key):
                value = elements[index][1]
                assert isinstance(value, Block)
                self._edit_block(value, _entry(descriptor, now, key), _entry(descriptor, then, key))
        deleted = self._delete_elements(places, gone)
        new_keys = sorted(key for key in then if key not in last)
        if not new_keys:
            return deleted
        addition = type(target)()
        for key in new_keys:
            _copy_map_entry(descriptor, then, key, addition)
        kept = [index for index in range(len(elements)) if index not in gone]
        if kept and elements[kept[-1]][0].brackets is not None:
            value = elements[kept[-1]][1]
            for key in new_keys:
                single = type(target)()
                _copy_map_entry(descriptor, then, key, single)
                self._insert_in_list(value, descriptor, single)
        elif kept:
            self._add_after(block, elements[kept[-1]][0], [(descriptor, addition)])
        else:
            added.append((descriptor, addition))
            deleted |= {id(place) for place in places}
        return deleted

    def _edit_repeated(self, block: Block, descriptor: Any, places: list[Field], current: Any, target: Any) -> set[int]:
        now, then = list(getattr(current, descriptor.name)), list(getattr(target, descriptor.name))
        if not then:
            return {id(place) for place in places}
        elements = [(place, value) for place in places for value in place.values]
        if not elements:
            self._fill_empty_list(places[-1], descriptor, then, type(target))
            return set()
        gone: set[int] = set()
        matcher = difflib.SequenceMatcher(
            None, [_identity(each) for each in now], [_identity(each) for each in then], autojunk=False
        )
        for _, first, last, new_first, new_last in matcher.get_opcodes():
            paired = min(last - first, new_last - new_first)
            for offset in range(paired):
                old, new = now[first + offset], then[new_first + offset]
                if old != new:
                    value = elements[first + offset][1]
                    if isinstance(value, Block):
                        self._edit_block(value, old, new)
                    else:
                        self._replace_scalar(value, descriptor, new)
            gone |= set(range(first + paired, last))
            extra = then[new_first + paired : new_last]
            if extra:
                self._insert_elements(block, descriptor, elements, first + paired, extra, type(target))
        return self._delete_elements(places, gone)

    def _insert_elements(
        self,
        block: Block,
        descriptor: Any,
        elements: list[tuple[Field, Value]],
        index: int,
        extra: Sequence[Any],
        message_type: Any,
    ) -> None:
        """New elements before element ``index`` of the old list."""
        singles = [_only(message_type, descriptor, [each]) for each in extra]
        if index > 0:
            place, value = elements[index - 1]
            if place.brackets is not None:
                for single in singles:
                    self._insert_in_list(value, descriptor, single)
            else:
                self._add_after(block, place, [(descriptor, single) for single in singles])
            return
        place, value = elements[0]
        indent = self._line_indent(value.start if place.brackets else place.start)
        own_line = self._starts_line(value.start if place.brackets else place.start)
        for single in singles:
            if place.brackets is not None:
                written = self._element_text(descriptor, single, indent, multiline=own_line)
                self._insert(value.start, written + (f",{self._newline}{indent}" if own_line else ", "))
            else:
                written = self._field_text(descriptor, single, indent, multiline=own_line) + place.separator
                self._insert(place.start, written + (f"{self._newline}{indent}" if own_line else " "))

    def _insert_in_list(self, value: Value, descriptor: Any, single: Any) -> None:
        """One new element behind ``value``, in the layout of the list."""
        if self._starts_line(value.start):
            indent = self._line_indent(value.start)
            written = self._element_text(descriptor, single, indent, multiline=True)
            self._insert(value.end, f",{self._newline}{indent}{written}")
        else:
            multiline = "\n" in self._text[value.start : value.end]
            indent = self._line_indent(value.end - 1)
            self._insert(value.end, ", " + self._element_text(descriptor, single, indent, multiline=multiline))

    def _fill_empty_list(self, place: Field, descriptor: Any, values: list[Any], message_type: Any) -> None:
        assert place.brackets is not None
        opening, closing = place.brackets
        texts = [
            self._element_text(descriptor, _only(message_type, descriptor, [each]), "", multiline=False)
            for each in values
        ]
        blank = "" if self._text[opening + 1 : closing] else " "
        self._insert(opening + 1, f" {', '.join(texts)}{blank}")

    def _delete_elements(self, places: list[Field], gone: set[int]) -> set[int]:
        """Elements by their index over all ``places``. Returns the fields that have nothing left."""
        emptied: set[int] = set()
        offset = 0
        for place in places:
            count = len(place.values)
            mine = {index - offset for index in gone if offset <= index < offset + count}
            offset += count
            if not mine:
                continue
            if len(mine) == count:
                emptied.add(id(place))
                continue
            first_kept = min(index for index in range(count) if index not in mine)
            for index in sorted(mine):
                # Each goes with the comma that parts it from the nearest element that stays.
                if index < first_kept:
                    comma, blank_end = place.commas[index], place.values[index + 1].start
                    self._delete_with_blanks(place.values[index].start, place.values[index].end, comma, blank_end)
                else:
                    previous_end = place.values[index - 1].end
                    self._delete_with_blanks(
                        place.values[index].start, place.values[index].end, place.commas[index - 1], previous_end
                    )
        return emptied

    def _delete_with_blanks(self, start: int, end: int, comma: int, other_end: int) -> None:
        low, high = min(start, other_end), max(end, other_end)
        between = self._text[low:start] + self._text[end:high]
        if between.replace(",", "").strip():  # a comment stands there: it stays
            self._change(start, end, "")
            self._change(comma, comma + 1, "")
        else:
            self._change(low, high, "")

    def _entry_key(self, value: Value, descriptor: Any, message_type: Any) -> Any:
        from google.protobuf import text_format

        message = message_type()
        text_format.Parse(f"{descriptor.name} {self._text[value.start : value.end]}", message)
        (key,) = getattr(message, descriptor.name)
        return key

    # New and deleted fields

    def _add_fields(self, block: Block, added: list[tuple[Any, Any]], kept: list[Field]) -> None:
        if not block.fields:
            self._fill_empty_block(block, added)
            return
        # Where everything goes, what is new stands in the place of the last that went.
        remaining = kept or block.fields
        header = [place for place in remaining if place.name in _HEADER]
        groups: dict[int, tuple[Field, list[tuple[Any, Any]]]] = {}
        for descriptor, message in added:
            in_header = block.whole_file and descriptor.name in _HEADER and header
            anchor = header[-1] if in_header else remaining[-1]
            groups.setdefault(id(anchor), (anchor, []))[1].append((descriptor, message))
        for anchor, members in groups.values():
            self._add_after(block, anchor, members)

    def _add_after(self, block: Block, anchor: Field, members: list[tuple[Any, Any]]) -> None:
        if self._ends_line(anchor.end):
            indent = self._line_indent(anchor.start)
            if not block.whole_file and not self._starts_line(anchor.start):
                on_opening_line = "\n" not in self._text[block.start : anchor.start]
                indent += self._unit if on_opening_line else ""
            position = self._line_end(anchor.end)
            for descriptor, message in members:
                written = self._field_text(descriptor, message, indent, multiline=True, separator=anchor.separator)
                self._insert(position, f"{self._newline}{indent}{written}")
            return
        parts = [
            self._field_text(descriptor, message, "", multiline=False, separator=anchor.separator)
            for descriptor, message in members
        ]
        following = self._text[anchor.end : anchor.end + 1]
        blank = "" if not following or following.isspace() or following in "}>]" else " "
        self._insert(anchor.end, f" {' '.join(parts)}{blank}")

    def _fill_empty_block(self, block: Block, added: list[tuple[Any, Any]]) -> None:
        inner = self._text[block.inner_start : block.inner_end]
        indent = "" if block.whole_file else self._line_indent(block.start) + self._unit
        texts = [self._field_text(descriptor, message, indent, multiline=True) for descriptor, message in added]
        if block.whole_file:
            body = "".join(f"{written}{self._newline}" for written in texts)
            # Behind the comments that a file without fields may have.
            glue = "" if not inner or inner.endswith("\n") or inner == "\ufeff" else self._newline
            self._insert(block.end, glue + body)
        elif "\n" in inner:
            body = "".join(f"{self._newline}{indent}{written}" for written in texts)
            self._insert(self._line_end(block.inner_start), body)
        elif self._ends_line(block.end) and self._starts_line_of_field(block):
            body = "".join(f"{self._newline}{indent}{written}" for written in texts)
            closing_indent = self._line_indent(block.start)
            self._change(block.inner_start, block.inner_end, f"{body}{self._newline}{closing_indent}")
        else:
            parts = [self._field_text(descriptor, message, "", multiline=False) for descriptor, message in added]
            self._change(block.inner_start, block.inner_end, f" {' '.join(parts)} ")

    def _delete_field(self, place: Field) -> None:
        """With its lines where it has them for itself; a comment behind it stays."""
        starts, ends = self._starts_line(place.start), self._ends_line(place.end)
        if starts and ends:
            line_end = self._line_end(place.end)
            comment = self._text.find("#", place.end, line_end)
            if comment >= 0:
                self._change(place.start, comment, "")
            else:
                # The line break before the line goes, not the one behind it: the file's end stays as it is.
                line_start = self._line_start(place.start)
                break_start = line_start - len(self._line_break_before(line_start))
                self._change(break_start, line_end, "")
        elif starts:
            following = re.compile(r"[ \t]*").match(self._text, place.end)
            self._change(place.start, following.end() if following else place.end, "")
        else:
            start = place.start
            while self._text[start - 1] in " \t":
                start -= 1
            following_glues = self._text[place.end : place.end + 1].strip(" \t\r\n}>];,") != ""
            if following_glues and self._text[start - 1] not in "{<,;":
                start = place.start
            self._change(start, place.end, "")

    # Writing

    def _field_text(self, descriptor: Any, message: Any, indent: str, *, multiline: bool, separator: str = "") -> str:
        """The field of ``message``, without blanks before and behind it; lines after the first are indented."""
        from google.protobuf import text_format

        alone = _only_field(descriptor, message)
        written = text_format.MessageToString(
            alone, as_utf8=True, use_short_repeated_primitives=True, as_one_line=not multiline
        ).strip()
        # Strings hold no raw line breaks, so that this finds empty messages only.
        lines = re.sub(r"\{\n\s*\}", "{ }", written).split("\n")
        if self._colon != ": ":
            lines = [re.sub(r"^(\s*\w+): ", lambda match: match.group(1) + self._colon, line) for line in lines]
        lines = [self._reindent(line) for line in lines]
        return f"{self._newline}{indent}".join(self._with_separators(lines, separator))

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

    def _element_text(self, descriptor: Any, single: Any, indent: str, *, multiline: bool) -> str:
        """The one element of the repeated field as a list element."""
        if descriptor.message_type is None:
            (value,) = getattr(single, descriptor.name)
            return _scalar_text(descriptor, value)
        written = self._field_text(descriptor, single, indent, multiline=multiline)
        return written[written.index("{") :]

    def _reindent(self, line: str) -> str:
        depth = (len(line) - len(line.lstrip(" "))) // 2
        return self._unit * depth + line.lstrip(" ")

    # Layout of the text as it is

    def _indent_unit(self, block: Block) -> str | None:
        for place in block.fields:
            for value in place.values:
                if not isinstance(value, Block) or not value.fields:
                    continue
                first = value.fields[0]
                outer, inner = self._line_indent(value.start), self._line_indent(first.start)
                if self._starts_line(first.start) and inner.startswith(outer) and inner != outer:
                    return inner[len(outer) :]
                if unit := self._indent_unit(value):
                    return unit
        return None

    def _colon_style(self, block: Block) -> str | None:
        """The blanks around the first scalar's colon, such as ``:`` or `` : ``."""
        for place in block.fields:
            value = place.values[0] if place.values else None
            if place.colon is not None and isinstance(value, Scalar) and place.brackets is None:
                style = self._text[place.start + len(place.name) : value.start]
                return style if re.fullmatch(r" ?: ?", style) else None
        return None

    def _line_start(self, position: int) -> int:
        start = self._text.rfind("\n", 0, position) + 1
        return start + 1 if start == 0 and self._text.startswith("\ufeff") and position > 0 else start

    def _line_end(self, position: int) -> int:
        """Before the line break."""
        end = self._text.find("\n", position)
        if end < 0:
            return len(self._text)
        return end - 1 if end > position and self._text[end - 1] == "\r" else end

    def _line_break_before(self, line_start: int) -> str:
        if self._text[max(0, line_start - 2) : line_start] == "\r\n":
            return "\r\n"
        return "\n" if self._text[max(0, line_start - 1) : line_start] == "\n" else ""

    def _line_indent(self, position: int) -> str:
        match = re.compile(r"[ \t]*").match(self._text, self._line_start(position))
        return match.group() if match else ""

    def _starts_line(self, position: int) -> bool:
        return not self._text[self._line_start(position) : position].strip()

    def _starts_line_of_field(self, block: Block) -> bool:
        """Nothing but the field's own name stands before the opening bracket on its line."""
        before = self._text[self._line_start(block.start) : block.start]
        return re.fullmatch(r"\s*\w*\s*:?\s*", before) is not None

    def _ends_line(self, position: int) -> bool:
        rest = self._text[position : self._line_end(position)].strip()
        return not rest or rest.startswith("#")

    # Edits

    def _insert(self, position: int, text: str) -> None:
        self._edits.append(_Edit(position, position, text))

    def _change(self, start: int, end: int, text: str) -> None:
        self._edits.append(_Edit(start, end, text))

    def _apply(self) -> str:
        """Overlapping deletions count once. What is inserted at one place comes in the order of insertion."""
        parts: list[str] = []
        cursor = 0
        insertions = {edit.start for edit in self._edits if edit.start == edit.end}
        for edit in sorted(self._edits, key=lambda each: (each.start, each.end)):
            start = max(edit.start, cursor)
            written = edit.text
            if edit.end < cursor and not written:
                continue
            parts.append(self._text[cursor:start])
            if written and start > 0 and not "".join(parts).strip("\ufeff"):
                # The file's first line went: what replaces it does not begin with a line break.
                written = written.removeprefix(self._newline)
            parts.append(written)
            cursor = max(edit.end, cursor)
            if not self._text[: edit.start].strip("\ufeff") and not written and cursor not in insertions:
                # The line break behind the file's first line goes with it.
                line_break = re.compile(r"\r?\n").match(self._text, cursor)
                cursor = line_break.end() if line_break and edit.end > edit.start else cursor
        parts.append(self._text[cursor:])
        return "".join(parts)


# Messages


def _is_repeated(descriptor: Any) -> bool:
    # ``is_repeated`` came with protobuf 6.31, which warns about ``label``.
    if hasattr(descriptor, "is_repeated"):
        return bool(descriptor.is_repeated)
    return bool(descriptor.label == descriptor.LABEL_REPEATED)


def _is_map(descriptor: Any) -> bool:
    return descriptor.message_type is not None and bool(descriptor.message_type.GetOptions().map_entry)


def _is_set(descriptor: Any, message: Any) -> bool:
    """Whether text format would print the field."""
    if _is_repeated(descriptor):
        return bool(len(getattr(message, descriptor.name)))
    if descriptor.has_presence:
        return bool(message.HasField(descriptor.name))
    return bool(getattr(message, descriptor.name) != descriptor.default_value)


def _keeps_its_line(descriptor: Any) -> bool:
    """A number or a flag that returns to its default is written as ``0`` or ``false``: its line and comment stay."""
    numeric = descriptor.cpp_type not in (descriptor.CPPTYPE_STRING, descriptor.CPPTYPE_ENUM)
    return numeric and not descriptor.has_presence


def _equal(descriptor: Any, current: Any, target: Any) -> bool:
    if descriptor.has_presence and current.HasField(descriptor.name) != target.HasField(descriptor.name):
        return False
    return bool(getattr(current, descriptor.name) == getattr(target, descriptor.name))


def _identity(value: Any) -> Hashable:
    """What makes an element of a repeated field the same one: its name, else its whole value."""
    descriptor = getattr(value, "DESCRIPTOR", None)
    if descriptor is None:
        return (type(value).__name__, value)
    for name in ("name", "model_name"):
        if name in descriptor.fields_by_name and getattr(value, name):
            return ("named", getattr(value, name))
    return ("bytes", value.SerializeToString(deterministic=True))


def _scalar_text(descriptor: Any, value: Any) -> str:
    from io import StringIO

    from google.protobuf import text_format

    out = StringIO()
    text_format.PrintFieldValue(descriptor, value, out, as_utf8=True)
    return out.getvalue()


def _only(message_type: Any, descriptor: Any, values: list[Any]) -> Any:
    message = message_type()
    getattr(message, descriptor.name).extend(values)
    return message


def _only_field(descriptor: Any, message: Any) -> Any:
    """A message of the same type that has nothing but this field."""
    alone = type(message)()
    if _is_map(descriptor):
        for key in getattr(message, descriptor.name):
            _copy_map_entry(descriptor, getattr(message, descriptor.name), key, alone)
    elif _is_repeated(descriptor):
        getattr(alone, descriptor.name).extend(getattr(message, descriptor.name))
    elif descriptor.message_type is not None:
        getattr(alone, descriptor.name).CopyFrom(getattr(message, descriptor.name))
        getattr(alone, descriptor.name).SetInParent()
    else:
        setattr(alone, descriptor.name, getattr(message, descriptor.name))
    return alone


def _same_map_value(now: Any, then: Any, key: Any) -> bool:
    return key in now and bool(now[key] == then[key])


def _copy_map_entry(descriptor: Any, source: Any, key: Any, message: Any) -> None:
    entries = getattr(message, descriptor.name)
    if descriptor.message_type.fields_by_name["value"].message_type is not None:
        entries[key].CopyFrom(source[key])
    else:
        entries[key] = source[key]


def _entry(descriptor: Any, entries: Any, key: Any) -> Any:
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
