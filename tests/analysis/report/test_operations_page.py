"""The page of what other tools wrote: operations in tables and traces."""

from __future__ import annotations

import csv
import html
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from my_utils.analysis.replay.operations import Operations
from my_utils.analysis.report.run_page import WAITS, run_of_operations

from ...support.plants import case_of
from ...support.replayed import operations_of

pytestmark = pytest.mark.no_torch

RANKS, STEPS, SLOW = 4, 6, 2


def table(path: Path) -> Path:
    """Rank 2 computes for 30 ms and the others for 10; all leave the all-reduce together."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["rank", "step", "name", "begin_ms", "end_ms", "group", "sequence"])
        for step in range(STEPS):
            for rank in range(RANKS):
                begin, done = 40.0 * step, 40.0 * step + (30 if rank == SLOW else 10)
                writer.writerow([rank, step, "forward", begin, done, "", ""])
                writer.writerow([rank, step, "all_reduce", done, 40.0 * step + 35, "world", step])
    return path


def report(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "my_utils", "report", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_page_has_the_verdict_and_what_each_rank_waited(tmp_path: Path) -> None:
    done = report(table(tmp_path / "operations.csv"), "-o", tmp_path / "page.html")
    assert (done.returncode, done.stdout.splitlines()[0][:19]) == (0, "WAITING FOR rank 2 "), done
    page = html.unescape((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "WAITING FOR rank 2" in page and "4 ranks, steps 0 to 5" in page
    assert "Where a step goes: 35 ms on average" in page
    assert page.count("waits 20 ms") == (RANKS - 1) * page.count("waits 0 µs") > 0
    assert "waits for other ranks in meetings" in page


def test_tables_need_a_run_and_that_is_said(tmp_path: Path) -> None:
    path = table(tmp_path / "operations.csv")
    done = report(path, "--csv", tmp_path / "tables")
    assert done.returncode == 2
    assert "only the page is written for" in done.stderr and str(path) in done.stderr
    assert not (tmp_path / "tables").exists()


def test_files_without_operations_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text('{"traceEvents": []}', encoding="utf-8")
    done = report(path, "-o", tmp_path / "page.html")
    assert done.returncode == 1
    assert f"{path}: no ProfilerStep# in it" in done.stderr
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("layout", ["ddp", "tp", "pp", "3d"])
def test_work_and_waits_are_the_time_of_all_operations(layout: str) -> None:
    operations = operations_of(case_of(layout, "slow rank", 0.3, 8, 10, seed=4).program)
    run = run_of_operations(operations)
    took = np.bincount(operations.rank, operations.end_ns - operations.begin_ns)
    assert run.totals.sum((1, 2)) == pytest.approx(took, rel=1e-6)
    assert (run.totals >= -1.0).all()
    assert run.totals[..., run.stages.index(WAITS)].any()
    assert (run.step_ns > 0).all()


def test_what_is_waited_for_at_once_counts_once() -> None:
    """Rank 0 calls for two buckets, each in a separate lane, 38 and 40 ns before rank 1 does."""
    rows = [  # rank, lane, name, begin, end, meeting
        (0, 0, 0, 0, 10, -1), (0, 1, 1, 10, 51, 0), (0, 2, 1, 12, 53, 1), (0, 0, 0, 53, 60, -1),
        (1, 0, 0, 0, 50, -1), (1, 1, 1, 50, 51, 0), (1, 2, 1, 50, 53, 1), (1, 0, 0, 53, 60, -1),
    ]  # fmt: skip
    steps = 4
    rank, lane, name, begin, end, meeting = np.array(rows * steps, np.int64).T
    step = np.repeat(np.arange(steps), len(rows))
    meeting = np.where(meeting >= 0, meeting + 2 * step, -1)
    shift = 100 * step
    operations = Operations(
        rank, lane, step, name, begin + shift, end + shift, meeting, 0 * rank, ("work", "reduce")
    )
    run = run_of_operations(operations)
    waits = run.totals[..., run.stages.index(WAITS)]
    assert waits == pytest.approx(np.repeat([[40.0], [0.0]], steps, axis=1), abs=1e-6)
    assert (run.step_ns >= run.totals.sum(2) - 2.0).all(), run.totals


def test_many_names_become_one() -> None:
    names = tuple(f"kernel {number}" for number in range(40))
    number = np.arange(40)
    begin = number * 1000
    zero = np.zeros(40, np.int64)
    run = run_of_operations(
        Operations(zero, zero, zero, number, begin, begin + number + 1, zero - 1, zero, names)
    )
    assert run.stages == [*(f"kernel {at}" for at in range(39, 15, -1)), "other operations", WAITS]
    others = run.totals[0, 0, run.stages.index("other operations")]
    assert others == sum(range(1, 17))
