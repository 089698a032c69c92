"""Names replaced in one pass, against the plain way: every rule tried at every place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from my_utils.musa._replacer import Replacer, Rules

pytestmark = pytest.mark.no_torch

NAME = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
Tiers = list[tuple[Rules, bool]]


def is_inside(text: bytes, at: int) -> bool:
    return 0 < at < len(text) and text[at - 1] in NAME and text[at] in NAME


def match_at(
    text: bytes, at: int, limit: int, rules: Rules, whole: bool
) -> tuple[int, bytes | None] | None:
    """The end of the longest match that begins there, and its new text."""
    found: tuple[int, bytes | None] | None = None
    for old, new in rules:
        end = at + len(old)
        if end > limit or text[at:end] != old or (whole and is_inside(text, at)):
            continue
        if new is None:
            if not is_inside(text, end):
                continue
            while is_inside(text, end):
                end += 1
            if end <= limit and found is None:
                found = end, None
        elif not (whole and is_inside(text, end)) and (
            found is None or found[1] is None or end > found[0]
        ):
            found = end, new
    return found


def plainly(text: bytes, tiers: Tiers, begin: int, end: int) -> list[tuple[int, int, bytes | None]]:
    if not tiers:
        return []
    (rules, whole), *later = tiers
    matches: list[tuple[int, int, bytes | None]] = []
    done = at = begin
    while at < end:
        found = match_at(text, at, end, rules, whole)
        if found is None:
            at += 1
            continue
        matches += [*plainly(text, later, done, at), (at, *found)]
        done = at = found[0]
    return [*matches, *plainly(text, later, done, end)]


words = st.text("ab_1:<.", min_size=1, max_size=4).map(str.encode)
names = st.text("ab_1", min_size=1, max_size=2).map(str.encode)
replacements = st.tuples(words, st.text("ab_1:", max_size=3).map(str.encode))
watches = st.tuples(names, st.none())
tier = st.one_of(
    st.tuples(st.lists(replacements, min_size=1, max_size=6), st.just(False)),
    st.tuples(st.lists(replacements | watches, min_size=1, max_size=6), st.just(True)),
)


@given(st.lists(tier, max_size=3), st.text("ab_1:<.\n ", max_size=40).map(str.encode))
@settings(max_examples=500, deadline=None)
def test_rules_apply_as_they_are_written(tiers: Tiers, text: bytes) -> None:
    parts, done, count = [], 0, 0
    watched: dict[str, tuple[int, int]] = {}
    for start, end, new in plainly(text, tiers, 0, len(text)):
        if new is None:
            known, line = watched.get(
                text[start:end].decode(), (0, text.count(b"\n", 0, start) + 1)
            )
            watched[text[start:end].decode()] = known + 1, line
        elif new != text[start:end]:
            parts += [text[done:start], new]
            done = end
            count += 1
    expected = b"".join([*parts, text[done:]]) if count else None
    assert Replacer(tiers).replace(text) == (expected, count, watched)


def test_no_rules() -> None:
    assert Replacer([]).replace(b"text") == (None, 0, {})
    assert Replacer([([], True)]).replace(b"text") == (None, 0, {})
