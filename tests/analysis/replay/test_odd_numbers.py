"""Numbers, types and files that no tool writes: what is good is read, the rest is said."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import warnings
from pathlib import Path

import pytest

from my_utils.analysis.replay.inputs import verdict_of

from ...support.torch_traces import slice_of
from .test_read_nsys import database
from .test_read_traces import device_trace, write_trace

pytestmark = pytest.mark.no_torch

HUGE = str(2**70)
EXPONENT = 1e308  # stands for a number whose digits take hours to write out
ODD_EVENTS = [
    slice_of("user_annotation", f"ProfilerStep#{HUGE}", 0, 9),
    slice_of("user_annotation", "ProfilerStep#²", 0, 9),
    slice_of("kernel", "gemm", 0, 9, stream=2**70),
    slice_of("kernel", "gemm", 0, 9, correlation=-(2**70)),
    slice_of("kernel", "gemm", 1e300, 2e300),
    slice_of("cuda_runtime", "launch", 0, 9, correlation=None),
    slice_of("cuda_runtime", "launch", 0, 9, correlation="x"),
    slice_of("cuda_runtime", "launch", 0, 9, correlation=EXPONENT),
    {**slice_of("kernel", "gemm", 0, 9), "ts": EXPONENT},
    {**slice_of("kernel", "gemm", 0, 9), "dur": -EXPONENT},
    {**slice_of("kernel", "gemm", 0, 9), "ts": "1" * 100},
    {**slice_of("kernel", "gemm", 0, 9), "dur": True},
    slice_of("kernel", "gemm", 0, 9, tid=[1]),
]


def test_events_of_a_trace_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    for rank in range(2):
        odd = [*ODD_EVENTS, slice_of("kernel", "ncclX", 0, 9, **{"Process Group Ranks": ["..."]})]
        write_trace(tmp_path, rank, device_trace(rank, 2, slow=1) + odd * (rank == 1), 2)
    path = tmp_path / "rank-1.pt.trace.json.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    assert text.count(str(EXPONENT)) == 3
    path.write_bytes(gzip.compress(text.replace(str(EXPONENT), "1e9999999").encode()))
    os.mkfifo(tmp_path / "rank-2.json")
    verdict = verdict_of([str(tmp_path)])
    assert verdict.findings[0].ranks == (1,), verdict
    assert any(f"{len(ODD_EVENTS)} events are left out" in note for note in verdict.notes)


def test_steps_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    for rank in range(2):
        step = {**slice_of("user_annotation", "ProfilerStep#1", 0, 9), "ts": "soon"}
        (tmp_path / f"rank-{rank}.json").write_text(json.dumps({"traceEvents": [step] * 4}))
    verdict = verdict_of([str(tmp_path)])
    assert verdict.status == "not judged" and verdict.reason is not None
    assert (
        "rank-0.json: no ProfilerStep# in it; 4 events are left out: they are damaged"
        in verdict.reason
    )


def test_a_rank_that_no_job_has_is_not_taken_from_a_trace(tmp_path: Path) -> None:
    for rank in range(2):
        info = {"rank": 2**70}
        whole = {"distributedInfo": info, "traceEvents": device_trace(rank, 2, slow=1)}
        (tmp_path / f"rank-{rank}.json").write_text(json.dumps(whole))
    assert verdict_of([str(tmp_path)]).findings[0].ranks == (1,)


def test_nor_from_its_name(tmp_path: Path) -> None:
    for rank in range(2):
        whole = {"traceEvents": device_trace(rank, 2, slow=1)}
        (tmp_path / f"rank2024010112345678901{rank}.json").write_text(json.dumps(whole))
    assert verdict_of([str(tmp_path)]).findings[0].ranks == (1,)


def test_a_collective_that_takes_no_time_is_no_wait(tmp_path: Path) -> None:
    """That of the last rank ends with the slice that called it."""
    for rank in range(2):
        events = []
        for begin in range(0, 6000, 1000):
            came = begin + (900 if rank == 1 else 600)
            events += [
                slice_of("user_annotation", f"ProfilerStep#{begin // 1000}", begin, begin + 1000),
                slice_of("cpu_op", "aten::mm", begin, came),
                slice_of("cpu_op", "gloo:all_reduce", came, begin + 900, tid=2,
                         **{"Process Group Ranks": "[0, 1]"}),
            ]  # fmt: skip
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": events}))
    verdict = verdict_of([str(tmp_path)])
    assert verdict.status == "found" and verdict.findings[0].ranks == (1,), verdict


def test_kernels_of_a_database_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    path = database(tmp_path / "run.sqlite", slow=1, ranges=True)
    file = sqlite3.connect(path)
    odd = [(None, 1, 0, 7), (0, 1, "x", 7), (0, 1e300, 0, 7), (0, 1, 0, None), (2**63 - 1, 1, 0, 7)]
    file.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, 0, 'p', 0)", odd)
    steps = [(0, 9, f"step {'9' * 5000}"), ("x", 9, "step 1"), (0, b"x", "step 2")]
    file.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, NULL, 'x')", steps)
    file.commit()
    file.close()
    verdict = verdict_of([path])
    assert verdict.findings[0].ranks == (1,), verdict
    assert any("5 kernels without whole numbers" in note for note in verdict.notes)


@pytest.mark.parametrize("column", range(5))
@pytest.mark.parametrize("value", [HUGE, "1e300", "9" * 5000, str(2**63 - 1), "x" * 200_000])
def test_a_number_of_a_table_that_is_none_is_said(tmp_path: Path, column: int, value: str) -> None:
    rows = [["0", str(step), "a", str(step * 10), str(step * 10 + 9)] for step in range(5)]
    rows[2][column] = value
    lines = ["rank,step,name,begin_ns,end_ns", *map(",".join, rows)]
    (tmp_path / "run.csv").write_text("\n".join(lines))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verdict = verdict_of([str(tmp_path / "run.csv")])
    if column != 2 or len(value) > 131_072:
        assert verdict.status == "not judged" and verdict.reason, verdict


@pytest.mark.parametrize("column", range(7))
def test_a_number_of_megatrons_table_that_is_none_is_said(tmp_path: Path, column: int) -> None:
    names = ["rank", "step", "start_ts", "duration", "stage", "dp_rank", "optype"]
    rows = [["0", str(step), str(step), "0.5", "0", "0", "forward"] for step in range(5)]
    rows[2][column] = "1e300"
    (tmp_path / "run.csv").write_text("\n".join(map(",".join, [names, *rows])))
    verdict = verdict_of([str(tmp_path / "run.csv")])
    assert (verdict.status == "not judged") == (column < 6), verdict


def test_steps_that_are_far_apart_are_judged(tmp_path: Path) -> None:
    rows = [
        [rank, step, "a", at * 10, at * 10 + 9]
        for at, step in enumerate((0, 1, 2, 3, 2**61))
        for rank in (0, 2**20 - 1)
    ]
    lines = ["rank,step,name,begin_ns,end_ns", *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "run.csv").write_text("\n".join(lines))
    verdict = verdict_of([str(tmp_path / "run.csv")])
    assert (verdict.judged_ranks, verdict.last_step) == (2, 2**61), verdict
