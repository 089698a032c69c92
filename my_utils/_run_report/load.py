"""From files to cells and facts, here or on the machines of a cluster."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .._trace_inputs import FileSet
from .cells import Cells
from .parquet import append_parquet
from .ranks import RankFacts, RankStages, read_ranks

__all__ = ["Loaded", "load", "problems_of"]

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
    for batch in _batches(read_ranks(file_sets), BATCH):
        for rank in batch:
            loaded.facts[rank.facts.rank] = rank.facts
        cells.add(batch, steps)
        if parquet is not None:
            append_parquet(batch, parquet)
    return loaded


def _batches(ranks: Iterable[RankStages], size: int) -> Iterable[list[RankStages]]:
    iterator = iter(ranks)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def problems_of(loaded: Loaded, ranks: set[int] | None) -> list[str]:
    """Ranks without files, of an older run, cut short, with damaged rows or lost records."""
    facts = loaded.facts
    problems = _missing(facts, ranks)
    problems.extend(_of_an_older_run(loaded))
    last = Counter(_last_steps(loaded.cells).values())
    end = max(last, default=0)
    stopped = sorted(rank for rank, step in _last_steps(loaded.cells).items() if step < end)
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
    wanted = set(range(size)) if ranks is None else ranks
    missing = sorted(wanted - set(facts))
    return [f"{_named(missing)} without files"] if missing else []


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


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:NAMED_AT_MOST]))
    more = f" and {len(ranks) - NAMED_AT_MOST} more" if len(ranks) > NAMED_AT_MOST else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"
