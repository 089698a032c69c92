"""Whom the dumps of generated jobs name: exactly who holds the others up, or nobody for certain."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pickle
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from my_utils.analysis import live
from my_utils.analysis.live.flight_files import Dump, list_dumps, read_dump
from my_utils.analysis.live.waits.causes import find_causes

from ...support.flight_dumps import entry, write_dump
from ...support.hang_jobs import FAULTS, HEALTHY, LAYOUTS, Job

pytestmark = pytest.mark.no_torch

EXACT_LEAST = 0.9


def outcome(layout: str, fault: str, seed: int, folder: Path) -> str:
    """Of two that hold up others, the second may be awaited by nobody yet."""
    job = Job(layout, fault, seed)
    if not job.go():
        return "no hang"
    folder.mkdir()
    written_s = job.write(folder)
    read = [read_dump(rank, path) for rank, path in list_dumps(str(folder / "dump_")).items()]
    dumps = [
        dataclasses.replace(dump, written_s=written_s[dump.rank])
        for dump in read
        if isinstance(dump, Dump)
    ]
    assert len(dumps) == len(written_s)
    causes, _ = find_causes(dumps, job.world, sorted(job.dead) if seed % 2 else [])
    named = {rank for cause in causes if cause.decided for rank in cause.ranks}
    if named == job.culprits or (fault == "two" and named and named <= job.culprits):
        return "exact"
    return "wrong" if named - job.culprits else "not decided"


def outcomes(seeds: Iterable[int], folder: Path, step: int = 1) -> dict[str, str]:
    cases = itertools.product(LAYOUTS, FAULTS, seeds)
    return {
        f"{layout} {fault} {seed}": outcome(layout, fault, seed, folder / f"{number}")
        for number, (layout, fault, seed) in enumerate(itertools.islice(cases, 0, None, step))
    }


def check(found: dict[str, str]) -> None:
    assert not [case for case, result in found.items() if result == "wrong"]
    counts = Counter(found.values())
    assert counts["exact"] >= EXACT_LEAST * (counts.total() - counts["no hang"]), found


def test_a_few_of_each_layout(tmp_path: Path) -> None:
    check(outcomes([1], tmp_path, step=4))


def test_a_dead_rank_without_a_dump_is_named_and_not_who_waits_for_it(tmp_path: Path) -> None:
    """Rank 6 waits for it, in a call that has followed none of the calls before it elsewhere."""
    assert outcome("3d", "dead", 1107, tmp_path / "job") == "exact"


@pytest.mark.parametrize(
    ("layout", "fault", "seed"),
    [
        ("3d", "late", 100),
        ("context", "late, one lost", 500),
        ("3d", "late, early dump", 2),
        ("context", "late, early dump", 301),
    ],
)
def test_who_waits_has_no_other_order_than_ranks_that_stopped_before_it(
    layout: str, fault: str, seed: int, tmp_path: Path
) -> None:
    """In these the innocent half of a pair, or ranks of a ring, have come further than the short
    dumps of ranks that do the same, or a stage of a pipeline has made more calls than two others.
    """
    assert outcome(layout, fault, seed, tmp_path / "job") == "exact"


def test_groups_without_a_description_whose_numbers_differ_from_rank_to_rank(
    tmp_path: Path,
) -> None:
    """So that the pairs of a pipeline and others have one number."""
    job = Job("pairs", "skip send", 209)
    assert job.go()
    for rank, written_s in job.write(tmp_path).items():
        path = tmp_path / f"dump_{rank}"
        dump = pickle.loads(path.read_bytes())
        for one in dump["entries"]:
            one["pg_id"] += rank % 3
        status = dump["pg_status"].items()
        dump["pg_status"] = {str(int(number) + rank % 3): last for number, last in status}
        path.write_bytes(pickle.dumps(dump, protocol=2))
        os.utime(path, (written_s, written_s))
    (tmp_path / "logs").mkdir()
    found = live.snapshot(tmp_path / "logs", flight_recorder=tmp_path / "dump_")
    causes = found["flight_recorder"]["causes"]
    assert {rank for one in causes if one["decided"] for rank in one["ranks"]} <= job.culprits
    assert job.culprits <= {rank for one in causes for rank in one["ranks"]}


@pytest.mark.thorough
def test_many(tmp_path: Path) -> None:
    check(outcomes(range(20), tmp_path))


@pytest.mark.parametrize("fault", HEALTHY)
def test_a_slow_job_names_nobody(fault: str, tmp_path: Path) -> None:
    """One rank pauses before each step, and the others wait for it."""
    for layout in LAYOUTS:
        assert outcome(layout, fault, 2, tmp_path / layout) == "exact"


def _entry(record: int, group: tuple[str, str], seq: int, name: str, size: int) -> dict[str, Any]:
    made = entry(record, name, seq, state="scheduled", group=group, sizes=[[size]])
    return {**made, "input_dtypes": ["BFloat16"]}


def causes_in(folder: Path) -> tuple[list[tuple[list[int], bool]], str]:
    """The causes that `live` names by the dumps in a folder, and its reasons."""
    logs = folder / "logs"
    logs.mkdir()
    causes = live.snapshot(logs, flight_recorder=folder / "trace_")["flight_recorder"]["causes"]
    named = [(list(cause["ranks"]), cause["decided"]) for cause in causes]
    return named, "; ".join(reason for cause in causes for reason in cause["reasons"])


def test_two_ranks_with_different_sizes(tmp_path: Path) -> None:
    for rank, size in ((0, 5000), (1, 4987)):
        call = _entry(4, ("0", "default_pg"), 4, "_reduce_scatter_base", size)
        write_dump(tmp_path, rank, [call], world=2, enqueued={"0": 4})
    named, reasons = causes_in(tmp_path)
    assert named == [([0, 1], False)]
    assert "_reduce_scatter_base of 5000 BFloat16 by rank 0" in reasons
    assert "_reduce_scatter_base of 4987 BFloat16 by rank 1" in reasons


def test_a_lost_dump_beside_one_that_does_not_say_it(tmp_path: Path) -> None:
    for rank in (0, 2):
        call = _entry(9, ("0", "default_pg"), 7, "all_reduce", 64)
        write_dump(tmp_path, rank, [call], enqueued={"0": 7})
    groups = {"0": ("default_pg", [0, 1, 2, 3]), "1": ("ckpt", [1, 0])}
    other = entry(30, "barrier", 5, group=("1", "ckpt"))
    write_dump(tmp_path, 1, [other], groups=groups)
    assert causes_in(tmp_path)[0] == [([1, 3], False)]


def test_a_pair_is_compared_with_its_own_stage(tmp_path: Path) -> None:
    """Rank 0 left out a call; the pair of ranks 2 and 3 shows which, and the pairs of the other
    stage make other calls."""
    stages = {0: ["_all_gather_base", "_reduce_scatter_base"]}
    stages[1] = stages[0][::-1]
    for rank in range(8):
        first = rank - rank % 2
        pair = (str(first // 2 + 1), "tp")
        names = [stages[rank // 4][n % 2] for n in range(30)]
        if rank == 0:
            del names[25]
        last = 26 if rank < 2 else 29
        made = [entry(n, names[n], n + 1, group=pair, sizes=[[4096]]) for n in range(last)]
        if rank < 2:
            made[-1].update(state="scheduled", retired=False)
        else:
            made.append(_entry(29, ("0", "default_pg"), 1, "all_reduce", 1))
        groups = {"0": ("default_pg", [*range(8)]), pair[0]: ("tp", [first, first + 1])}
        write_dump(tmp_path, rank, made, groups=groups, enqueued={"0": int(rank > 1)})
    assert causes_in(tmp_path)[0] == [([0], True)]
