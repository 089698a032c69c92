"""Whom `live` names in hangs of real jobs that `my_utils.auto()` records, by all that a run has:
its rows, its heartbeats and the dumps that it writes itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from my_utils.analysis.live.waits.places import is_odd
from my_utils.core.run_files.state import COLLECTIVES_TAG, FinishedStage, OpenStage, Rank, Thread

from ...support.real_hangs import FAULTS, Jobs, make_job, outcome, started

pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(900)

# Ranks that wait in torch's store are in no stage, as is the one for which they wait.
NOT_SEEN = "store"
EXACT_LEAST = 0.9


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    with started() as found:
        yield found


def check(jobs: Jobs, seeds: Iterable[int], folder: Path) -> None:
    found = {}
    for seed in seeds:
        job = make_job(seed)
        result = outcome(job, jobs.hang(job, folder / f"{seed}"))
        if not (job.layout == NOT_SEEN and result == "left out"):
            found[f"{seed}: {job.fault}, {job.layout}"] = result
    counts = Counter(found.values())
    assert counts["wrong"] == counts["more"] == 0, found
    assert counts["exact"] >= EXACT_LEAST * counts.total(), found


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [5, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 10, 1028))]
)
def test_one_of_a_kind(seed: int, jobs: Jobs, tmp_path: Path) -> None:
    """A skipped send, asleep in a stage, two calls that are swapped, and asleep while the others
    wait in torch's store."""
    check(jobs, [seed], tmp_path)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", [0, 1001])
def test_each_fault_in_several_layouts(first: int, jobs: Jobs, tmp_path: Path) -> None:
    """The second seeds were held back while the rules were made."""
    check(jobs, range(first, first + 3 * len(FAULTS)), tmp_path)


def rank_in(calls: str) -> Rank:
    """A rank that has made these calls, and is in the last one."""
    *finished, newest = calls.split()
    last = [FinishedStage(name, 0, 0, 0.0) for name in reversed(finished)]
    open_ = [OpenStage(newest, 0, 0, 0.0)]
    return Rank(
        label="0", rank=0, worker=0, world_size=2, host="node-a", pid=1, attempt=1,
        state="running", source="journal", beat_age_s=0.0, began_s=None, time_offset_s=0.0,
        clock_ahead_s=None, seen_ns=0, dropped=0,
        threads=[Thread(1, "", COLLECTIVES_TAG, 0, open_, last)],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ("recv send recv send recv", False),
        ("recv send recv send send", True),  # a receive is missing
        ("recv send sum recv send sum recv sum", True),
        ("recv send sum recv sum recv send sum recv", True),  # that was some calls ago
        ("recv send sum recv send more sum recv", True),
        ("sum send sum recv sum send sum recv sum send", False),  # two calls follow the same one
        ("recv", False),
        ("recv send", False),
    ],
)
def test_calls_in_another_order(calls: str, expected: bool) -> None:
    assert is_odd(rank_in(calls)) == expected
