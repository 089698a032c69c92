"""The ledger of a device out of a database of Nsight Systems: that of a trace of the same work, and
within bounds for any file."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from my_utils.analysis.gpu_trace.breakdown import COMPUTE, IN_PYTHON, LAUNCHED, ROWS, break_down
from my_utils.analysis.gpu_trace.files import breakdowns_in
from my_utils.analysis.gpu_trace.kinds import COMMUNICATION, COPIES, FILLS
from my_utils.analysis.replay.read_nsys import MEMCPY, MEMSET, TABLES
from my_utils.cli.diff import main as diff
from my_utils.cli.why import main

from ...conftest import ROOT
from ...support.schemas import loads_checked
from .test_breakdown import Event, by_the_clock, device_event, random_events, slice_of

pytestmark = pytest.mark.no_torch

NSYS = ROOT.parent / "shared" / "corpus" / "nsys"
PROCESS = 3 << 24
TABLES_OF_EVENTS = {
    "kernel": "CUPTI_ACTIVITY_KIND_KERNEL", "gpu_memcpy": MEMCPY, "gpu_memset": MEMSET,
}  # fmt: skip


def database_of(path: Path, events: list[Event], process: int = PROCESS) -> str:
    """The events of a trace as Nsight Systems writes them: ns, names in one table."""
    names: dict[str, int] = {}
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE StringIds (id, value)")
        columns = "start, end, deviceId, streamId, correlationId, globalPid"
        file.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({columns}, shortName)")
        file.execute(f"CREATE TABLE {MEMCPY} ({columns}, copyKind)")
        file.execute(f"CREATE TABLE {MEMSET} ({columns})")
        file.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME "
            "(start, end, correlationId, globalTid, nameId)"
        )
        file.execute("CREATE TABLE NVTX_EVENTS (start, end, text, textId, globalTid)")
        for table, row in rows_of(events, names, process):
            marks = ", ".join("?" * len(row))
            file.execute(f"INSERT INTO {table} VALUES ({marks})", row)
        for text, number in names.items():
            file.execute("INSERT INTO StringIds VALUES (?, ?)", (number, text))
        file.commit()
    return str(path)


def rows_of(
    events: list[Event], names: dict[str, int], process: int
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for one in events:
        begin = round(1000 * one["ts"])
        end, args, name = begin + round(1000 * one["dur"]), one["args"], str(one["name"])
        number = names.setdefault(name, len(names))
        thread = process + one["tid"]
        if one["cat"] in TABLES_OF_EVENTS:
            row = (begin, end, args.get("device", 0), 7, args.get("correlation", -1), process)
            last = {"kernel": (number,), "gpu_memcpy": (1,), "gpu_memset": ()}[one["cat"]]
            yield TABLES_OF_EVENTS[one["cat"]], row + last
        elif one["cat"] == "cuda_runtime":
            call = names.setdefault(f"{name}_v3020", len(names))
            correlation = args.get("correlation", 10**9)
            yield "CUPTI_ACTIVITY_KIND_RUNTIME", (begin, end, correlation, thread, call)
        elif begin % 2:
            yield "NVTX_EVENTS", (begin, end, f"{name}, op_id = {begin}", None, thread)
        else:
            yield "NVTX_EVENTS", (begin, end, None, number, thread)


@pytest.mark.parametrize("process", [PROCESS, 0])
@pytest.mark.parametrize("seed", range(30))
def test_each_nanosecond_is_in_the_row_of_a_clock(seed: int, process: int, tmp_path: Path) -> None:
    events = random_events(random.Random(seed))
    (one,) = break_down(database_of(tmp_path / "run.sqlite", events, process))
    assert one.rows == by_the_clock(events)
    assert sum(one.rows.values()) == one.span_ns
    assert one.events == sum(event["cat"] in TABLES_OF_EVENTS for event in events)


def test_a_device_that_only_copies(tmp_path: Path) -> None:
    events = [device_event("Memcpy HtoD", 0, 10), device_event("Memset (Device)", 10, 12)]
    (one,) = break_down(database_of(tmp_path / "run.sqlite", events))
    assert (one.rows[COPIES], one.rows[FILLS], one.longest, one.launch_ns) == (10, 2, [], None)


def test_ranges_of_modules_are_no_operators(tmp_path: Path) -> None:
    """They are around Python, too: a step, a forward, FSDP's own."""
    gemm = "sm80_xmma_gemm_f16"
    events = [
        device_event(gemm, 0, 10, correlation=1),
        slice_of("cuda_runtime", "cudaLaunchKernel", 90, 95, correlation=2),
        device_event(gemm, 100, 110, correlation=2),
    ]
    for name in ("forward", "step 3", "FSDP::pre_forward (layers.0)", "ProfilerStep#4"):
        events.append(slice_of("cpu_op", name, 0, 100))
    (one,) = break_down(database_of(tmp_path / "run.sqlite", events))
    assert one.rows[IN_PYTHON] == 80 and one.rows[LAUNCHED] == 10
    assert one.steps == 2 and one.launch_ns == (10, 10)


def test_why_and_diff_take_a_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for name, took in (("a", 100), ("b", 300)):
        events = [
            device_event("sm80_xmma_gemm_f16", 0, took),
            device_event("Memcpy HtoD", 500, 520, device=1),
        ]
        paths.append(database_of(tmp_path / f"{name}.sqlite", events))
    main([paths[0], "--json", "--ledger"])
    first, second = loads_checked("why", capsys.readouterr().out)["devices"]
    assert (first["device"], second["device"]) == (0, 1)
    rows = {row["row"]: row["ns"] for row in [*first["rows"], *second["rows"]] if row["ns"]}
    assert rows == {"matmul": 100, "copies": 20}
    assert diff(paths) == 0
    assert capsys.readouterr().out.startswith("B takes a device ")


@pytest.mark.parametrize("table", TABLES)
def test_a_view_without_an_end_is_refused(tmp_path: Path, table: str) -> None:
    path = database_of(tmp_path / "run.sqlite", [device_event("flash_fwd", 0, 9)])
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute(f"DROP TABLE IF EXISTS {table}")
        file.execute(
            f"CREATE VIEW {table} AS WITH RECURSIVE endless (id) AS "
            "(SELECT 1 UNION ALL SELECT id + 1 FROM endless) "
            "SELECT id, max(id) AS start FROM endless"
        )
    found, (problem,) = breakdowns_in([path])
    assert not found and f"not an export of Nsight Systems: {table} is a view" in problem


def test_rows_without_whole_numbers_are_left_out(tmp_path: Path) -> None:
    path = database_of(tmp_path / "run.sqlite", [device_event("flash_fwd", 0, 9)])
    broken = [(5, "x"), (None, 9), (9, 5), (1.5, 3), (-4, 3), (0, 1 << 63 - 1)]
    with contextlib.closing(sqlite3.connect(path)) as file:
        for begin, end in broken:
            file.execute(f"INSERT INTO {MEMSET} VALUES (?, ?, 0, 7, 1, 1)", (begin, end))
        file.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 'x', 'y', 'z', NULL), "
            "(3, 1, 1, 1, 'n')"
        )
        file.execute("INSERT INTO NVTX_EVENTS VALUES (1, 9, x'00ff', 'a', 'b')")
        file.commit()
    ((one,), problems) = breakdowns_in([path])
    assert one.events == 1 and one.rows["attention"] == one.span_ns == 9
    assert problems == [f"{path}: {len(broken)} events are left out: they are damaged"]


def judged_as_json(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([str(path), "--json"]) == 4
    return dict(loads_checked("why", capsys.readouterr().out))


@pytest.mark.parametrize("content", [b"SQLite format 3\0 and nothing", b"nothing"])
def test_other_files_have_one_reason(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.sqlite").write_bytes(content)
    path = tmp_path / "a.sqlite"
    found, problems = breakdowns_in([str(path)])
    assert not found and len(problems) == 1 and str(path) in problems[0]
    verdict = judged_as_json(path, capsys)
    assert verdict["reason"].startswith(f"{path}: not a") and verdict["notes"] == []


@pytest.mark.skipif(not NSYS.is_dir(), reason=f"corpus of other people's databases not in {NSYS}")
@pytest.mark.parametrize("name", ["h100_2gpu_1s", "healthy_1pct", "healthy_judged_1pct"])
def test_against_the_database(name: str) -> None:
    """All time, and that in which anything runs, as SQL adds it up."""
    path = NSYS / f"{name}.sqlite"
    ((*devices,), problems) = breakdowns_in([str(path)])
    assert devices and not problems
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as file:
        there = {row[0] for row in file.execute("SELECT name FROM sqlite_master")}
        tables = [one for one in TABLES_OF_EVENTS.values() if one in there]
        for one in devices:
            spans = sorted(
                span
                for table in tables
                for span in file.execute(
                    f"SELECT start, end FROM {table} WHERE deviceId = ?", (one.device,)
                )
            )
            busy, last = 0, spans[0][0]
            for begin, end in spans:
                busy, last = busy + max(end - max(begin, last), 0), max(last, end)
            assert one.events == len(spans) and one.span_ns == last - spans[0][0]
            rows = (*COMPUTE, COMMUNICATION, COPIES)
            assert FILLS in rows and sum(one.rows[row] for row in rows) == busy
            assert sum(one.rows[row] for row in ROWS) == one.span_ns


def test_a_kernel_is_of_the_kind_of_its_whole_name(tmp_path: Path) -> None:
    """The short one is that of a template: Kernel2 for all of CUTLASS."""
    events = [device_event("Kernel2", 0, 60), device_event("reduce_kernel", 60, 100)]
    path = database_of(tmp_path / "run.sqlite", events)
    product = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3>(T1)"
    loss = "void reduce_kernel<512, 1, nll_loss_forward>(T3)"
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN demangledName")
        file.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = 100 + shortName")
        rows = ((100, product), (101, loss))
        file.executemany("INSERT INTO StringIds VALUES (?, ?)", rows)
        file.commit()
    (one,) = break_down(path)
    assert (one.rows["matmul"], one.rows["softmax and loss"]) == (60, 40)
    assert [kernel.name for kernel in one.longest] == [product, loss]
