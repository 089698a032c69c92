"""What a rank called under each number, stored compactly: thousands of ranks have thousands of
calls each."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
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
