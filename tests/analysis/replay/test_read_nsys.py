"""Databases of Nsight Systems: steps by NVTX ranges, or by the kernel that comes most evenly."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from my_utils.analysis.replay.inputs import verdict_of
from my_utils.analysis.replay.read_nsys import TABLES

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


def test_another_file_of_the_name_is_refused_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").write_bytes(b"nothing")
    sqlite3.connect(tmp_path / "b.sqlite").execute("CREATE TABLE t (x)").connection.close()
    for name, reason in (("a", "not a SQLite database"), ("b", "not an export of Nsight Systems")):
        verdict = verdict_of([str(tmp_path / f"{name}.sqlite")])
        assert verdict.status == "not judged" and reason in str(verdict.reason)
