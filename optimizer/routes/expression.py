"""The route expression: which knobs vary over which values, and which are pinned.

trtexec's grammar (``samples/common/sampleTuning.cpp``): terms separated by blanks, ``-name=value`` pins a knob and
``-name=[a|b]`` varies it; blanks around a value in brackets and empty alternatives are dropped; knobs must be known,
values allowed, none twice in a list, and ``...`` stands in tables only. What trtexec accepts means the same here, with
these differences, each of which it would misread or refuse: a knob named twice is an error, an unbounded knob takes an
integer and nothing else, it may vary over an explicit list of integers, and a line break or tab separates terms too.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from optimizer.errors import InputError
from optimizer.records.route import Knob, KnobClass, Route
from optimizer.routes.knobs import KnobTable, table_of

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,9}")
_INT32 = range(-(2**31), 2**31)
_BLANK = re.compile(r"\s*")
_CONTEXT = 60


@dataclass(frozen=True)
class Term:
    """One knob of an expression. ``pinned``: written as ``-name=value``, so that it never varies. A list of one value
    is not pinned: ``fast`` compares it with the default.
    """

    knob: Knob
    values: tuple[str, ...]
    pinned: bool

    @property
    def text(self) -> str:
        return f"-{self.knob.name}={self.values[0] if self.pinned else '[' + '|'.join(self.values) + ']'}"

    @property
    def baseline(self) -> str:
        """The value while another knob is varied: the pinned one, else the knob's default."""
        return self.values[0] if self.pinned else self.knob.default

    @property
    def alternatives(self) -> tuple[str, ...]:
        """Values other than the baseline, in listed order."""
        return () if self.pinned else tuple(value for value in self.values if value != self.knob.default)


@dataclass(frozen=True)
class Expression:
    terms: tuple[Term, ...]

    @property
    def text(self) -> str:
        return " ".join(term.text for term in self.terms)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return tuple(term.knob for term in self.terms)

    @property
    def pins(self) -> Route:
        """Pinned values other than the default."""
        return Route.of(
            (term.knob.name, term.values[0])
            for term in self.terms
            if term.pinned and term.values[0] != term.knob.default
        )

    @property
    def unsafe(self) -> tuple[str, ...]:
        """Knobs that were named although their help texts warn of wrong results."""
        return tuple(knob.name for knob in self.knobs if knob.knob_class is KnobClass.UNSAFE)


def parse_expression(text: str, knobs: KnobTable | Iterable[Knob], *, where: str = "route expression") -> Expression:
    """Raises :class:`InputError` whose field is the character (from 1), with the place marked below the expression."""
    table = knobs if isinstance(knobs, KnobTable) else table_of(knobs)
    return _Parser(text, table, where).parse()


def parse_route(text: str, knobs: KnobTable | Iterable[Knob], *, where: str = "route") -> Route:
    """One route: every term pinned. ``""`` is the default route. Raises :class:`InputError`."""
    if not text.strip():
        return Route()
    expression = parse_expression(text, knobs, where=where)
    for term in expression.terms:
        if not term.pinned:
            raise InputError(
                f"{term.text} is a list: a route gives each knob one value", where=where, remedy="choose one value"
            )
    return expression.pins


def vary(knobs: Iterable[Knob]) -> Expression:
    """Every bounded knob over all its values; unbounded ones are left out."""
    return Expression(tuple(Term(knob, knob.values, pinned=False) for knob in knobs if knob.bounded))


class _Parser:
    def __init__(self, text: str, table: KnobTable, where: str) -> None:
        self._text = text
        self._table = table
        self._where = where

    def parse(self) -> Expression:
        terms: list[Term] = []
        named: set[str] = set()
        position = self._skip_blanks(0)
        if position == len(self._text):
            raise InputError("is empty", where=self._where, remedy="name a knob, as in -name=[on|off]")
        while position < len(self._text):
            start = position
            term, position = self._term(position)
            if term.knob.name in named:
                self._fail(start, f"knob {term.knob.name} is named twice", "name each knob once, with all its values")
            named.add(term.knob.name)
            terms.append(term)
            position = self._skip_blanks(position)
        return Expression(tuple(terms))

    def _term(self, start: int) -> tuple[Term, int]:
        knob, position = self._name(start)
        if self._text[position : position + 1] == "[":
            values, position = self._list(knob, position)
            return Term(knob, values, pinned=False), position
        found = re.compile(r"\S*").match(self._text, position)
        value = found.group() if found else ""
        self._check_pin(knob, value, position)
        return Term(knob, (value,), pinned=True), position + len(value)

    def _name(self, start: int) -> tuple[Knob, int]:
        if self._text[start] != "-":
            self._fail(start, "a term starts with '-'", "write terms as -name=value or -name=[a|b]")
        found = re.compile(r"[^\s=]*").match(self._text, start + 1)
        name = found.group() if found else ""
        end = start + 1 + len(name)
        if self._text[end : end + 1] != "=":
            self._fail(end, f"'=' expected after -{name}", f"write -{name or 'name'}=value, without blanks around '='")
        knob = self._table.get(name)
        if knob is None:
            near = self._table.nearest(name)
            hint = f"did you mean {' or '.join(near)}?" if near else "list the known ones with: triton-optimizer knobs"
            self._fail(start + 1, f"unknown knob {name!r}", hint)
        return knob, end + 1

    def _list(self, knob: Knob, opened: int) -> tuple[tuple[str, ...], int]:
        closed = self._text.find("]", opened)
        if closed < 0:
            self._fail(opened, "'[' is not closed", "close the list with ']'")
        again = self._text.find("[", opened + 1, closed)
        if again >= 0:
            self._fail(again, "a list inside a list", "remove the inner '['")
        after = self._text[closed + 1 : closed + 2]
        if after and not after.isspace():
            self._fail(closed + 1, "unexpected text after ']'", "put a blank between terms")
        values: list[str] = []
        position = opened + 1
        for piece in self._text[opened + 1 : closed].split("|"):
            value = piece.strip()
            if value:
                at = position + piece.index(value)
                self._check_value(knob, value, at)
                if value in values:
                    self._fail(at, f"value {value!r} is there twice", "name each value once")
                values.append(value)
            position += len(piece) + 1
        if not values:
            self._fail(opened, "the list is empty", f"name values of {knob.name}: {_allowed(knob)}")
        return tuple(values), closed + 1

    def _check_pin(self, knob: Knob, value: str, at: int) -> None:
        if not value:
            self._fail(at, f"no value for {knob.name}", f"give it one: {_allowed(knob)}")
        bracket = re.search(r"[\[\]]", value)
        if bracket:
            self._fail(at + bracket.start(), f"unexpected {bracket.group()!r}", "write a list as -name=[a|b]")
        if "|" in value:
            self._fail(at + value.index("|"), "unexpected '|'", f"to vary it, write -{knob.name}=[{value}]")
        self._check_value(knob, value, at)

    def _check_value(self, knob: Knob, value: str, at: int) -> None:
        if "..." in value:
            self._fail(at + value.index("..."), "'...' is not allowed", "name the values one by one")
        if knob.bounded:
            if value not in knob.values:
                near = difflib.get_close_matches(value, knob.values, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                self._fail(at, f"{value!r} is not a value of {knob.name}", f"{hint}allowed: {_allowed(knob)}")
        elif not _INTEGER.fullmatch(value) or int(value) not in _INT32:
            self._fail(at, f"{knob.name} takes an integer, not {value!r}", "give a whole number such as 2")

    def _skip_blanks(self, position: int) -> int:
        found = _BLANK.match(self._text, position)
        return found.end() if found else position

    def _fail(self, position: int, problem: str, remedy: str) -> NoReturn:
        raise InputError(
            f"{problem}\n{_marked(self._text, position)}",
            where=self._where,
            field=f"character {position + 1}",
            remedy=remedy,
        )


def _marked(text: str, position: int) -> str:
    """The expression around ``position`` and a caret below it; control characters become blanks of one column."""
    start, end = max(0, position - _CONTEXT), position + _CONTEXT
    shown = "".join(character if character.isprintable() else " " for character in text[start:end])
    before = "…" if start else ""
    return f"    {before}{shown}{'…' if end < len(text) else ''}\n    {' ' * (len(before) + position - start)}^"


def _allowed(knob: Knob) -> str:
    return "|".join(knob.values) if knob.bounded else "any integer"
