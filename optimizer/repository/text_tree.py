"""Protobuf text format as a tree that knows where every byte stands.

A text that :func:`optimizer.triton.protobuf.parse_config` accepts becomes fields and values with their offsets, so that
an editor can change some and leave the rest as it is. Nothing is interpreted here: names, values, comments and blanks
stay text. Imports the standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

# The token rules are those of protobuf's parsers. Blanks are ASCII only, as in Triton's parser in C++, while Python's
# takes a no-break space for one. A comment goes on to the line feed, a string does not cross a line.
_SKIPPED = re.compile(r"(?:[ \t\r\n\v\f]|#[^\n]*)+")
_TOKEN = re.compile(
    r"""
    [a-zA-Z_][0-9a-zA-Z_+-]*
    | (?:[0-9+-]|\.[0-9])[0-9a-zA-Z_.+-]*
    | "(?:[^"\n\\]|\\.)*"
    | '(?:[^'\n\\]|\\.)*'
    | [{}<>\[\]:,;]
    """,
    re.VERBOSE,
)
_CLOSING = {"{": "}", "<": ">"}


class TreeError(ValueError):
    """The text is not what Triton's parser accepts, at ``offset``."""

    def __init__(self, problem: str, offset: int) -> None:
        super().__init__(problem)
        self.offset = offset


@dataclass(frozen=True)
class Token:
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass
class Scalar:
    """A number, a name, or one or several adjacent strings."""

    start: int
    end: int


@dataclass
class Block:
    """A message: ``{ … }``, ``< … >`` or the whole file. ``start`` is the opening bracket, ``end`` is behind the
    closing one; a file has no brackets.
    """

    start: int
    end: int
    fields: list[Field] = field(default_factory=list)
    whole_file: bool = False

    @property
    def inner_start(self) -> int:
        return self.start if self.whole_file else self.start + 1

    @property
    def inner_end(self) -> int:
        return self.end if self.whole_file else self.end - 1

    def named(self, name: str) -> list[Field]:
        return [each for each in self.fields if each.name == name]


Value: TypeAlias = Scalar | Block


@dataclass
class Field:
    """``name: value``, ``name { … }`` or ``name: [ … ]``, with the separator behind it where there is one.

    ``brackets`` are the offsets of ``[`` and ``]``; ``commas`` those of the commas between list elements.
    """

    name: str
    start: int
    colon: int | None
    values: list[Value]
    brackets: tuple[int, int] | None
    commas: list[int]
    value_end: int
    separator: str
    end: int


def read_tree(text: str) -> Block:
    """The whole file as a block. Raises :class:`TreeError`."""
    tokens = list(tokenize(text))
    reader = _Reader(tokens, len(text))
    return Block(0, len(text), reader.fields(None), whole_file=True)


def tokenize(text: str) -> Iterator[Token]:
    """Every token that is neither blank nor comment. Raises :class:`TreeError`."""
    position = 0
    while True:
        if skipped := _SKIPPED.match(text, position):
            position = skipped.end()
        if position >= len(text):
            return
        match = _TOKEN.match(text, position)
        if match is None:
            raise TreeError(f"unexpected character {text[position]!r}", position)
        yield Token(match.group(), position)
        position = match.end()


class _Reader:
    def __init__(self, tokens: list[Token], length: int) -> None:
        self._tokens = tokens
        self._index = 0
        self._length = length

    def fields(self, closing: str | None) -> list[Field]:
        found: list[Field] = []
        while self._text != (closing or ""):
            found.append(self._field())
        return found

    def _field(self) -> Field:
        name = self._take()
        if not re.match(r"\w", name.text):
            raise TreeError(f"a field name was expected, found {name.text!r}", name.start)
        colon = self._take().start if self._text == ":" else None
        values: list[Value] = []
        commas: list[int] = []
        brackets: tuple[int, int] | None = None
        if self._text == "[":
            opening = self._take()
            while self._text != "]":
                values.append(self._value())
                if self._text == ",":
                    commas.append(self._take().start)
            closing = self._take()
            brackets = (opening.start, closing.start)
            value_end = closing.end
        else:
            values.append(self._value())
            value_end = values[0].end
        separator = ""
        end = value_end
        if self._text in (",", ";"):
            token = self._take()
            separator, end = token.text, token.end
        return Field(name.text, name.start, colon, values, brackets, commas, value_end, separator, end)

    def _value(self) -> Value:
        first = self._take()
        if first.text in _CLOSING:
            fields = self.fields(_CLOSING[first.text])
            return Block(first.start, self._take().end, fields)
        end = first.end
        if first.text[0] in "\"'":
            while self._text[:1] in ("'", '"') and self._text:
                end = self._take().end
        return Scalar(first.start, end)

    @property
    def _text(self) -> str:
        return self._tokens[self._index].text if self._index < len(self._tokens) else ""

    def _take(self) -> Token:
        if self._index >= len(self._tokens):
            raise TreeError("the text ends too early", self._length)
        token = self._tokens[self._index]
        self._index += 1
        return token
