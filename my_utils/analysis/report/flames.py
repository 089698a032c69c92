"""Flame graphs of a report's page: what each stage spends its time in, by a sampled profile."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.ranges import as_ranges, ranges_text
from ..pages.tables import Cell, Column, Table, as_table, integer, percent
from ..process_stacks.profile import (
    NO_STAGE,
    Sample,
    StagesByThread,
    by_stage,
    frame_title,
    function_shares,
    newest_profile,
    outlier_lines,
    samples_in,
    shared_names,
    stages_around,
)
from ..verdict.rank_files import RankStages

STAGES_MAX = 12  # those with most samples
NODES_MAX = 300  # of a stage; those that take most on any rank
RANKS_MAX = 8  # that can be chosen: first those that stand out
PROFILED_MAX = 64  # ranks whose samples are joined with stages
ROWS_OF_STAGE = 15  # of the table
LEAST_SHARE = 0.01

ByRank = Mapping[int, Sequence[Sample]]


@dataclass
class _Node:
    """A function below its callers. parent: its place among the nodes, -1 for none. counts: samples
    of each rank."""

    title: str
    parent: int
    counts: Counter[int] = field(default_factory=Counter)


@dataclass
class Flames:
    """title: of the section. lines: what stands out. data: for the script. table: the same without
    it. problems: what could not be read."""

    title: str
    lines: list[str]
    data: dict[str, Any]
    table: Table
    problems: list[str] = field(default_factory=list)


class Profiled:
    """The newest profile in the log directories among `paths`, and the stages around its samples,
    which are taken from rows that somebody else reads. ranks: only these."""

    def __init__(self, paths: Sequence[str], ranks: Collection[int] | None = None) -> None:
        self._profile = newest_profile([path for path in paths if os.path.isdir(path)], ranks)
        self._records = self._profile.records[:PROFILED_MAX] if self._profile else []
        self._stages: dict[int, StagesByThread] = {}  # by the place of the record

    def take(self, read: RankStages) -> None:
        """Keeps what is needed of a rank. Thread-safe for different ranks."""
        for place, record in enumerate(self._records):
            if record.rank == read.metadata.rank:
                self._stages[place] = stages_around(record, read)

    def flames(self) -> Flames | None:
        """None where there is no profile."""
        if self._profile is None:
            return None
        samples: list[Sample] = []
        for place, record in enumerate(self._records):
            samples += samples_in(record, self._stages.get(place, {}))
        return flames_from(samples, self._profile.problems)


def flames_from(samples: Sequence[Sample], problems: Sequence[str] = ()) -> Flames:
    """samples: one or more, of any ranks."""
    everything = by_stage(samples)
    order = sorted(everything, key=NO_STAGE.__eq__)  # what is in no stage comes last
    stages = {stage: everything[stage] for stage in order[:STAGES_MAX]}
    lines = [line for stage, by_rank in stages.items() for line in outlier_lines(stage, by_rank)]
    ranks = sorted({sample.rank for sample in samples})
    shown = ranges_text(as_ranges(ranks))
    seconds = max(_seconds(samples, rank) for rank in ranks)
    title = (
        f"What the stages spend their time in: rank{'s' if len(ranks) > 1 else ''} {shown}, "
        f"{seconds:.3g} s"
    )
    return Flames(title, lines, _data(stages, ranks), _table(stages), list(problems))


def _seconds(samples: Sequence[Sample], rank: int) -> float:
    times = [sample.time_ns for sample in samples if sample.rank == rank]
    return (max(times) - min(times)) * 1e-9 if times else 0.0


# --- the table ---


def _table(stages: Mapping[str, ByRank]) -> Table:
    columns = [
        Column("stage", left=True), Column("function", left=True),
        *map(Column, ("own", "with calls", "rank with most", "its share", "the others")),
    ]  # fmt: skip
    rows = [row for stage, by_rank in stages.items() for row in _rows(stage, by_rank)]
    note = (
        "Shares of the samples of a stage. A function counts as own where it runs itself, and with "
        "calls where it or what it calls runs. The others: the median of the other ranks."
    )
    return as_table("functions", "Functions by stage", columns, rows, note)


def _rows(stage: str, by_rank: ByRank) -> Iterator[list[Cell]]:
    """The functions that take most, or differ most between ranks. Those that are in every sample
    say nothing."""
    everything = [sample for own in by_rank.values() for sample in own]
    total = len(everything)
    shares = function_shares(everything)
    leaves = Counter(frame_title(sample.frames[-1]) for sample in everything if sample.frames)
    of_rank = {rank: function_shares(own) for rank, own in by_rank.items()}
    most = {name: max(by_rank, key=lambda rank: of_rank[rank].get(name, 0.0)) for name in shares}
    usual = {
        name: [one.get(name, 0.0) for rank, one in of_rank.items() if rank != most[name]]
        for name in shares
    }

    def apart(name: str) -> float:
        others = usual[name]
        return of_rank[most[name]][name] - float(np.median(others)) if others else 0.0

    named = [
        name for name, share in shares.items()
        if share >= LEAST_SHARE and (share < 1 or leaves[name] or apart(name) > 0)
    ]  # fmt: skip
    named.sort(key=lambda name: (-max(leaves[name] / total, apart(name)), name))
    for name in named[:ROWS_OF_STAGE]:
        others = usual[name]
        yield [
            Cell(stage, left=True), Cell(name, left=True), percent(leaves[name] / total),
            percent(shares[name]), integer(most[name]), percent(of_rank[most[name]][name]),
            percent(float(np.median(others))) if others else Cell("", ""),
        ]  # fmt: skip


# --- the graph ---


def _data(stages: Mapping[str, ByRank], ranks: Sequence[int]) -> dict[str, Any]:
    """names: of functions. A node: name, parent, samples of all ranks, of each of `ranks`, and of
    these what the others usually have, in thousandths of their samples."""
    trees = {stage: _tree(by_rank) for stage, by_rank in stages.items()}
    chosen = _outliers_first(stages, trees, ranks)[:RANKS_MAX]
    names: dict[str, int] = {}
    data = []
    for stage, nodes in trees.items():
        by_rank = stages[stage]
        totals = {rank: len(own) for rank, own in by_rank.items()}
        usual = _usual(nodes, totals, chosen)
        rows = [
            [
                names.setdefault(node.title, len(names)), node.parent, node.counts.total(),
                [node.counts[rank] for rank in chosen], usual[at].tolist(),
            ]
            for at, node in enumerate(nodes)
        ]  # fmt: skip
        data.append({
            "name": stage, "samples": sum(totals.values()),
            "of_rank": [totals.get(rank, 0) for rank in chosen], "nodes": rows,
        })  # fmt: skip
    return {"names": list(names), "ranks": chosen, "stages": data}


def _tree(by_rank: ByRank) -> list[_Node]:
    """Callers before what they call. Of the callers that all samples share, only the last stays."""
    stacks = [
        (rank, [frame_title(frame) for frame in sample.frames])
        for rank, own in by_rank.items() for sample in own if sample.frames
    ]  # fmt: skip
    names_of = [names for _, names in stacks]
    # As many as all of them begin with: the first and the last in order share no more.
    skipped = max(shared_names(min(names_of), max(names_of)) - 1, 0) if stacks else 0
    nodes: list[_Node] = []
    places: dict[tuple[int, str], int] = {}
    for rank, names in stacks:
        at = -1
        for name in names[skipped:]:
            place = places.setdefault((at, name), len(nodes))
            if place == len(nodes):
                nodes.append(_Node(name, at))
            at = place
            nodes[at].counts[rank] += 1
    return _largest(nodes, {rank: len(own) for rank, own in by_rank.items()})


def _largest(nodes: list[_Node], totals: Mapping[int, int]) -> list[_Node]:
    """The NODES_MAX that take most on any rank; a caller never takes less than what it calls."""
    most = [max(count / totals[rank] for rank, count in node.counts.items()) for node in nodes]
    order = sorted(range(len(nodes)), key=lambda at: (-most[at], at))[:NODES_MAX]
    places = {at: place for place, at in enumerate(sorted(order))}
    for at in places:
        nodes[at].parent = places.get(nodes[at].parent, -1)
    return [nodes[at] for at in places]


def _usual(
    nodes: Sequence[_Node], totals: Mapping[int, int], chosen: Sequence[int]
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Nodes × chosen ranks: the median share of the other ranks that were in the stage."""
    ranks = list(totals)
    shares = np.array([[node.counts[rank] / totals[rank] for rank in ranks] for node in nodes])
    found = np.zeros((len(nodes), len(chosen)), np.int64)
    for column, rank in enumerate(chosen):
        others = [at for at, other in enumerate(ranks) if other != rank]
        if others and len(nodes):
            found[:, column] = np.rint(1000 * np.median(shares[:, others], axis=1))
    return found


def _outliers_first(
    stages: Mapping[str, ByRank], trees: Mapping[str, Sequence[_Node]], ranks: Sequence[int]
) -> list[int]:
    """By how far a function's share of a stage exceeds that of the other ranks."""
    apart = dict.fromkeys(ranks, 0)
    for stage, nodes in trees.items():
        totals = {rank: len(own) for rank, own in stages[stage].items()}
        present = list(totals)
        usual = _usual(nodes, totals, present)
        for column, rank in enumerate(present):
            for node, others in zip(nodes, usual[:, column].tolist(), strict=True):
                own = round(1000 * node.counts[rank] / totals[rank])
                apart[rank] = max(apart[rank], own - others)
    return sorted(ranks, key=lambda rank: (-(apart[rank] >= 100), -apart[rank], rank))
