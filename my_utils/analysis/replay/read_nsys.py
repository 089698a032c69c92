"""Databases of Nsight Systems (SQLite): steps by NVTX ranges, meetings by NCCL kernels.

A device is a rank. A kernel belongs to the step that launched it. Where no range marks steps, one
begins at every call of the kernel that comes most evenly.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...core.trusted_open import open_without_waiting
from .operations import TOGETHER, Ints, Operations, numbers_of, occurrence_of

STEP = re.compile(
    r"(?:profilerstep|train[_ ]?step|step|iteration|iter)[#_ :=]*(\d{1,18})", re.IGNORECASE
)
NCCL = re.compile(r"nccl|rccl", re.IGNORECASE)
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
LAUNCHES = "CUPTI_ACTIVITY_KIND_RUNTIME"
TABLES = (KERNELS, LAUNCHES, "StringIds", "NVTX_EVENTS", "TARGET_INFO_SESSION_START_TIME")
STEPS_MIN = 3
NEEDED = ("deviceId", "streamId", "start", "end")
NUMBER_MAX = 1 << 62
WHOLE = f"(typeof({{0}}) = 'integer' AND {{0}} BETWEEN 0 AND {NUMBER_MAX // 2})"
PROCESS = "(globalTid / 16777216) * 16777216"  # of a thread


def read_nsys(paths: Sequence[str]) -> Operations:
    """The kernels in databases of one run. ValueError for a file that is no such database."""
    columns: dict[str, list[Ints]] = {}
    names: dict[str, int] = {}
    notes: list[str] = []
    ranks = 0
    for path in paths:
        with _opened(path) as database:
            rows = _kernels(path, database, names, notes)
            rows["rank"] = ranks + numbers_of(rows.pop("device"))[0]
            ranks = int(rows["rank"].max()) + 1
            steps = _steps(database)
        rows["step"] = _numbered(rows, steps, list(names), notes)
        for key, values in rows.items():
            columns.setdefault(key, []).append(values)
    whole = {key: np.concatenate(parts) for key, parts in columns.items()}
    inside = whole["step"] >= 0
    whole = {key: values[inside] for key, values in whole.items()}
    order = np.lexsort((whole["begin"], whole["rank"], whole["step"]))
    whole = {key: values[order] for key, values in whole.items()}
    words = tuple(names)
    calls = np.array([bool(NCCL.search(word)) for word in words], np.bool_)[whole["name"]]
    meeting = np.full(len(order), -1, np.int64)
    if calls.any():
        notes.append("kernels of NCCL name no group: taken as of all ranks")
        turn, _ = numbers_of(*(whole[one][calls] for one in ("step", "rank", "name")))
        same = (whole["step"][calls], whole["name"][calls], occurrence_of(turn))
        meeting[calls] = numbers_of(*same)[0]
    return Operations(
        whole["rank"], whole["lane"], whole["step"], whole["name"], whole["begin"], whole["end"],
        meeting, np.full(len(order), TOGETHER), words, {}, {}, notes,
    )  # fmt: skip


@contextlib.contextmanager
def _opened(path: str) -> Iterator[sqlite3.Connection]:
    with open(path, "rb", opener=open_without_waiting) as file:  # a regular file, as a database is
        if file.read(15) != b"SQLite format 3":
            raise ValueError(f"{path}: not a SQLite database")
    uri = f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1"
    database = sqlite3.connect(uri, uri=True)
    try:
        _refuse_views(path, database)
        yield database
    except sqlite3.Error as error:
        raise ValueError(f"{path}: not an export of Nsight Systems: {error}") from error
    finally:
        database.close()


def _refuse_views(path: str, database: sqlite3.Connection) -> None:
    """A table ends with the file; a view in its place may have no end."""
    views = database.execute("SELECT name FROM sqlite_master WHERE type = 'view'")
    names = {str(name).lower() for (name,) in views}
    for table in TABLES:
        if table.lower() in names:
            raise ValueError(f"{path}: not an export of Nsight Systems: {table} is a view")


def _columns_of(database: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in database.execute(f"PRAGMA table_info({table})")}


def _kernels(
    path: str, database: sqlite3.Connection, names: dict[str, int], notes: list[str]
) -> dict[str, Ints]:
    """All kernels in the order of their begins; device and process are those of the database."""
    of_kernels, of_launches = (_columns_of(database, one) for one in (KERNELS, LAUNCHES))
    process = "CAST(k.globalPid AS INTEGER)" if "globalPid" in of_kernels else "0"
    launch, joined = "k.start", ""
    if {"correlationId", "globalTid"} <= of_launches:
        same = f" AND {PROCESS} = k.globalPid" if process != "0" else ""
        joined = f"LEFT JOIN {LAUNCHES} r ON r.correlationId = k.correlationId{same}"
        launch = "CASE typeof(r.start) WHEN 'integer' THEN r.start ELSE k.start END"
    query = (
        f"SELECT k.deviceId, k.streamId, s.value, k.start, k.end, {launch}, {process} "
        f"FROM {KERNELS} k LEFT JOIN StringIds s ON s.id = k.shortName {joined} "
        f"WHERE {' AND '.join(WHOLE.format(f'k.{one}') for one in NEEDED)} ORDER BY k.start"
    )
    rows: Ints = np.fromiter(
        (_row(one, names) for one in database.execute(query)), np.dtype((np.int64, 7))
    )
    every = database.execute(f"SELECT count(*) FROM {KERNELS}").fetchone()[0]
    if len(rows) < every:
        notes.append(f"{path}: {every - len(rows)} kernels without whole numbers, left out")
    if not len(rows):
        raise ValueError(f"{path}: no kernels in it")
    rows[:, 3:6] += _session_start(database)
    keys = ("device", "lane", "name", "begin", "end", "launch", "process")
    return {key: rows[:, place] for place, key in enumerate(keys)}


def _row(row: tuple[Any, ...], names: dict[str, int]) -> tuple[int, ...]:
    device, stream, name, *rest = row
    number = names.setdefault(str(name), len(names))
    return (int(device), int(stream), number, *(int(one) for one in rest))


def _session_start(database: sqlite3.Connection) -> int:
    """What makes the times of several databases those of one clock; 0 where it is not there."""
    if "utcEpochNs" not in _columns_of(database, "TARGET_INFO_SESSION_START_TIME"):
        return 0
    row = database.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    return row[0] if row and isinstance(row[0], int) and 0 < row[0] < NUMBER_MAX else 0


def _steps(database: sqlite3.Connection) -> dict[tuple[int, int], tuple[int, int]]:
    """By process and number of the step: when it begins and ends on the host."""
    if not {"start", "end", "text", "textId", "globalTid"} <= _columns_of(database, "NVTX_EVENTS"):
        return {}
    shift = _session_start(database)
    found: dict[tuple[int, int], tuple[int, int]] = {}
    query = (
        f"SELECT {PROCESS}, coalesce(n.text, s.value), n.start, n.end FROM NVTX_EVENTS n "
        f"LEFT JOIN StringIds s ON s.id = n.textId "
        f"WHERE {WHOLE.format('n.start')} AND {WHOLE.format('n.end')}"
    )
    for process, text, start, end in database.execute(query):
        match = STEP.fullmatch(str(text).strip())
        if match:
            found[int(process), int(match[1])] = (int(start) + shift, int(end) + shift)
    return found


def _numbered(
    rows: dict[str, Ints], steps: dict[tuple[int, int], tuple[int, int]], names: list[str],
    notes: list[str],
) -> Ints:  # fmt: skip
    """The step of each kernel, -1 outside all."""
    process, launch = rows.pop("process"), rows.pop("launch")
    found = np.full(len(launch), -1, np.int64)
    if not steps:
        return _by_the_steadiest(rows, names, found, notes)
    for (of, number), (begin, end) in steps.items():
        inside = (launch >= begin) & (launch < end)
        found[inside & ((process == of) | (process == 0))] = number
    return found


def _by_the_steadiest(
    rows: dict[str, Ints], names: list[str], found: Ints, notes: list[str]
) -> Ints:
    """Of the kernels that come as often on all devices, with the least scatter between two."""
    ranks = np.unique(rows["rank"])
    best: tuple[float, int] | None = None
    for name in np.unique(rows["name"]).tolist():
        begins = [rows["begin"][(rows["name"] == name) & (rows["rank"] == rank)] for rank in ranks]
        if len({len(one) for one in begins}) > 1 or len(begins[0]) <= STEPS_MIN:
            continue
        apart = np.diff(np.array(begins), axis=1)
        scatter = float(np.abs(apart / max(np.median(apart), 1.0) - 1).mean())
        best = min(best or (scatter, name), (scatter, name))
    if best is None:
        raise ValueError("no NVTX range marks steps, and no kernel comes evenly")
    notes.append(f"no NVTX range marks steps: taken from one {names[best[1]]} to the next")
    for rank in ranks:
        mine = rows["rank"] == rank
        begins = rows["begin"][mine & (rows["name"] == best[1])]
        found[mine] = np.searchsorted(begins, rows["begin"][mine], "right") - 1
        found[mine & (found >= len(begins) - 1)] = -1  # the last one may be cut off
    return found
