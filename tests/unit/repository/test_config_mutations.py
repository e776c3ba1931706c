"""Random configs under random edits: the result means the target, and what need not change does not.

``untouched`` is an account of its own: it knows from the two messages which fields differ, and asks the tree only where
fields stand.
"""

from __future__ import annotations

import random
import re
from typing import Any

from config_corpus import CORPUS, mutate, respell
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optimizer.repository.config_text import edit_config
from optimizer.repository.message_edit import MessageEditor
from optimizer.repository.text_tree import Block, read_tree, tokenize
from optimizer.triton.protobuf import parse_config

SETTINGS = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])


def touched_spans(block: Block, current: Any, target: Any) -> list[tuple[int, int]]:
    """Spans of the old text that an edit may change: the deepest fields that differ."""
    spans: list[tuple[int, int]] = []
    for descriptor in target.DESCRIPTOR.fields:
        name = descriptor.name
        now, then = getattr(current, name), getattr(target, name)
        if now == then and (not descriptor.has_presence or current.HasField(name) == target.HasField(name)):
            continue
        places = block.named(name)
        whole = [(place.start, place.end) for place in places]
        values = [value for place in places for value in place.values]
        is_map = descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry
        if descriptor.message_type is None or is_map:
            spans += whole
        elif not hasattr(now, "add"):
            if current.HasField(name) and target.HasField(name):
                spans += touched_spans(values[0], now, then)
            else:
                spans += whole
        elif len(now) == len(then) and not moved(now, then):
            for value, old, new in zip(values, now, then, strict=True):
                spans += touched_spans(value, old, new)
        else:
            spans += whole
    if not block.whole_file and grows(current, target):
        # A block that gets a field may be opened up, brackets excepted, if it stands on one line or is empty.
        spans.append((block.start, block.end))
    return spans


def moved(now: Any, then: Any) -> bool:
    """An element stands elsewhere in the list, by its name or as a whole: the list may be rewritten."""

    def name(element: Any) -> str:
        return getattr(element, "name", "") or getattr(element, "model_name", "")

    return any(
        (old != new and (old in then or new in now)) or name(old) != name(new)
        for old, new in zip(now, then, strict=True)
    )


def grows(current: Any, target: Any) -> bool:
    now = {descriptor.name for descriptor, _ in current.ListFields()}
    return any(descriptor.name not in now for descriptor, _ in target.ListFields())


def pieces(text: str) -> list[tuple[int, str]]:
    """Tokens and comments with their offsets; separators left out, since they come and go with their field."""
    tokens = [(token.start, token.text) for token in tokenize(text)]
    ends = [0, *(start + len(piece) for start, piece in tokens)]
    starts = [*(start for start, _ in tokens), len(text)]
    comments = [
        (begin + match.start(), match.group().removesuffix("\r"))
        for begin, end in zip(ends, starts, strict=True)
        for match in re.finditer(r"#[^\n]*", text[begin:end])
    ]
    return sorted([entry for entry in tokens if entry[1] not in (",", ";")] + comments)


def is_subsequence(wanted: list[str], found: list[str]) -> bool:
    remaining = iter(found)
    return all(any(each == other for other in remaining) for each in wanted)


def check_edit(text: str, target: Any) -> str:
    current = parse_config(text)
    edited = edit_config(text, target)
    assert parse_config(edited) == target
    spans = touched_spans(read_tree(text), current, target)

    def free(start: int, end: int) -> bool:
        return not any(start < high and low < end for low, high in spans)

    # Every token and comment outside of what differs is still there, in order.
    kept = [piece for start, piece in pieces(text) if free(start, start + len(piece))]
    assert is_subsequence(kept, [piece for _, piece in pieces(edited)])
    # Every line outside of what differs is still there, byte for byte; a line on which a field is added at the file's
    # level may grow behind its last token only.
    offset, lines = 0, []
    for line in text.split("\n"):
        if free(offset, offset + len(line) + 1):
            lines.append(line)
        offset += len(line) + 1
    found = iter(edited.split("\n"))
    grown = grows(current, target)
    for line in lines:
        # A line that becomes the last one loses its line end, since the file's end stays as it was.
        assert any(other in (line, line.removesuffix("\r")) or (grown and inline(line, other)) for other in found), line
    return edited


def inline(line: str, other: str) -> bool:
    """``other`` is ``line`` with fields written between two of its tokens."""
    bare = line.removesuffix("\r")
    return bool(bare.strip()) and is_subsequence([p for _, p in pieces(bare)], [p for _, p in pieces(other)])


def one_case(seed: int, name: str, changes: int, style: bool) -> None:
    rng = random.Random(seed)
    text = respell(CORPUS[name], rng) if style else CORPUS[name]
    target = parse_config(text)
    mutate(target, rng, changes=changes)
    check_edit(text, target)


@SETTINGS
@given(st.integers(0, 2**32), st.sampled_from(sorted(CORPUS)), st.integers(1, 6), st.booleans())
def test_random_edits_change_nothing_else(seed: int, name: str, changes: int, style: bool) -> None:
    one_case(seed, name, changes, style)


@SETTINGS
@given(st.integers(0, 2**32), st.sampled_from(sorted(CORPUS)))
def test_another_spelling_means_the_same(seed: int, name: str) -> None:
    respelled = respell(CORPUS[name], random.Random(seed))
    assert parse_config(respelled) == parse_config(CORPUS[name])
    assert edit_config(respelled, parse_config(CORPUS[name])) == respelled


@SETTINGS
@given(st.integers(0, 2**32), st.sampled_from(sorted(CORPUS)), st.sampled_from(sorted(CORPUS)))
def test_one_config_becomes_quite_another(seed: int, first: str, second: str) -> None:
    text = respell(CORPUS[first], random.Random(seed))
    check_edit(text, parse_config(CORPUS[second]))


@SETTINGS
@given(st.integers(0, 2**32), st.sampled_from(sorted(CORPUS)), st.integers(1, 6))
def test_the_coarse_edit_means_the_same(seed: int, name: str, changes: int) -> None:
    """What ``edit_config`` falls back to, were a fine edit ever wrong."""
    rng = random.Random(seed)
    text = respell(CORPUS[name], rng)
    current, target = parse_config(text), parse_config(text)
    mutate(target, rng, changes=changes)
    every_field = frozenset(descriptor.name for descriptor in target.DESCRIPTOR.fields)
    assert parse_config(MessageEditor(text).edited(current, target, every_field)) == target
