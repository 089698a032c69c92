"""Two sides of runs, read from their files and compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from .comparison import compare
from .load import NothingToCompare, RunSteps, load_steps
from .result import Difference

LOADED_AT_ONCE = 2


@dataclass(frozen=True)
class Sides:
    """a, b: the runs as `compare` leaves them; none where one could not be read."""

    found: Difference
    a: Sequence[RunSteps] = ()
    b: Sequence[RunSteps] = ()


def compare_files(
    a: Iterable[str],
    b: Iterable[str],
    *,
    ranks: set[int] | None = None,
    steps: tuple[int, int] | None = None,
    warmup: int | None = None,
    renames: dict[str, str] | None = None,
) -> Sides:
    """B against A from their files; "not compared" with the reason where a run cannot be read.

    a, b: the runs of each side. renames: stages of A by their names in B.
    """
    named = [(path, renames) for path in a], [(path, None) for path in b]

    def load(one: tuple[str, dict[str, str] | None]) -> RunSteps:
        return load_steps(one[0], ranks, steps, one[1])

    try:
        with ThreadPoolExecutor(LOADED_AT_ONCE) as pool:
            first, second = (list(pool.map(load, side)) for side in named)
    except NothingToCompare as error:
        paths = [tuple(path for path, _ in side) for side in named]
        return Sides(Difference("not compared", str(error), a_paths=paths[0], b_paths=paths[1]))
    return Sides(compare(first, second, warmup), first, second)
