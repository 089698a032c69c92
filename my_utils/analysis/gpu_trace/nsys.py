"""Reads what the devices of a database of Nsight Systems did, as `events` does of a trace.

Host slices are the calls of the CUDA runtime, and NVTX ranges of operators, which
`torch.autograd.profiler.emit_nvtx` makes. Only plain tables are read: see `replay.read_nsys`.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator

import numpy as np

from ...core.trusted_open import open_without_waiting
from ..replay.operations import Ints, parts_of
from ..replay.read_nsys import (
    COPIES,
    KERNELS,
    LAUNCHES,
    MEMCPY,
    MEMSET,
    PROCESS,
    WHOLE,
    as_number,
    launch_places,
    list_columns,
    number_names,
    opened_database,
    step_ranges,
    whole_rows,
)
from ..replay.torch_trace import IS_COLLECTIVE
from .events import (
    COLLECTIVE,
    COPY,
    FILL,
    KERNEL,
    UNKNOWN,
    DeviceEvents,
    HostEvents,
    Trace,
    synchronizes,
)

RANGES = "NVTX_EVENTS"
FULL_NAME = "demangledName"  # the short one of all kernels of CUTLASS is "Kernel2"
MAGIC, SUFFIX = b"SQLite format 3", ".sqlite"
# aten::mm, c10d::allreduce_; modules such as FSDP's also have ranges, with other code in them.
_OPERATOR = re.compile(r"[a-z][a-z0-9_]*::[\w:.]+(, .*)?", re.DOTALL)

_Name = Callable[[int], str]


def is_database(path: str) -> bool:
    """Whether the name says so. A trace has another one."""
    return path.endswith(SUFFIX)


def read_nsys_trace(path: str) -> Trace:
    """Raises ValueError for a file that is no such database, OSError where it cannot be read."""
    with open(path, "rb", opener=open_without_waiting) as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError("not a SQLite database")
    try:
        with opened_database(path) as database:
            return _Reader(database).trace()
    except sqlite3.Error as error:
        raise ValueError(f"not an export of Nsight Systems: {error}") from error


class _Reader:
    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._names: dict[str, int] = {}
        self._left_out = 0

    def trace(self) -> Trace:
        calls, host = self._calls()
        columns = np.concatenate(list(self._device_rows()))
        columns = columns[np.argsort(columns[:, 1], kind="stable")]
        device, begin, end, correlation, process, name, what = columns.T
        place = launch_places(
            calls[:, :3], correlation, None if (process == 0).all() else process, begin
        )
        launched = np.vstack([calls, np.full((1, 4), UNKNOWN)])[place]
        devices = {}
        order = np.argsort(device, kind="stable")
        for rows in parts_of(order, device):
            devices[int(device[rows[0]])] = DeviceEvents(
                begin[rows], end[rows], name[rows], what[rows], launched[rows, 1],
                launched[rows, 3], np.full(len(rows), UNKNOWN),
            )  # fmt: skip
        steps = len({number for _, number in step_ranges(self._database)})
        return Trace(list(self._names), [], devices, host, steps, self._left_out)

    def _device_rows(self) -> Iterator[Ints]:
        """Device, begin, end, correlation, process, name and what it is."""
        is_whole = FULL_NAME in list_columns(self._database, KERNELS)
        rows = self._read_rows(KERNELS, FULL_NAME if is_whole else "shortName")
        name, texts = number_names(self._database, rows[:, 5])
        numbers = np.array([self._number(text) for text in texts], np.int64)
        is_call = [COLLECTIVE if IS_COLLECTIVE.search(text) else KERNEL for text in texts]
        what = np.array(is_call, np.int64)
        yield np.column_stack([rows[:, :5], numbers[name], what[name]])
        yield self._of_copies(MEMCPY, "copyKind", COPY, lambda kind: COPIES.get(kind, "Memcpy"))
        yield self._of_copies(MEMSET, "", FILL, lambda _: "Memset")

    def _of_copies(self, table: str, column: str, what: int, name: _Name) -> Ints:
        rows = self._read_rows(table, column)
        names = np.array([self._number(name(kind)) for kind in rows[:, 5].tolist()], np.int64)
        return np.column_stack([rows[:, :5], names, np.full(len(rows), what)])

    def _number(self, text: str) -> int:
        return self._names.setdefault(text, len(self._names))

    def _read_rows(self, table: str, word: str) -> Ints:
        """Device, begin, end, correlation (-1 for none), process (0 for none) and the word."""
        there = list_columns(self._database, table)
        if not {"deviceId", "start", "end"} <= there:
            return np.zeros((0, 6), np.int64)
        correlation = as_number("correlationId") if "correlationId" in there else "-1"
        process = as_number("globalPid") if "globalPid" in there else "0"
        word = as_number(word) if word in there else "-1"
        is_whole = " AND ".join(map(WHOLE.format, ("deviceId", "start", "end")))
        query = f"SELECT deviceId, start, end, {correlation}, {process}, {word}, {is_whole}"
        rows = whole_rows(self._database, f"{query} FROM {table}", 7)
        kept = (rows[:, 6] > 0) & (rows[:, 2] >= rows[:, 1])
        self._left_out += int((~kept).sum())
        return rows[kept][:, :6]

    def _calls(self) -> tuple[Ints, HostEvents]:
        """Of the calls of the runtime number, begin, process and thread; and the host's slices."""
        nothing = np.zeros((0, 4), np.int64)
        there = list_columns(self._database, LAUNCHES)
        if not {"correlationId", "globalTid", "start"} <= there:
            return nothing, HostEvents(*(np.zeros(0, np.int64) for _ in range(4)))
        end = as_number("end") if "end" in there else "start"
        word = as_number("nameId") if "nameId" in there else "-1"
        is_whole = " AND ".join(map(WHOLE.format, ("correlationId", "start", "globalTid")))
        rows = whole_rows(
            self._database,
            f"SELECT correlationId, start, {PROCESS}, globalTid, {end}, {word} FROM {LAUNCHES} "
            f"WHERE {is_whole}",
            6,
        )
        name, texts = number_names(self._database, rows[:, 5])
        waits = np.array([int(synchronizes(text)) for text in texts], np.int64)[name]
        ends = np.maximum(rows[:, 4], rows[:, 1])
        calls = np.column_stack([rows[:, 1], ends, rows[:, 3], waits])
        slices = np.concatenate([calls, self._operators()])
        return rows[:, :4], HostEvents(*slices.T)

    def _operators(self) -> Ints:
        """Begin, end, thread, and 0 for what does not wait."""
        there = list_columns(self._database, RANGES)
        if not {"start", "end", "text", "textId", "globalTid"} <= there:
            return np.zeros((0, 4), np.int64)
        named = {
            one
            for one, text in self._database.execute("SELECT id, value FROM StringIds")
            if type(one) is int and _is_operator(text)
        }
        is_whole = " AND ".join(map(WHOLE.format, ("start", "end", "globalTid")))
        query = f"SELECT start, end, globalTid, text, textId FROM {RANGES} WHERE {is_whole}"
        rows = (
            (start, end, thread, 0)
            for start, end, thread, text, one in self._database.execute(query)
            if end >= start and (one in named if text is None else _is_operator(text))
        )
        found: Ints = np.fromiter(rows, np.dtype((np.int64, 4)))
        return found


def _is_operator(text: object) -> bool:
    return isinstance(text, str) and _OPERATOR.fullmatch(text) is not None
