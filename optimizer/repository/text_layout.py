"""How a config is laid out: lines, indentation, line ends, blanks around colons. Imports the standard library only."""

from __future__ import annotations

import re

from optimizer.repository.text_tree import Block, Scalar

_BLANKS = re.compile(r"[ \t]*")


class TextLayout:
    """Questions about offsets of one text. ``newline``, ``unit`` (one step of indentation) and ``colon`` (with the
    blanks around it) are the text's own, or the usual ones where it shows none.
    """

    def __init__(self, text: str, tree: Block) -> None:
        self.text = text
        newline = re.search(r"\r?\n", text)
        self.newline = newline.group() if newline else "\n"
        self.unit = self._indent_unit(tree) or "  "
        self.colon = self._colon_style(tree) or ": "

    def _indent_unit(self, block: Block) -> str | None:
        for place in block.fields:
            for value in place.values:
                if not isinstance(value, Block) or not value.fields:
                    continue
                first = value.fields[0]
                outer, inner = self.line_indent(value.start), self.line_indent(first.start)
                if self.starts_line(first.start) and inner.startswith(outer) and inner != outer:
                    return inner[len(outer) :]
                if unit := self._indent_unit(value):
                    return unit
        return None

    def _colon_style(self, block: Block) -> str | None:
        """The blanks around the first scalar's colon, such as ``:`` or `` : ``."""
        for place in block.fields:
            value = place.values[0] if place.values else None
            if place.colon is not None and isinstance(value, Scalar) and place.brackets is None:
                style = self.text[place.start + len(place.name) : value.start]
                return style if re.fullmatch(r" ?: ?", style) else None
        return None

    def line_start(self, position: int) -> int:
        return self.text.rfind("\n", 0, position) + 1

    def line_end(self, position: int) -> int:
        """Before the line break."""
        end = self.text.find("\n", position)
        if end < 0:
            return len(self.text)
        return end - 1 if end > position and self.text[end - 1] == "\r" else end

    def line_break_before(self, line_start: int) -> str:
        if self.text[max(0, line_start - 2) : line_start] == "\r\n":
            return "\r\n"
        return "\n" if self.text[max(0, line_start - 1) : line_start] == "\n" else ""

    def line_break_near(self, position: int) -> str:
        """Of the line before, else of the line itself, else the text's usual one: files may mix them."""
        before = self.line_break_before(self.line_start(position))
        end = self.line_end(position)
        behind = "\r\n" if self.text.startswith("\r\n", end) else self.text[end : end + 1]
        return before or behind or self.newline

    def line_indent(self, position: int) -> str:
        match = _BLANKS.match(self.text, self.line_start(position))
        return match.group() if match else ""

    def starts_line(self, position: int) -> bool:
        return not self.text[self.line_start(position) : position].strip()

    def starts_line_of_field(self, block: Block) -> bool:
        """Nothing but the field's own name stands before the opening bracket on its line."""
        before = self.text[self.line_start(block.start) : block.start]
        return re.fullmatch(r"\s*\w*\s*:?\s*", before) is not None

    def ends_line(self, position: int) -> bool:
        rest = self.text[position : self.line_end(position)].strip()
        return not rest or rest.startswith("#")
