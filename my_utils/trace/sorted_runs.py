"""Sorts more entries than fit into memory: sorted runs in temporary files, merged when read.

Internal. Entries are tuples of ints, strings and None, compared as tuples.

>>> entries = SortedRuns(run_length=2)
>>> for number in (5, 3, 4, 1, 2):
...     entries.add((number, "x"))
>>> [number for number, _ in entries]
[1, 2, 3, 4, 5]
>>> entries.close()
"""

from __future__ import annotations

import heapq
import marshal
import tempfile
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


RUN_LENGTH = 200_000  # entries in memory
BLOCK_LENGTH = 2_000  # entries that a run reads ahead


class SortedRuns:
    """Takes entries with `add`, and gives them in order, once. One thread at a time."""

    def __init__(self, run_length: int = RUN_LENGTH) -> None:
        self._run_length = run_length
        self._entries: list[tuple[Any, ...]] = []
        self._runs: list[IO[bytes]] = []

    def add(self, entry: tuple[Any, ...]) -> None:
        """Keeps an entry; OSError when the disk is full."""
        self._entries.append(entry)
        if len(self._entries) >= self._run_length:
            self._spill()

    def _spill(self) -> None:
        self._entries.sort()
        run = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._runs.append(run)
        for begin in range(0, len(self._entries), BLOCK_LENGTH):
            marshal.dump(self._entries[begin : begin + BLOCK_LENGTH], run)
        run.seek(0)
        self._entries = []

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        self._entries.sort()
        return heapq.merge(*map(_blocks, self._runs), self._entries)

    def close(self) -> None:
        """Gives memory and disk back."""
        self._entries = []
        for run in self._runs:
            run.close()
        self._runs = []


def _blocks(run: IO[bytes]) -> Iterator[tuple[Any, ...]]:
    """The entries of one run: a file without a name, written by this process."""
    while True:
        try:
            block = marshal.load(run)
        except EOFError:
            return
        yield from block
