"""The edits that turn the text of one protobuf message into the text of another, field by field.

Works on the tree of :mod:`optimizer.repository.text_tree` and on two messages of one type: the message that the text
means now and the one that it shall mean. Edits are collected against the original text and applied at the end.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optimizer.repository.message_fields import (
    FieldWriter,
    copy_map_entry,
    entry,
    equal,
    identity,
    is_map,
    is_repeated,
    is_set,
    keeps_its_line,
    only,
    same_map_value,
    scalar_text,
)
from optimizer.repository.text_layout import TextLayout
from optimizer.repository.text_tree import Block, Field, Value, read_tree

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
        self._layout = TextLayout(text, self._tree)
        self._writer = FieldWriter(self._layout)

    def edited(self, current: Any, target: Any, coarse: frozenset[str] = frozenset()) -> str:
        """``coarse`` names top-level fields to be deleted and written anew instead of edited."""
        self._edit_block(self._tree, current, target, coarse)
        return self._apply()

    # Fields of a block

    def _edit_block(self, block: Block, current: Any, target: Any, coarse: frozenset[str] = frozenset()) -> None:
        added: list[tuple[Any, Any]] = []
        deleted: set[int] = set()
        for descriptor in sorted(target.DESCRIPTOR.fields, key=lambda each: each.number):
            if equal(descriptor, current, target):
                continue
            places = block.named(descriptor.name)
            if descriptor.name in coarse or not places:
                deleted |= {id(place) for place in places}
                if is_set(descriptor, target):
                    added.append((descriptor, target))
            elif is_map(descriptor):
                deleted |= self._edit_map(block, descriptor, places, current, target)
            elif is_repeated(descriptor):
                deleted |= self._edit_repeated(block, descriptor, places, current, target)
            elif descriptor.message_type is not None:
                if not target.HasField(descriptor.name):
                    deleted |= {id(place) for place in places}
                else:
                    (value,) = places[-1].values
                    assert isinstance(value, Block)
                    self._edit_block(value, getattr(current, descriptor.name), getattr(target, descriptor.name))
            elif is_set(descriptor, target) or keeps_its_line(descriptor):
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
        written = scalar_text(descriptor, number_or_text)
        # Both kinds of quotes are escaped inside, so the user's own can stand outside.
        if written[:1] == '"' and self._text[value.start] == "'":
            written = f"'{written[1:-1]}'"
        self._change(value.start, value.end, written)

    def _edit_map(self, block: Block, descriptor: Any, places: list[Field], current: Any, target: Any) -> set[int]:
        """Entries by key. The last definition of a key counts; a key that goes loses all its definitions."""
        now, then = getattr(current, descriptor.name), getattr(target, descriptor.name)
        elements = [(place, value) for place in places for value in place.values]
        keys = [self._entry_key(value, descriptor, type(target)) for _, value in elements]
        last = {key: index for index, key in enumerate(keys)}
        gone = {index for index, key in enumerate(keys) if key not in then}
        for key, index in last.items():
            if key in then and not same_map_value(now, then, key):
                value = elements[index][1]
                assert isinstance(value, Block)
                self._edit_block(value, entry(descriptor, now, key), entry(descriptor, then, key))
        deleted = self._delete_elements(places, gone)
        new_keys = sorted(key for key in then if key not in last)
        if not new_keys:
            return deleted
        addition = type(target)()
        for key in new_keys:
            copy_map_entry(descriptor, then, key, addition)
        kept = [index for index in range(len(elements)) if index not in gone]
        if kept and elements[kept[-1]][0].brackets is not None:
            value = elements[kept[-1]][1]
            for key in new_keys:
                single = type(target)()
                copy_map_entry(descriptor, then, key, single)
                self._insert_in_list(value, descriptor, single)
        elif kept:
            self._add_after(block, elements[kept[-1]][0], [(descriptor, addition)])
        else:
            deleted |= {id(place) for place in places}
            self._add_after(block, places[-1], [(descriptor, addition)])
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
            None, [identity(each) for each in now], [identity(each) for each in then], autojunk=False
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
        singles = [only(message_type, descriptor, [each]) for each in extra]
        if index > 0:
            place, value = elements[index - 1]
            if place.brackets is not None:
                for single in singles:
                    self._insert_in_list(value, descriptor, single)
            else:
                self._add_after(block, place, [(descriptor, single) for single in singles])
            return
        place, value = elements[0]
        indent = self._layout.line_indent(value.start if place.brackets else place.start)
        own_line = self._layout.starts_line(value.start if place.brackets else place.start)
        for single in singles:
            if place.brackets is not None:
                written = self._writer.element(descriptor, single, indent, multiline=own_line)
                self._insert(value.start, written + (f",{self._layout.newline}{indent}" if own_line else ", "))
            else:
                written = self._writer.field(descriptor, single, indent, multiline=own_line) + place.separator
                self._insert(place.start, written + (f"{self._layout.newline}{indent}" if own_line else " "))

    def _insert_in_list(self, value: Value, descriptor: Any, single: Any) -> None:
        """One new element behind ``value``, in the layout of the list."""
        if self._layout.starts_line(value.start):
            indent = self._layout.line_indent(value.start)
            written = self._writer.element(descriptor, single, indent, multiline=True)
            self._insert(value.end, f",{self._layout.newline}{indent}{written}")
        else:
            multiline = "\n" in self._text[value.start : value.end]
            indent = self._layout.line_indent(value.end - 1)
            self._insert(value.end, ", " + self._writer.element(descriptor, single, indent, multiline=multiline))

    def _fill_empty_list(self, place: Field, descriptor: Any, values: list[Any], message_type: Any) -> None:
        assert place.brackets is not None
        opening, closing = place.brackets
        texts = [
            self._writer.element(descriptor, only(message_type, descriptor, [each]), "", multiline=False)
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
        order = {name: index for index, name in enumerate(_HEADER)}
        for descriptor, message in sorted(added, key=lambda each: order.get(each[0].name, len(order))):
            in_header = block.whole_file and descriptor.name in _HEADER and header
            anchor = header[-1] if in_header else remaining[-1]
            groups.setdefault(id(anchor), (anchor, []))[1].append((descriptor, message))
        for anchor, members in groups.values():
            self._add_after(block, anchor, members)

    def _add_after(self, block: Block, anchor: Field, members: list[tuple[Any, Any]]) -> None:
        if self._layout.ends_line(anchor.end):
            indent = self._layout.line_indent(anchor.start)
            if not block.whole_file and not self._layout.starts_line(anchor.start):
                on_opening_line = "\n" not in self._text[block.start : anchor.start]
                indent += self._layout.unit if on_opening_line else ""
            position = self._layout.line_end(anchor.end)
            for descriptor, message in members:
                written = self._writer.field(descriptor, message, indent, multiline=True, separator=anchor.separator)
                # Where the anchor itself goes, so does the line break before it: this one takes its place.
                self._insert(position, f"{self._layout.line_break_near(anchor.start)}{indent}{written}")
            return
        parts = [
            self._writer.field(descriptor, message, "", multiline=False, separator=anchor.separator)
            for descriptor, message in members
        ]
        following = self._text[anchor.end : anchor.end + 1]
        blank = "" if not following or following.isspace() or following in "}>]" else " "
        self._insert(anchor.end, f" {' '.join(parts)}{blank}")

    def _fill_empty_block(self, block: Block, added: list[tuple[Any, Any]]) -> None:
        inner = self._text[block.inner_start : block.inner_end]
        indent = "" if block.whole_file else self._layout.line_indent(block.start) + self._layout.unit
        texts = [self._writer.field(descriptor, message, indent, multiline=True) for descriptor, message in added]
        if block.whole_file:
            body = "".join(f"{written}{self._layout.newline}" for written in texts)
            # Behind the comments that a file without fields may have.
            glue = "" if not inner or inner.endswith("\n") else self._layout.newline
            self._insert(block.end, glue + body)
        elif "\n" in inner:
            body = "".join(f"{self._layout.newline}{indent}{written}" for written in texts)
            self._insert(self._layout.line_end(block.inner_start), body)
        elif self._layout.ends_line(block.end) and self._layout.starts_line_of_field(block):
            body = "".join(f"{self._layout.newline}{indent}{written}" for written in texts)
            closing_indent = self._layout.line_indent(block.start)
            self._change(block.inner_start, block.inner_end, f"{body}{self._layout.newline}{closing_indent}")
        else:
            parts = [self._writer.field(descriptor, message, "", multiline=False) for descriptor, message in added]
            self._change(block.inner_start, block.inner_end, f" {' '.join(parts)} ")

    def _delete_field(self, place: Field) -> None:
        """With its lines where it has them for itself; a comment behind it stays."""
        starts, ends = self._layout.starts_line(place.start), self._layout.ends_line(place.end)
        if starts and ends:
            line_end = self._layout.line_end(place.end)
            comment = self._text.find("#", place.end, line_end)
            if comment >= 0:
                self._change(place.start, comment, "")
            else:
                # The line break before the line goes, not the one behind it: the file's end stays as it is.
                line_start = self._layout.line_start(place.start)
                break_start = line_start - len(self._layout.line_break_before(line_start))
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

    # Edits

    def _insert(self, position: int, text: str) -> None:
        self._edits.append(_Edit(position, position, text))

    def _change(self, start: int, end: int, text: str) -> None:
        self._edits.append(_Edit(start, end, text))

    def _apply(self) -> str:
        """Overlapping deletions count once. What is inserted at one place comes in the order of insertion."""
        parts: list[str] = []
        cursor = 0
        first_line_gone = False  # its line break is still to go, unless something takes its place
        for edit in sorted(self._edits, key=lambda each: (each.start, each.end)):
            if edit.end < cursor and not edit.text:
                continue
            unchanged, written = self._text[cursor : max(edit.start, cursor)], edit.text
            if first_line_gone and unchanged:
                unchanged, first_line_gone = re.sub(r"\A\r?\n", "", unchanged), False
            elif first_line_gone and written:
                written, first_line_gone = re.sub(r"\A\r?\n", "", written), False
            if (
                edit.start == 0
                and not written
                and self._text[edit.start] not in "\r\n"
                and self._layout.ends_line(edit.end)
            ):
                first_line_gone = True
            parts += [unchanged, written]
            cursor = max(edit.end, cursor)
        rest = self._text[cursor:]
        parts.append(re.sub(r"\A\r?\n", "", rest) if first_line_gone else rest)
        return "".join(parts)
