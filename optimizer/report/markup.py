"""HTML and SVG elements as text, escaped by construction: a plain ``str`` always is, only :class:`Markup` is not.

Routes, model names, log lines and paths come from outside; no page is put together but through :func:`element`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TypeAlias


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child: TypeAlias = "str | Markup | None"
Attribute: TypeAlias = "str | float | bool | None"

_EMPTY = frozenset({"meta", "link", "input", "br", "circle", "line", "path", "rect", "polyline"})


def element(tag: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """``element("a", "text", href="#x", class_="y")``. ``None`` and ``False`` leave an attribute out, ``True`` gives it
    no value; underscores in names become hyphens, one at the end is dropped. Numbers are written short."""
    opening = tag + "".join(_attribute(key, value) for key, value in attributes.items())
    content = join(children)
    if not content and tag in _EMPTY:
        return Markup(f"<{opening}/>" if tag not in ("meta", "link", "input", "br") else f"<{opening}>")
    return Markup(f"<{opening}>{content}</{tag}>")


def join(children: Iterable[Child], separator: str = "") -> Markup:
    return Markup(separator.join(_escaped(child) for child in children if child is not None))


def _escaped(text: str) -> str:
    return text if isinstance(text, Markup) else html.escape(text)


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    key = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {key}"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {key}="{html.escape(text)}"'
