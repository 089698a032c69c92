"""Medians of groups of values; the groups may differ in size."""

from __future__ import annotations

import numpy as np

from .operations import Floats, Ints


class Groups:
    """Items with a group number each, sorted once for any number of medians."""

    def __init__(self, number: Ints, count: int) -> None:
        self.number, self.count = number.astype(np.int32), count
        order = np.argsort(number, kind="stable")
        sizes = np.bincount(number, minlength=count)
        firsts = np.cumsum(sizes) - sizes
        self._tables = []  # the groups of one size, and their items as a table
        for size in np.unique(sizes[sizes > 0]).tolist():
            groups = np.flatnonzero(sizes == size)
            places = firsts[groups][:, None] + np.arange(size)
            self._tables.append((groups, order[places].astype(np.int32)))

    def medians(self, values: Floats) -> Floats:
        """Of each group; 0.0 of an empty one."""
        found = np.zeros(self.count)
        for groups, items in self._tables:
            size = items.shape[1]
            ordered = np.sort(values[items], axis=1)
            found[groups] = (ordered[:, (size - 1) // 2] + ordered[:, size // 2]) / 2
        return found

    def turned(self, rng: np.random.Generator) -> Ints:
        """For each item another one of its group: the items of a group in a circle, turned."""
        found = np.arange(len(self.number), dtype=np.int32)
        for groups, items in self._tables:
            size = items.shape[1]
            turn = rng.integers(0, size, len(groups))[:, None]
            places = (np.arange(size, dtype=np.int32) + turn.astype(np.int32)) % size
            found[items] = np.take_along_axis(items, places, axis=1)
        return found

    def others(self, values: Floats) -> Floats:
        """For each item the median of the others in its group; itself where it is alone.

        >>> Groups(np.array([0, 0, 0, 1]), 2).others(np.array([1.0, 2.0, 9.0, 5.0])).tolist()
        [5.5, 5.0, 1.5, 5.0]
        """
        found = values.copy()
        for _, items in self._tables:
            others = items.shape[1] - 1
            if others == 0:
                continue
            own = values[items]
            ordered = np.sort(own, axis=1)
            low, high = (others - 1) // 2, others // 2
            sides = [
                np.where(own > ordered[:, [at]], ordered[:, [at]], ordered[:, [at + 1]])
                for at in (low, high)
            ]
            found[items] = (sides[0] + sides[1]) / 2
        return found
