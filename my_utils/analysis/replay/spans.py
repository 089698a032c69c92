"""Spans of time that do not overlap, and how much of other spans they have."""

from __future__ import annotations

import numpy as np

from .operations import Ints


class Spans:
    """begins, ends: ns, in their order.

    >>> spans = Spans.union(np.array([0, 2, 50]), np.array([10, 6, 60]))
    >>> spans.total, spans.within(np.array([5, 20]), np.array([55, 30])).tolist()
    (20, [10, 0])
    """

    def __init__(self, begins: Ints, ends: Ints) -> None:
        self.begins, self.ends = begins, ends
        self._sums = np.cumsum(ends - begins)

    @classmethod
    def union(cls, begins: Ints, ends: Ints) -> Spans:
        """Of spans in any order, which may overlap."""
        order = np.argsort(begins, kind="stable")
        begins, done = begins[order], np.maximum.accumulate(ends[order])
        is_last = np.r_[begins[1:] > done[:-1], np.ones(len(begins[:1]), np.bool_)]
        firsts = np.r_[0, np.flatnonzero(is_last)[:-1] + 1][: int(is_last.sum())]
        return cls(begins[firsts], done[is_last])

    @property
    def total(self) -> int:
        return int(self._sums[-1]) if len(self._sums) else 0

    def within(self, begins: Ints, ends: Ints) -> Ints:
        """How much of each of these spans they have."""
        return self._until(ends) - self._until(begins)

    def _until(self, moments: Ints) -> Ints:
        if not len(self.begins):
            return np.zeros_like(moments)
        at = np.searchsorted(self.begins, moments, "right") - 1
        last = np.maximum(at, 0)
        passed = self._sums[last] - np.maximum(self.ends[last] - moments, 0)
        until: Ints = np.where(at >= 0, passed, 0)
        return until
