"""What a rank called under each number, stored compactly and compared fast. Thousands of ranks
have thousands of calls each, and nearly all of them agree."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_GAP = ""


@dataclass(frozen=True)
class Kinds:
    """Texts by number, from `first` on.

    >>> kinds = Kinds.of({7: "all_reduce", 9: "barrier"})
    >>> kinds.get(7), kinds.get(8), kinds.get(9), kinds.get(10)
    ('all_reduce', '', 'barrier', '')
    """

    first: int
    texts: tuple[str, ...]  # sorted
    codes: array[int]  # places in `texts`

    @classmethod
    def of(cls, kinds: Mapping[int, str]) -> Kinds:
        first, last = min(kinds, default=0), max(kinds, default=-1)
        in_order = [kinds.get(number, _GAP) for number in range(first, last + 1)]
        texts = tuple(sorted(set(in_order)))
        places = {text: place for place, text in enumerate(texts)}
        return cls(first, texts, array("I", map(places.__getitem__, in_order)))

    @property
    def end(self) -> int:
        return self.first + len(self.codes)

    def get(self, number: int) -> str:
        """The text, empty where nothing is known."""
        if self.first <= number < self.end:
            return self.texts[self.codes[number - self.first]]
        return _GAP

    def items(self, first: int, end: int) -> Iterator[tuple[int, str]]:
        """What is known of the numbers from `first` to before `end`."""
        for number in range(max(first, self.first), min(end, self.end)):
            if text := self.get(number):
                yield number, text

    def agrees(self, other: Kinds) -> bool:
        """Whether both hold the same in their common range. False may also mean "not sure"."""
        first, end = max(self.first, other.first), min(self.end, other.end)
        mine = self.codes[first - self.first : end - self.first]
        theirs = other.codes[first - other.first : end - other.first]
        return first < end and self.texts == other.texts and mine == theirs


def first_difference(all_kinds: Iterable[Kinds]) -> int | None:
    """The first number under which not all have the same text.

    >>> first_difference([Kinds.of({1: "a", 2: "b"}), Kinds.of({2: "b", 3: "c"})]) is None
    True
    >>> first_difference([Kinds.of({1: "a", 2: "b"}), Kinds.of({2: "a", 3: "c"})])
    2
    """
    base: Kinds | None = None
    agreed: dict[int, str] = {}
    found: int | None = None
    for kinds in all_kinds:
        parts = [(kinds.first, kinds.end)]
        if base is not None and kinds.agrees(base):
            parts = [(kinds.first, base.first), (base.end, kinds.end)]
        base = base or kinds
        for part in parts:
            for number, text in kinds.items(*part):
                if agreed.setdefault(number, text) != text:
                    found = number if found is None else min(found, number)
    return found
