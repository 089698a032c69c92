"""From files to cells and facts, here or on the machines of a cluster."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from .._trace.inputs import FileSet
from .cells import Cells
from .parquet import write_parquet
from .ranks import RankFacts, read_rank
from .reduce import ReducedRank, reduce_rank

__all__ = ["Loaded", "add", "load", "problems_of", "reduced_ranks"]

BATCH = 16  # ranks that go into the database at once
EVER = (-(2**63), 2**63 - 1)
NAMED_AT_MOST = 20


@dataclass
class Loaded:
    """What the files held. problems: what a reader of the report has to know about them."""

    cells: Cells
    facts: dict[int, RankFacts] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def load(
    file_sets: Sequence[FileSet],
    cells: Cells,
    steps: tuple[int, int] = EVER,
    parquet: str | None = None,
) -> Loaded:
    """Reads the files of some ranks into the cells. parquet: a folder for all rows."""
    loaded = Loaded(cells)
    for batch in _batches(reduced_ranks(file_sets, steps, parquet), BATCH):
        add(loaded, batch)
    return loaded


def add(loaded: Loaded, ranks: Sequence[ReducedRank]) -> None:
    loaded.cells.add(ranks)
    for rank in ranks:
        loaded.facts[rank.facts.rank] = rank.facts


def reduced_ranks(
    file_sets: Sequence[FileSet], steps: tuple[int, int], parquet: str | None
) -> Iterator[ReducedRank]:
    """The ranks in order. While one is used the next are read, as many as there are CPUs."""

    def read(file_set: FileSet) -> ReducedRank:
        rank = read_rank(file_set)
        if parquet is not None:
            write_parquet(rank, parquet)
        return reduce_rank(rank, steps)

    count = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(count) as pool:
        reading = deque(pool.submit(read, one) for one in file_sets[: 2 * count])
        for later in itertools.chain(file_sets[2 * count :], [None] * len(reading)):
            rank = reading.popleft().result()
            if later is not None:
                reading.append(pool.submit(read, later))
            yield rank


def _batches(ranks: Iterator[ReducedRank], size: int) -> Iterator[list[ReducedRank]]:
    while batch := list(itertools.islice(ranks, size)):
        yield batch


def problems_of(loaded: Loaded, ranks: set[int] | None) -> list[str]:
    """Ranks without files, of an older run, cut short, with damaged rows or lost records."""
    facts = loaded.facts
    problems = _missing(facts, ranks)
    problems.extend(_of_an_older_run(loaded))
    last = _last_steps(loaded.cells)
    end = max(last.values(), default=0)
    stopped = sorted(rank for rank, step in last.items() if step < end)
    if stopped:
        problems.append(f"{_named(stopped)} ended before step {end}, the last of the run")
    for rank, one in sorted(facts.items()):
        problems.extend(f"rank {rank}: {error}" for error in one.errors)
    for what, chosen in (
        ("rows that could not be understood", [r for r, f in facts.items() if f.bad_rows]),
        ("records that were lost while it ran", [r for r, f in facts.items() if f.dropped]),
        ("a clock that was set while it ran", [r for r, f in facts.items() if f.clock_steps]),
        ("older runs in the same files, which are left out",
         [r for r, f in facts.items() if f.older_runs]),
    ):  # fmt: skip
        if chosen:
            problems.append(f"{_named(sorted(chosen))} with {what}")
    return problems


def _missing(facts: dict[int, RankFacts], ranks: set[int] | None) -> list[str]:
    size = max((one.world_size for one in facts.values()), default=0)
    wanted = range(size) if ranks is None else sorted(ranks)
    count = len(wanted) - sum(rank in wanted for rank in facts)
    missing = (rank for rank in wanted if rank not in facts)  # a damaged size may be any
    shown = list(itertools.islice(missing, NAMED_AT_MOST))
    return [f"{_named(shown, count)} without files"] if shown else []


def _of_an_older_run(loaded: Loaded) -> list[str]:
    """Leaves out ranks whose last row is older than the beginning of the run."""
    facts = {rank: one for rank, one in loaded.facts.items() if one.end_ns}
    if not facts:
        return []
    begin = int(np.median([one.begin_ns for one in facts.values()]))
    old = sorted(rank for rank, one in facts.items() if one.end_ns < begin)
    for rank in old:
        loaded.cells.leave_out(rank)
    return [f"{_named(old)} left out: nothing of the last run is in their files"] if old else []


def _last_steps(cells: Cells) -> dict[int, int]:
    frame = cells.query("SELECT rank, max(step) AS step FROM cells GROUP BY rank")
    return dict(zip(frame["rank"].tolist(), frame["step"].tolist(), strict=True))


def _named(ranks: Sequence[int], count: int | None = None) -> str:
    """count: how many they are, where `ranks` are the first of them only."""
    count = len(ranks) if count is None else count
    shown = ", ".join(map(str, ranks[:NAMED_AT_MOST]))
    more = f" and {count - NAMED_AT_MOST} more" if count > NAMED_AT_MOST else ""
    return f"{'rank' if count == 1 else 'ranks'} {shown}{more}"
