"""When a device had nothing to do between its first and its last operation."""

from __future__ import annotations

import numpy as np

from .operations import Ints


class Idle:
    """The gaps between what a device did, on all streams together; ns.

    span_ns: from its first begin to its last end. share: of the gaps in that.

    >>> idle = Idle(np.array([0, 2, 50]), np.array([10, 6, 60]))
    >>> idle.within(np.array([0, 20]), np.array([60, 45])).tolist()
    [40, 25]
    >>> idle.since(np.array([30, 55])).tolist()
    [10, 55]
    >>> idle.span_ns, idle.share
    (60, 0.6666666666666666)
    """

    def __init__(self, begins: Ints, ends: Ints) -> None:
        """begins, ends: of each kernel and copy, in any order; at least one."""
        order = np.argsort(begins, kind="stable")
        next_begins, done = begins[order][1:], np.maximum.accumulate(ends[order])[:-1]
        gaps = next_begins > done
        self._begins, self._ends = done[gaps], next_begins[gaps]
        self._sums = np.cumsum(self._ends - self._begins)
        self.span_ns = max(int(ends.max() - begins.min()), 1)
        self.share = float((self._ends - self._begins).sum()) / self.span_ns

    def within(self, begins: Ints, ends: Ints) -> Ints:
        """How long it had nothing to do in each of these spans."""
        return self._until(ends) - self._until(begins)

    def _until(self, moments: Ints) -> Ints:
        if not len(self._begins):
            return np.zeros_like(moments)
        at = np.searchsorted(self._begins, moments, "right") - 1
        last = np.maximum(at, 0)
        passed = self._sums[last] - np.maximum(self._ends[last] - moments, 0)
        until: Ints = np.where(at >= 0, passed, 0)
        return until

    def since(self, moments: Ints) -> Ints:
        """Since when it has had nothing to do at each moment; the moment where it works."""
        if not len(self._begins):
            return moments
        at = np.searchsorted(self._begins, moments, "right") - 1
        last = np.maximum(at, 0)
        since: Ints = np.where(
            (at >= 0) & (moments <= self._ends[last]), self._begins[last], moments
        )
        return since
