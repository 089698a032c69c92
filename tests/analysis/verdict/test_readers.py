"""The pool of threads by which ranks are read."""

from __future__ import annotations

import threading

import pytest

from my_utils.analysis.verdict.readers import AHEAD, READERS_MAX, TOGETHER_MAX, read_side_by_side
from my_utils.trace.inputs import FileSet

pytestmark = pytest.mark.no_torch

RANKS = [FileSet(rank) for rank in range(1000)]


@pytest.mark.parametrize("count", [0, 1, 2, 7, 33, 1000])
def test_ranks_come_in_order(count: int) -> None:
    found = list(read_side_by_side(RANKS[:count], lambda one: (one.rank, threading.get_ident())))
    assert [rank for rank, _ in found] == list(range(count))
    assert len({thread for _, thread in found}) <= READERS_MAX
    assert all(thread != threading.get_ident() for _, thread in found)


def test_no_more_is_read_than_is_soon_used() -> None:
    """Rows of all ranks would not fit into memory."""
    begun: list[int] = []

    def read(one: FileSet) -> int:
        begun.append(one.rank)
        return one.rank

    ranks = read_side_by_side(RANKS, read)
    most = (AHEAD * READERS_MAX + 1) * TOGETHER_MAX
    for used, rank in enumerate(ranks):
        assert rank == used and len(begun) <= used + most
    assert len(begun) == len(RANKS)


def test_what_a_reader_raises_is_raised() -> None:
    def read(one: FileSet) -> int:
        if one.rank == 40:
            raise MemoryError("rank 40")
        return one.rank

    with pytest.raises(MemoryError, match="rank 40"):
        list(read_side_by_side(RANKS, read))
