"""The run as matrices: a row a rank, a column a step, one matrix a stage and quantity."""

from __future__ import annotations

import numpy as np

from ..verdict.quantiles import median
from ..verdict.run_data import Integers, Matrix
from ..verdict.warmup import warmup_of
from .cells import QUANTITIES, Cells

MOMENTS = slice(QUANTITIES.index("begin_ns"), None)  # the other quantities are durations
KEPT_CELLS = 2_000_000  # of a quantity that are in memory at once; 80 MB for all five


class Grid:
    """What the analyses read. Times are ns since the first stage of the run: exact in a float64 for
    a hundred days.

    ranks, steps: sorted. peers: of each rank the number of the group that does the same work
    (a pipeline stage); ranks are compared within it.
    """

    def __init__(self, cells: Cells, peers: dict[int, int], warmup: int | None) -> None:
        self._read: dict[int, dict[str, Matrix]] = {}  # of the paths read lately
        self.paths = cells.names()
        self._of_ranks = [one for _, one in sorted(cells.of_ranks.items())]
        self.ranks: Integers = np.array([one.rank for one in self._of_ranks], np.int64)
        steps: set[int] = set()
        for one in self._of_ranks:
            steps.update(np.unique(one.steps).tolist())
        self.steps: Integers = np.array(sorted(steps), np.int64)
        self.peers = np.array([peers[rank] for rank in self.ranks.tolist()])
        begins = QUANTITIES.index("begin_ns")
        self._start_ns = min((int(one.values[begins].min()) for one in self._of_ranks), default=0)
        self.begins, self.ends = self._whole_steps()
        if warmup is None:
            found = warmup_of(self.step_ns())
            warmup = found if found < len(self.steps) else 0  # never left: show what there is
        self.warmup = min(warmup, len(self.steps))

    def step_ns(self) -> Matrix:
        """From the first begin to the last end of each step on each rank; NaN where it has none."""
        took: Matrix = self.ends - self.begins
        return took

    def last_steps(self) -> Integers:
        """The last step of each rank."""
        last = np.where(np.isfinite(self.ends), np.arange(len(self.steps)), 0).max(1, initial=0)
        steps: Integers = self.steps[last]
        return steps

    def middle_step_ns(self) -> float:
        """The median of what a step took a rank, without the warm-up; NaN where that is all."""
        return float(median(self.step_ns()[:, self.warmup :]))

    def busy_ns(self, sync: list[int]) -> Matrix:
        """The same without the stages in which ranks wait."""
        busy = self.step_ns()
        for path in sync:
            busy -= np.nan_to_num(self.of(path, "total_ns")[0])
        return busy

    def of(self, path: int, *columns: str) -> list[Matrix]:
        """The matrices of a stage; NaN where a rank did not have it in a step. To be read only."""
        if path not in self._read:
            size = len(self.ranks) * len(self.steps)
            if len(self._read) * size > KEPT_CELLS:
                self._read.clear()
            self._read[path] = dict(zip(QUANTITIES, self._matrices(path), strict=True))
        return [self._read[path][name] for name in columns]

    def _matrices(self, path: int) -> Matrix:
        """Of each quantity a matrix, all in one array, which is large enough for huge pages."""
        found = np.full((len(QUANTITIES), len(self.ranks), len(self.steps)), np.nan)
        for row, one in enumerate(self._of_ranks):
            if path in one.paths:
                cells = one.cells_of(path)
                values = np.array(one.values[:, cells])
                values[MOMENTS] -= self._start_ns
                found[:, row, self._places(one.steps[cells])] = values
        found.flags.writeable = False
        return found

    def _whole_steps(self) -> tuple[Matrix, Matrix]:
        """When each step of each rank began and ended."""
        shape = len(self.ranks), len(self.steps)
        begins, ends = np.full(shape, np.inf), np.full(shape, -np.inf)
        for row, one in enumerate(self._of_ranks):
            places = self._places(one.steps)
            columns = dict(zip(QUANTITIES, one.values, strict=True))
            for path in one.paths:  # each has a step once
                cells = one.cells_of(path)
                at = row, places[cells]
                begins[at] = np.minimum(begins[at], columns["begin_ns"][cells] - self._start_ns)
                ends[at] = np.maximum(ends[at], columns["end_ns"][cells] - self._start_ns)
        missing = np.isinf(begins)
        begins[missing] = ends[missing] = np.nan
        return begins, ends

    def _places(self, steps: Integers) -> Integers:
        places: Integers = np.searchsorted(self.steps, steps)
        return places

    def over_peers(self, matrix: Matrix) -> Matrix:
        """The matrix less the median of a rank's peers in the same step."""
        result = matrix.copy()
        for group in np.unique(self.peers):
            rows = self.peers == group
            result[rows] -= median(matrix[rows], 0)
        return result
