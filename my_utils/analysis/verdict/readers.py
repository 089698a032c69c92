"""Ranks read side by side: one pool of threads, whatever is made of their rows.

The engine reads without the interpreter's lock. What Python does with a rank afterwards needs it,
so more threads than a few wait for each other.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

READERS_MAX = 4
TOGETHER_MAX = 16  # ranks that a reader takes at once: handing over costs as much as a small rank
AHEAD = 2  # batches a reader that may wait to be used

Item = TypeVar("Item")
Result = TypeVar("Result")


def read_side_by_side(
    file_sets: Sequence[Item], read: Callable[[Item], Result]
) -> Iterator[Result]:
    """What `read` makes of each, in order. While one is used the next are read. file_sets: of a
    rank each, or of several. read: called by several threads."""
    readers = min(len(os.sched_getaffinity(0)), READERS_MAX)
    together = max(1, min(len(file_sets) // (4 * readers), TOGETHER_MAX))

    def read_batch(at: int) -> list[Result]:
        return [read(one) for one in file_sets[at : at + together]]

    reading: deque[Future[list[Result]]] = deque()
    with ThreadPoolExecutor(readers) as pool:
        for at in range(0, len(file_sets), together):
            reading.append(pool.submit(read_batch, at))
            if len(reading) > AHEAD * readers:
                yield from reading.popleft().result()
        while reading:
            yield from reading.popleft().result()
