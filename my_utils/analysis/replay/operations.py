"""The operations of all ranks in all steps, as columns; only readers know of files."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...core.public import public

Ints: TypeAlias = npt.NDArray[Any]  # of whole numbers
Floats: TypeAlias = npt.NDArray[Any]
Flags: TypeAlias = npt.NDArray[Any]  # of bools

TOGETHER, SEND, RECEIVE = 0, 1, 2  # the sides of a meeting
DAY_NS = 86_400 * 10**9  # what is so far from the rest of a step has a damaged time
WIDTH_MAX = 1 << 40  # of a column whose numbers are counted as they are
END = "end of step"  # the name of a row that marks where a step ends


class Words(dict[Any, int]):
    """Numbers for words, in the order in which they come."""

    def __missing__(self, word: Any) -> int:
        self[word] = len(self)
        return self[word]


@public("my_utils.analysis.why")
@dataclass
class Operations:
    """One row an operation, in any order; all columns have the same length.

    rank, step: numbers. lane: a thread or stream of a rank, in which one operation runs at a time.
    name: an index into `names`. begin_ns, end_ns: on one clock for all ranks of a step.
    meeting: rows with the same number meet; -1 where it meets nobody. side: TOGETHER in a
    collective, SEND or RECEIVE in a point-to-point call.
    stages: the pipeline stage of each rank, hosts: its host, as far as they are known.
    notes: sentences about what the source could not tell. inferred: operations at which ranks meet
    although that was not recorded. num_workers: of the loader of batches, where it is known.
    world_size: of the job, 0 where that is unknown; some of its ranks may not be here.
    marked_ns: of each rank and step the begin and the end that the source itself marks, if it does.
    late_lanes: those of collectives whose ends another thread stamps, often some ms late.

    >>> import numpy as np
    >>> zero = np.zeros(2, np.int64)
    >>> len(Operations(np.array([0, 1]), zero, zero, zero, zero, zero + 9, zero, zero, ("a",)))
    2
    """

    rank: Ints
    lane: Ints
    step: Ints
    name: Ints
    begin_ns: Ints
    end_ns: Ints
    meeting: Ints
    side: Ints
    names: tuple[str, ...]
    stages: dict[int, int] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    inferred: tuple[str, ...] = ()
    num_workers: int | None = None
    world_size: int = 0
    marked_ns: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)
    late_lanes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for column in ("rank", "lane", "step", "name", "meeting", "side"):
            setattr(self, column, in_half(getattr(self, column)))

    def __len__(self) -> int:
        return len(self.rank)

    def kept(self, rows: Flags | Ints | slice) -> Operations:
        """The same with these rows alone."""
        chosen = copy.copy(self)
        for one in COLUMNS:
            setattr(chosen, one, getattr(self, one)[rows])
        return chosen

    def in_order(self) -> Operations:
        """Sorted by step, rank, begin and end."""
        if are_in_order(self.step, self.rank, self.begin_ns, self.end_ns):
            return self
        return self.kept(np.lexsort((self.end_ns, self.begin_ns, self.rank, self.step)))


def are_in_order(*columns: Ints) -> bool:
    """Whether rows are sorted by the first column, those that agree in it by the second one, ..."""
    equal = np.ones(max(len(columns[0]) - 1, 0), np.bool_)
    for column in columns:
        if (equal & (column[1:] < column[:-1])).any():
            return False
        equal &= column[1:] == column[:-1]
    return True


def in_half(values: Ints) -> Ints:
    """In 32 bits where they are enough, with a margin to count on."""
    is_wide = values.dtype.itemsize > 4 and len(values) > 0
    if is_wide and max(abs(int(values.min())), abs(int(values.max()))) >= 1 << 30:
        return values
    return values.astype(np.int32, copy=False)


COLUMNS = ("rank", "lane", "step", "name", "begin_ns", "end_ns", "meeting", "side")


def parts_of(order: Ints, column: Ints) -> list[Ints]:
    """The rows of an order in which the column is sorted, in one part for each of its values.

    >>> [one.tolist() for one in parts_of(np.array([2, 0, 1]), np.array([7, 9, 7]))]
    [[2, 0], [1]]
    """
    cuts = np.flatnonzero(np.diff(column[order])) + 1
    return np.split(order, cuts) if len(order) else []


def number_rows(*columns: Ints) -> tuple[Ints, int]:
    """Rows that agree in all columns get the same number from 0 up, in the order of the columns;
    with how many numbers there are.

    >>> number_rows(np.array([5, 5, 9]), np.array([1, 0, 1]))[0].tolist()
    [1, 0, 2]
    """
    mixed = np.zeros(len(columns[0]), np.int64)
    size = 1
    for column in columns:
        column = column.astype(np.int64, copy=False)
        low = int(column.min(initial=0))
        width = int(column.max(initial=0)) - low + 1
        if width > WIDTH_MAX:
            values, column = np.unique(column, return_inverse=True)
            low, width = 0, max(len(values), 1)
        if size * width > 1 << 62:
            values, mixed = np.unique(mixed, return_inverse=True)
            size = len(values)
        mixed *= width
        mixed += column
        mixed -= low
        size *= width
    if size <= 4 * len(mixed) + 1024:  # few enough to count
        present = np.zeros(size, np.bool_)
        present[mixed] = True
        places = np.cumsum(present) - 1
        return places[mixed], int(present.sum())
    values, found = np.unique(mixed, return_inverse=True)
    return found, len(values)


def count_before(numbers: Ints) -> Ints:
    """How many rows before have the same number, for rows in the order of time.

    >>> count_before(np.array([3, 7, 3, 3])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(order) else order
    lengths = np.diff(np.r_[begins, len(order)])
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order)) - np.repeat(begins, lengths)
    return found
