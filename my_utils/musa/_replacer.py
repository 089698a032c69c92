"""Replaces names in a text by rules, in one pass."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

Rules = Sequence[tuple[bytes, bytes | None]]

_NAME = re.compile(rb"[A-Za-z0-9_]+")
HEAD = 4  # bytes by which a rule that matches anywhere is found
_IN_NAME = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


class Replacer:
    """The rules come in tiers. The first tier is applied to the whole text, the next one to the
    text between its matches, and so on: a rule of an earlier tier wins where two overlap. Within a
    tier the leftmost match wins, and of those that begin there the longest; of equal rules the
    first. What is put in is not searched again. Safe to use from several threads.

    tiers: rules, and whether they match whole names only, which means that a match neither begins
        nor ends inside a run of letters, digits and underscores. A rule of whole names whose new
        text is None watches: a longer name that begins with it and matches no rule is reported.

    >>> replacer = Replacer([([(b"cudaFree", b"musaFree"), (b"cuda", None)], True)])
    >>> replacer.replace(b"cudaFree(p);\\ncudaNew(p);")
    (b'musaFree(p);\\ncudaNew(p);', 1, {'cudaNew': (1, 2)})
    """

    def __init__(self, tiers: Sequence[tuple[Rules, bool]]) -> None:
        # A tier without rules would only cost a pass over the text.
        self._tiers = [
            _Whole(rules) if whole else _Anywhere(rules) for rules, whole in tiers if rules
        ]

    def replace(self, text: bytes) -> tuple[bytes | None, int, dict[str, tuple[int, int]]]:
        """The new text, None where nothing changes; how many places changed; and the watched names:
        how often each came, and in which line first, from 1."""
        parts: list[bytes] = []
        watched: dict[str, tuple[int, int]] = {}
        lines = LineNumbers(text)
        done = 0
        for start, end, new in self._matches(text, 0, 0, len(text)):
            if new is None:
                name = text[start:end].decode()
                count, line = watched.get(name, (0, 0))
                watched[name] = (count + 1, line or lines.of(start))
            elif new != text[start:end]:
                parts += [text[done:start], new]
                done = end
        if not parts:
            return None, 0, watched
        return b"".join([*parts, text[done:]]), len(parts) // 2, watched

    def _matches(self, text: bytes, number: int, begin: int, end: int) -> Iterator[_Match]:
        """Those of the tiers from `number` on, in order."""
        if number == len(self._tiers) or begin == end:
            return
        for match in self._tiers[number].matches(text, begin, end):
            yield from self._matches(text, number + 1, begin, match[0])
            yield match
            begin = match[1]
        yield from self._matches(text, number + 1, begin, end)


_Match = tuple[int, int, bytes | None]  # begin, end, the new text or None for a watched name


class LineNumbers:
    """Line numbers of a text, from 1. Its line ends are found once, when the first is asked for."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._ends: list[int] | None = None

    def of(self, at: int) -> int:
        if self._ends is None:
            self._ends = [match.start() for match in re.finditer(b"\n", self._text)]
        return bisect_right(self._ends, at) + 1


class _Anywhere:
    """Rules that match inside names, too. Rules are found by their first bytes and their lengths:
    a pattern of all of them takes as long at each place as there are rules, and they may be 25,000.
    """

    def __init__(self, rules: Rules) -> None:
        self._new = dict(reversed([(old, new) for old, new in rules if new is not None]))
        lengths: dict[bytes, set[int]] = {}
        for old in self._new:
            lengths.setdefault(old[:HEAD], set()).add(len(old))
        self._lengths = {head: sorted(each, reverse=True) for head, each in lengths.items()}
        self._head_sizes = sorted({len(head) for head in lengths}, reverse=True)
        self._pattern = _two_bytes(self._new)

    def matches(self, text: bytes, begin: int, end: int) -> Iterator[_Match]:
        done = begin
        for found in self._pattern.finditer(text, begin, end):
            start = found.start()
            old = self._longest(text, start, end) if start >= done else None
            if old is not None:
                done = start + len(old)
                yield start, done, self._new[old]

    def _longest(self, text: bytes, start: int, limit: int) -> bytes | None:
        for size in self._head_sizes:
            for length in self._lengths.get(text[start : start + size], ()):
                old = text[start : start + length]
                if start + length <= limit and old in self._new:
                    return old
        return None


class _Whole:
    """Rules that match whole names. A rule is found by the name at its beginning, or by its first
    byte where that belongs to no name."""

    def __init__(self, rules: Rules) -> None:
        self._names: dict[bytes, bytes] = {}
        self._longer: dict[bytes, list[tuple[bytes, bytes]]] = {}
        self._watches = tuple(old for old, new in rules if new is None)
        for old, new in rules:
            if new is None:
                continue
            head = _head(old)
            if head == old and old[0] in _IN_NAME:
                self._names.setdefault(old, new)
            else:
                self._longer.setdefault(head, []).append((old, new))
        for candidates in self._longer.values():
            candidates.sort(key=lambda rule: len(rule[0]), reverse=True)
        self._pattern = _starts({*self._names, *self._longer}, self._watches)

    def matches(self, text: bytes, begin: int, end: int) -> Iterator[_Match]:
        done = begin
        for found in self._pattern.finditer(text, begin, end):
            start, head_end = found.span()
            match = None if start < done else self._match(text, start, head_end, end)
            if match is not None:
                yield match
                done = match[1]

    def _match(self, text: bytes, start: int, head_end: int, limit: int) -> _Match | None:
        head = text[start:head_end]
        for old, new in self._longer.get(head, ()):
            end = start + len(old)
            if end <= limit and text.startswith(old, start) and not _is_inside(text, end):
                return start, end, new
        if _is_inside(text, head_end):  # the part of a name that an earlier tier has left
            return None
        if head in self._names:
            return start, head_end, self._names[head]
        if head[:-1].startswith(self._watches):
            return start, head_end, None
        return None


def _head(old: bytes) -> bytes:
    name = _NAME.match(old)
    return old[:1] if name is None else name[0]


def _is_inside(text: bytes, at: int) -> bool:
    """Whether the place is between two characters of a name."""
    return 0 < at < len(text) and text[at - 1] in _IN_NAME and text[at] in _IN_NAME


def _starts(heads: set[bytes], watches: Sequence[bytes]) -> re.Pattern[bytes]:
    """Finds each name that begins with the first two bytes of a head or a watch, and each head that
    is not a name."""
    names = _two_bytes(word for word in (*heads, *watches) if word[0] in _IN_NAME)
    parts = [re.escape(head) for head in heads if head[0] not in _IN_NAME]
    parts.append(rb"(?<![A-Za-z0-9_])(?:" + names.pattern + rb")[A-Za-z0-9_]*")
    return re.compile(b"|".join(parts))


def _two_bytes(words: Iterable[bytes]) -> re.Pattern[bytes]:
    """Finds the first byte of each word, where its second one follows."""
    seconds: dict[bytes, set[bytes]] = {}
    for word in words:
        seconds.setdefault(word[:1], set()).add(word[1:2])
    parts = [
        re.escape(first)
        + (b"" if b"" in after else b"(?=[" + b"".join(map(re.escape, after)) + b"])")
        for first, after in seconds.items()
    ]
    return re.compile(b"|".join(parts) if parts else rb"(?!)")
