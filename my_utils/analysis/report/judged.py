"""The run of a report as arrays, with its verdict."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..replay.run_answer import Answer, answer_on
from ..verdict.load import NothingToJudge, load_run, make_run
from ..verdict.rank_files import RankStages
from ..verdict.result import Verdict
from ..verdict.run_data import Integers, RunData, SyncPoint
from ..verdict.run_ranks import RunRanks, ranks_have
from ..verdict.shown import about
from ..verdict.sync import Meetings, find_meetings

NONE_ASKED_FOR = "no rank of the input is among those asked for"


class Source(NamedTuple):
    """What a report is read from, and of which ranks it is: the arguments of `analyze`."""

    paths: tuple[str, ...]
    ranks: frozenset[int] | None = None
    steps: tuple[int, int] | None = None
    warmup: int | None = None
    sync: re.Pattern[str] | None = None


def judged(
    source: Source, on_rank: Callable[[RankStages], None] | None = None
) -> tuple[RunData, Answer]:
    """Reads and judges it whole; the verdict is what of it concerns the source's ranks. on_rank:
    called with the rows of each rank, by several threads. Raises NothingToJudge, a ValueError,
    where none of these ranks can be read."""
    return _judged(load_run(source.paths, None, source.steps, on_rank=on_rank), source)


def judge_ranks(source: Source, ranks: RunRanks, problems: Sequence[str]) -> tuple[RunData, Answer]:
    """The same of all ranks, which have been read, and whose cells are used up. problems: what was
    wrong with their files."""
    return _judged(make_run(ranks, problems, source.paths, None, source.steps), source)


def rows_shown(run: RunData, ranks: Collection[int] | None) -> Integers:
    """The rows of these ranks, of all for None."""
    wanted = run.ranks if ranks is None else sorted(ranks)
    rows: Integers = np.flatnonzero(np.isin(run.ranks, wanted))
    return rows


def of_rows(run: RunData, rows: Integers) -> RunData:
    """The ranks in these rows, without what only a judge of the run needs."""
    if len(rows) == len(run.ranks):
        return run
    hosts = [run.hosts[row] for row in rows.tolist()] if len(run.hosts) else []
    counters = {name: values[rows] for name, values in run.counters.items()}
    return replace(
        run, ranks=run.ranks[rows], hosts=hosts, begins=run.begins[rows], ends=run.ends[rows],
        totals=run.totals[rows], step_begins=run.step_begins[rows], step_ns=run.step_ns[rows],
        peers=None if run.peers is None else run.peers[rows], counters=counters,
        gpu=None, begins_anew=None, longest_ns=None, ready=None, recorded=(),
    )  # fmt: skip


def judged_steps(run: RunData, verdict: Verdict) -> RunData:
    """The run in the steps that the verdict judges; in all steps but the warm-up where it judges
    none. Without counters."""
    first, last = verdict.first_step, verdict.last_step
    columns = np.arange(min(verdict.warmup, len(run.steps) - 1), len(run.steps))
    if first is not None and last is not None:
        here = (run.steps >= first) & (run.steps <= last) & np.isfinite(run.step_ns).all(0)
        columns = np.flatnonzero(here) if here.any() else columns
    return replace(
        run, steps=run.steps[columns], begins=run.begins[:, columns], ends=run.ends[:, columns],
        totals=run.totals[:, columns], step_begins=run.step_begins[:, columns],
        step_ns=run.step_ns[:, columns], counters={}, gpu=None, begins_anew=None,
    )  # fmt: skip


def meetings_in(run: RunData, warmup: int) -> Meetings:
    """Where ranks meet, by the rules of the verdict. warmup: steps that do not count."""
    columns = np.flatnonzero(np.isfinite(run.step_ns).all(0)) if run.step_ns.size else np.arange(0)
    return find_meetings(run, columns[warmup:])


def _judged(run: RunData, source: Source) -> tuple[RunData, Answer]:
    if source.sync is not None:
        named = (stage for stage in run.stages if source.sync.search(stage))
        run.sync_points = [SyncPoint(stage) for stage in named]
    answer = answer_on(run, source.warmup)
    if source.ranks is None:
        return run, answer
    there = run.ranks.tolist()
    if source.ranks.isdisjoint(there):
        raise NothingToJudge(NONE_ASKED_FOR)
    if unknown := [one for one in source.ranks.difference(there) if one >= run.world_size]:
        run.problems = [*run.problems, f"{ranks_have(unknown)} no files"]
    return run, answer._replace(verdict=about(answer.verdict, source.ranks, there))


def sync_pattern(text: str | None) -> re.Pattern[str] | None:
    """The argument `sync`. Raises ValueError for what is not a regular expression."""
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise ValueError(f"sync is not a regular expression: {error}: {text!r}") from None
