"""The cells of a run: what a stage took in one step, rank by rank.

Arrays in memory up to a limit, in a temporary file beyond it. The file is mapped, so that the
system decides what of it is in memory.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np

from ... import _core
from ..verdict.rank_cells import RankCells, numbered
from ..verdict.rank_files import Columns
from ..verdict.reduce import read_durations
from ..verdict.run_data import Integers
from ..verdict.run_ranks import are_in

QUANTITIES = ("total_ns", "self_ns")
KEYS = ("step", "path")  # of the columns of cells that become one; the others are added
COLUMNS = (*KEYS, "count", *QUANTITIES)
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
SIZE = re.compile(r"(\d{1,30}(?:\.\d+)?) ?([KMGT]?)(I?)B?", re.IGNORECASE)


@dataclass
class RankOfCells:
    """One rank. Its cells are sorted by path, and of a path by step.

    paths: the run's number of each of its paths, rising; firsts: where the cells of each begin, and
    the end of the last. values: a row for each of QUANTITIES. counts: the runs of each cell.
    durations: as `read_durations` has them, with the place in `paths` as path.
    """

    rank: int
    paths: list[int]
    firsts: Integers
    steps: Integers
    values: Integers
    counts: Integers
    durations: Columns

    def cells_of(self, path: int) -> slice:
        """The places of the cells of one of its paths."""
        at = self.paths.index(path)
        return slice(int(self.firsts[at]), int(self.firsts[at + 1]))

    def values_of(self, path: int, quantity: str) -> Integers:
        """Of each of its steps that has one of its paths."""
        values: Integers = self.values[QUANTITIES.index(quantity), self.cells_of(path)]
        return values

    def sums(self, quantity: str) -> Integers:
        """Of each of its paths, over all steps."""
        totals: Integers = np.add.reduceat(
            self.values[QUANTITIES.index(quantity)], self.firsts[:-1]
        )
        return totals

    def runs(self) -> Integers:
        """Of each of its paths, how often it ran."""
        runs: Integers = np.add.reduceat(self.counts, self.firsts[:-1])
        return runs

    def within(
        self, steps: tuple[int, int], lost: Sequence[tuple[int, int]], are_theirs: bool
    ) -> RankOfCells:
        """The same with the cells of these steps alone, without those of `lost`. are_theirs: the
        durations are those of these steps already; else each run of a cell counts with the mean of
        the cell."""
        kept = (self.steps >= steps[0]) & (self.steps < steps[1]) & ~are_in(self.steps, lost)
        if kept.all():
            return self
        paths = np.repeat(self.paths, np.diff(self.firsts))[kept]
        values, counts = self.values[:, kept], self.counts[kept]
        durations = {**self.durations, "path": np.array(self.paths)[self.durations["path"]]}
        if not are_theirs:
            means = values[QUANTITIES.index("total_ns")] // counts
            durations = read_durations(np.repeat(paths, counts), np.repeat(means, counts))
        return _of_rank(self.rank, paths, self.steps[kept], values, counts, durations)


def _of_rank(
    rank: int, paths: Integers, steps: Integers, values: Integers, counts: Integers,
    durations: Columns,
) -> RankOfCells:  # fmt: skip
    """paths: the run's number of each cell, rising, as those of the durations are."""
    used, firsts = np.unique(paths, return_index=True)
    places = np.searchsorted(used, durations["path"])
    return RankOfCells(
        rank, used.tolist(), np.append(firsts, len(paths)), steps, values, counts,
        {**durations, "path": places},
    )  # fmt: skip


class Cells:
    """The cells of all ranks, by rank in `of_ranks`. One thread at a time.

    memory_limit: how much of them stays in memory, such as "256MB" or "1.5GiB".
    """

    def __init__(self, memory_limit: str = "256MB") -> None:
        self._left = limit_of(memory_limit)
        self._numbers: dict[str, int] = {}
        self._file: IO[bytes] | None = None
        self.of_ranks: dict[int, RankOfCells] = {}

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, rank: RankCells) -> None:
        """A rank without any stage adds nothing. OSError where the temporary file is full."""
        cells = _of_all_threads(rank)
        if not len(cells["step"]):
            return
        numbers = np.array([self._number(name) for name in rank.paths])
        paths = numbers[cells["path"]]
        order = np.argsort(paths, kind="stable")
        values = np.stack([cells[name][order] for name in QUANTITIES])
        self._left -= values.nbytes
        if self._left < 0:
            values = self._in_the_file(values)
        durations = {**rank.durations, "path": numbers[rank.durations["path"]]}
        by_path = np.argsort(durations["path"], kind="stable")
        self.of_ranks[rank.metadata.rank] = _of_rank(
            rank.metadata.rank, paths[order], cells["step"][order], values, cells["count"][order],
            {name: column[by_path] for name, column in durations.items()},
        )  # fmt: skip

    def keep(
        self, ranks: Sequence[RankCells], steps: tuple[int, int], lost: Sequence[tuple[int, int]]
    ) -> None:
        """Only these ranks; their steps as they are numbered in the run, and of those only these,
        a half-open range, without those that are lost."""
        kept = {}
        for rank in ranks:
            one = self.of_ranks[rank.metadata.rank]
            if rank.is_automatic:
                one.steps = numbered(one.steps, rank.shifts)
            are_theirs = not any(rank.shifts.values()) and not lost
            one = one.within(steps, lost, are_theirs=are_theirs)
            if len(one.steps):
                kept[one.rank] = one
        self.of_ranks = kept

    def _number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def _in_the_file(self, values: Integers) -> Integers:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="my_utils_report.")  # noqa: SIM115
        offset = self._file.seek(0, os.SEEK_END)
        self._file.write(values.data)
        self._file.flush()
        return np.memmap(self._file, values.dtype, "r", offset, values.shape)

    def names(self) -> dict[int, str]:
        """The names of the paths that have cells, by their numbers, in the order of the names."""
        used = {path for rank in self.of_ranks.values() for path in rank.paths}
        return {number: name for name, number in sorted(self._numbers.items()) if number in used}

    def durations(self) -> dict[int, tuple[Integers, int]]:
        """Of each path how many runs of all ranks each bucket of the engine's histograms has, and
        the longest in ns."""
        found: dict[int, tuple[Integers, int]] = {}
        for rank in self.of_ranks.values():
            columns = rank.durations
            firsts = np.searchsorted(columns["path"], np.arange(len(rank.paths) + 1))
            for path, first, end in zip(rank.paths, firsts, firsts[1:], strict=False):
                if path not in found:
                    found[path] = np.zeros(_core.HISTOGRAM_BUCKETS, np.int64), 0
                counts, longest_ns = found[path]
                counts[columns["bucket"][first:end]] += columns["count"][first:end]
                found[path] = counts, max(longest_ns, int(columns["max_ns"][first:end].max()))
        return found


def _of_all_threads(rank: RankCells) -> Columns:
    """The cells of the training thread and of the others; what both did in a step is one cell."""
    if not rank.others:
        return rank.cells
    both = {name: np.concatenate([rank.cells[name], rank.others[name]]) for name in COLUMNS}
    order = np.lexsort((both["path"], both["step"]))
    both = {name: column[order] for name, column in both.items()}
    is_first = np.ones(len(order), bool)
    is_first[1:] = (np.diff(both["step"]) != 0) | (np.diff(both["path"].astype(np.int64)) != 0)
    firsts = np.flatnonzero(is_first)
    return {
        name: column[firsts] if name in KEYS else np.add.reduceat(column, firsts)
        for name, column in both.items()
    }


def limit_of(size: str) -> int:
    """Bytes of the argument `memory_limit`; ValueError for what is not a size."""
    found = SIZE.fullmatch(size.strip())
    if found is None:
        raise ValueError(f"memory_limit must be such as '256MB', not {size!r}")
    factor = UNITS[found[2].upper()]
    if found[3]:
        factor = 1024 ** list(UNITS).index(found[2].upper())
    return int(float(found[1]) * factor)
