"""Databases of Nsight Systems: steps by NVTX ranges, or by the kernel that comes most evenly."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from my_utils.analysis.replay.inputs import read_operations, verdict_of
from my_utils.analysis.replay.operations import END, Operations
from my_utils.analysis.replay.read_nsys import MEMCPY, TABLES
from my_utils.analysis.replay.result import ReplayVerdict

from ...conftest import ROOT

pytestmark = pytest.mark.no_torch

NSYS = ROOT.parent / "shared" / "corpus" / "nsys"


def database(path: Path, slow: int, ranges: bool) -> str:
    """Two devices of one process each; that of the slow one multiplies for 30 ms and not 20."""
    file = sqlite3.connect(path)
    file.execute("CREATE TABLE StringIds (id, value)")
    names = ["gemm", "ncclDevKernel_AllReduce"]
    file.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names))
    file.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL "
        "(start, end, deviceId, streamId, correlationId, globalPid, shortName)"
    )
    file.execute("CREATE TABLE NVTX_EVENTS (start, end, text, textId, globalTid)")
    for device in range(2):
        process = (device + 1) << 24
        for step in range(6):
            begin = step * 40_000_000
            ends = begin + (35_000_000 if device == slow else 25_000_000)
            rows = [(begin + 5_000_000, ends, device, 7, 0, process, 0),
                    (ends, begin + 38_000_000, device, 9, 0, process, 1)]  # fmt: skip
            file.executemany(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", rows
            )
            if ranges:
                row = (begin, begin + 40_000_000, f"step {step}", None, process + 5)
                file.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?)", row)
    file.commit()
    file.close()
    return str(path)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_device_that_computes_longer_is_named(tmp_path: Path, ranges: bool) -> None:
    verdict = verdict_of([database(tmp_path / "run.sqlite", slow=1, ranges=ranges)])
    assert verdict.findings[0].ranks == (1,), verdict.lines()
    assert verdict.findings[0].saves_ns_a_step == pytest.approx(10e6, rel=0.02)
    assert any("no NVTX range marks steps" in note for note in verdict.notes) is not ranges


@pytest.mark.parametrize("ranges", [True, False])
def test_a_step_has_the_time_in_which_its_device_is_idle(tmp_path: Path, ranges: bool) -> None:
    """Kernels run 33 of its 40 ms."""
    verdict = verdict_of([database(tmp_path / "run.sqlite", slow=-1, ranges=ranges)])
    assert verdict.status == "ok", verdict.lines()
    assert verdict.step_ns == pytest.approx(40e6, rel=0.001)


@pytest.mark.parametrize("ranges", [True, False])
def test_copies_are_operations(tmp_path: Path, ranges: bool) -> None:
    """As they are in traces. They fill the 5 ms before the kernels of each step, two a step."""
    path = database(tmp_path / "run.sqlite", slow=-1, ranges=ranges)
    rows = [
        (begin + part * 2_500_000 + 100, begin + (part + 1) * 2_500_000, device, 7, kind)
        for device in range(2)
        for begin in range(0, 240_000_000, 40_000_000)
        for part, kind in enumerate((1, 2))
    ]
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute(f"CREATE TABLE {MEMCPY} (start, end, deviceId, streamId, copyKind)")
        file.executemany(f"INSERT INTO {MEMCPY} VALUES (?, ?, ?, ?, ?)", rows)
        file.commit()
    operations = read_operations(path)
    assert {"Memcpy HtoD", "Memcpy DtoH"} <= set(operations.names)
    verdict = verdict_of([path])
    assert verdict.step_ns == pytest.approx(40e6, rel=0.001)
    assert isinstance(verdict, ReplayVerdict) and verdict.slowdown is not None
    assert verdict.slowdown.busy_ns == pytest.approx(38e6, rel=0.01)


def test_files_that_name_their_ranks_keep_them(tmp_path: Path) -> None:
    """rank10 comes before rank2 in the alphabet."""
    for rank in (0, 2, 10):
        path = database(tmp_path / f"rank{rank}.sqlite", slow=1 if rank == 2 else -1, ranges=True)
        with contextlib.closing(sqlite3.connect(path)) as file:
            file.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE deviceId = 0")
            file.commit()
    operations = read_operations(str(tmp_path))
    assert sorted(set(operations.rank.tolist())) == [0, 2, 10]
    verdict = verdict_of([str(tmp_path)])
    assert verdict.findings[0].ranks == (2,), verdict.lines()


@pytest.mark.skipif(not NSYS.is_dir(), reason=f"corpus of other people's databases not in {NSYS}")
def test_healthy_databases_of_another_project_accuse_nobody() -> None:
    paths = sorted(NSYS.glob("*.sqlite"))
    assert paths
    for path in paths:
        verdict = verdict_of([str(path)])
        assert verdict.status == "ok", verdict.lines()


@pytest.mark.parametrize("table", TABLES)
def test_a_view_without_an_end_is_refused(tmp_path: Path, table: str) -> None:
    path = database(tmp_path / "run.sqlite", slow=1, ranges=True)
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute(f"DROP TABLE IF EXISTS {table}")
        file.execute(
            f"CREATE VIEW {table.upper()} AS WITH RECURSIVE endless (id) AS "
            "(SELECT 1 UNION ALL SELECT id + 1 FROM endless) "
            "SELECT id, id AS value, 1 AS start, 2 AS end, 0 AS deviceId, 0 AS streamId, "
            "0 AS correlationId, 0 AS globalPid, 0 AS globalTid, 0 AS shortName, '' AS text, "
            "0 AS textId, max(id) AS utcEpochNs FROM endless"
        )
    verdict = verdict_of([path])
    assert str(verdict.reason).endswith(f"not an export of Nsight Systems: {table} is a view")


def filled(path: Path, columns: str = "", launches: int = 1) -> str:
    """A database whose kernels each have their launches; columns: further ones of its kernels."""
    with contextlib.closing(sqlite3.connect(database(path, slow=1, ranges=True))) as file:
        file.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = rowid")
        file.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, correlationId, globalTid)")
        for late in range(launches):
            file.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT start - 10 + ?, rowid, "
                "globalPid + 5 FROM CUPTI_ACTIVITY_KIND_KERNEL",
                (late,),
            )
        if columns:
            file.execute("PRAGMA writable_schema = 1")
            file.execute(
                "UPDATE sqlite_master SET sql = replace(sql, 'shortName', 'shortName, ' || ?)",
                (columns,),
            )
        file.commit()
    return str(path)


def kernels_of(path: str) -> Operations:
    """Without the ends of steps."""
    found = read_operations(path)
    return found.kept(found.name != found.names.index(END))


def test_a_kernel_has_one_launch(tmp_path: Path) -> None:
    once = kernels_of(filled(tmp_path / "once.sqlite"))
    twice = kernels_of(filled(tmp_path / "twice.sqlite", launches=2))
    assert len(once) == len(twice) == 24
    assert (once.begin_ns == twice.begin_ns).all() and (once.step == twice.step).all()


def test_one_number_for_all_launches_takes_time_in_proportion(tmp_path: Path) -> None:
    """Each with each would be 10^10 rows."""
    path = filled(tmp_path / "run.sqlite")
    rows = [(1000 + at, 1001 + at, 0, 7, 1, 1 << 24, 0) for at in range(100_000)]
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
        file.execute("DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME")
        file.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", rows
        )
        file.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT start - 900, 1, globalPid "
            "FROM CUPTI_ACTIVITY_KIND_KERNEL"
        )
        file.commit()
    assert len(kernels_of(path)) == 100_000


def test_a_kernel_belongs_to_the_last_launch_before_it(tmp_path: Path) -> None:
    """Numbers come again; and one after the kernel's begin stands for a clock that is behind."""
    path = filled(tmp_path / "run.sqlite")
    step = 40_000_000
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = 1")
        file.execute("DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME")
        for process in (1, 2):
            rows = [(one * step + 1_000_000 * (one != 0) + 39_000_000 * (one == 0), process << 24)
                    for one in range(5)]  # fmt: skip
            file.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, 1, ?)", rows)
        file.commit()
    steps = kernels_of(path).step
    assert [int((steps == one).sum()) for one in range(6)] == [4, 4, 4, 4, 8, 0]


@pytest.mark.parametrize(
    "column",
    [
        "endless INTEGER AS (length(hex(zeroblob(400000000)))) VIRTUAL",
        "e AS (replace(hex(zeroblob(1000)), '0', 'a') LIKE '%a%a%a%a%a%a%a%a%b') STORED",
    ],
)
def test_generated_columns_are_refused(tmp_path: Path, column: str) -> None:
    path = filled(tmp_path / "run.sqlite", column)
    verdict = verdict_of([path])
    assert str(verdict.reason).endswith(
        "not an export of Nsight Systems: CUPTI_ACTIVITY_KIND_KERNEL has generated columns"
    )


@pytest.mark.slow
def test_pages_that_lead_back_to_themselves_end(tmp_path: Path) -> None:
    """Of a table whose every page names the same next one 400 times, which makes 10^13 rows."""
    path = filled(tmp_path / "run.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, 9, 0, 7, 1, 1, 0)",
            [(at,) for at in range(20_000)],
        )
        file.commit()
        (root,) = file.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'"
        ).fetchone()
        (size,) = file.execute("PRAGMA page_size").fetchone()
    data = bytearray(Path(path).read_bytes())

    def number(at: int, length: int) -> int:
        return int.from_bytes(data[at : at + length], "big")

    begin = (root - 1) * size
    cells = [number(begin + 12 + 2 * at, 2) for at in range(number(begin + 3, 2))]
    below = [number(begin + cell, 4) for cell in cells]
    for page, child in zip([*below[1:6], root], below, strict=False):
        row = child.to_bytes(4, "big") + b"\x01"
        ends = range(size - len(row), size - 401 * len(row), -len(row))
        head = b"\x05\0\0" + (400).to_bytes(2, "big") + ends[-1].to_bytes(2, "big") + b"\0"
        head += child.to_bytes(4, "big") + b"".join(at.to_bytes(2, "big") for at in ends)
        filler = bytes(size - len(head) - 400 * len(row))
        data[(page - 1) * size : page * size] = head + filler + row * 400
    Path(path).write_bytes(data)
    reason = str(verdict_of([path]).reason)
    assert "than a file of its size may" in reason, reason


def test_another_file_of_the_name_is_refused_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").write_bytes(b"nothing")
    sqlite3.connect(tmp_path / "b.sqlite").execute("CREATE TABLE t (x)").connection.close()
    for name, reason in (("a", "not a SQLite database"), ("b", "not an export of Nsight Systems")):
        verdict = verdict_of([str(tmp_path / f"{name}.sqlite")])
        assert verdict.status == "not judged" and reason in str(verdict.reason)
