"""The cells of a run: what a stage took in one step, rank by rank.

Arrays in memory up to a limit, in a temporary file beyond it. The file is mapped, so that the
system decides what of it is in memory.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from typing import IO

import numpy as np
import numpy.typing as npt

from .. import _core
from ..verdict.rank_files import Columns
from ..verdict.reduce import ReducedRank

QUANTITIES = ("total_ns", "self_ns", "begin_ns", "last_begin_ns", "end_ns")
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)(I?)B?", re.IGNORECASE)

Integers = npt.NDArray[np.int64]


@dataclass
class RankOfCells:
    """One rank. Its cells are sorted by path, and of a path by step.

    paths: the run's number of each of its paths; firsts: where the cells of each begin, and the end
    of the last. values: a row for each of QUANTITIES. counts: the runs of each path.
    durations: as in `ReducedRank`, with the place in `paths` as path.
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

    def sums(self, quantity: str) -> Integers:
        """Of each of its paths, over all steps."""
        totals: Integers = np.add.reduceat(
            self.values[QUANTITIES.index(quantity)], self.firsts[:-1]
        )
        return totals


class Cells:
    """The cells of all ranks, by rank in `of_ranks`. One thread at a time.

    memory_limit: how much of them stays in memory, such as "256MB" or "1.5GiB".
    """

    def __init__(self, memory_limit: str = "256MB") -> None:
        self._left = _bytes_of(memory_limit)
        self._numbers: dict[str, int] = {}
        self._file: IO[bytes] | None = None
        self.of_ranks: dict[int, RankOfCells] = {}

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, rank: ReducedRank) -> None:
        """A rank without any stage adds nothing. OSError where the temporary file is full."""
        used = np.unique(rank.cells["path"])
        if not len(used):
            return
        paths = [self._number(rank.paths[path]) for path in used]
        order = np.argsort(rank.cells["path"], kind="stable")
        firsts = np.searchsorted(rank.cells["path"][order], used)
        values = np.stack([rank.cells[name][order] for name in QUANTITIES])
        self._left -= values.nbytes
        places = np.searchsorted(used, rank.durations["path"])
        self.of_ranks[rank.metadata.rank] = RankOfCells(
            rank.metadata.rank,
            paths,
            np.append(firsts, len(order)),
            rank.cells["step"][order],
            values if self._left >= 0 else self._in_the_file(values),
            np.add.reduceat(rank.durations["count"], np.searchsorted(places, np.arange(len(used)))),
            {**rank.durations, "path": places},
        )

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


def _bytes_of(size: str) -> int:
    found = SIZE.fullmatch(size.strip())
    if found is None:
        raise ValueError(f"memory_limit must be such as '256MB', not {size!r}")
    factor = UNITS[found[2].upper()]
    if found[3]:
        factor = 1024 ** list(UNITS).index(found[2].upper())
    return int(float(found[1]) * factor)
