"""Finished stages out of the profile CSV of this process, or out of the rows kept in memory."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .._progress import shown_bar

Path_ = tuple[str, ...]

PATHS_MAX = 4096
OTHER: Path_ = ("(other)",)
UNKNOWN = "(unknown)"  # stands for a parent whose START row is gone
BAR_BYTES_MIN = 32 << 20  # a progress bar from here on, some seconds' worth of rows

_COLUMNS = 8


class StageRow(NamedTuple):
    """One finished stage; `cuda_ns` is None where no GPU time was taken."""

    step: int
    path: Path_
    duration_ns: int
    cuda_ns: int | None


class StageReader:
    """Pairs START and END rows by node id, so that each stage gets its path.

    `tag` picks the timer, `attempt` the run: what earlier runs left in the same files is passed
    over. Memory is the open stages and at most PATHS_MAX paths. Not thread-safe.
    """

    def __init__(self, tag: str, attempt: int | None) -> None:
        self.bad_rows = 0
        self._tag = encode_tag(tag)
        self._attempt = attempt
        self._is_ours = True
        self._was_told = False
        self._open: dict[str, Path_] = {}
        self._paths: dict[Path_, Path_] = {}

    def read(self, lines: Iterable[str]) -> Iterator[StageRow | None]:
        """Yields None where another run begins: what came before was not ours."""
        reader = csv.reader(lines)
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error:
                self.bad_rows += 1
                continue
            if len(row) != _COLUMNS:
                self.bad_rows += bool(row)
                continue
            kind = row[5]
            if kind == "START":
                self._start(row)
            elif kind == "END":
                stage = self._end(row)
                if stage is not None:
                    yield stage
            elif row[4] == "my_utils.process" and self._turns_to(self._is_of_attempt(row[7])):
                self._open.clear()
                yield None

    def _turns_to(self, ours: bool) -> bool:
        """A run says who it is at the head of every part; False where it was said before."""
        changed = ours != self._is_ours or not self._was_told
        self._is_ours, self._was_told = ours, True
        return changed

    def _is_of_attempt(self, metadata: str) -> bool:
        found = re.search(r"(?:^|,)attempt=(\d+)", metadata)
        return self._attempt is None or (found is not None and int(found[1]) == self._attempt)

    def _fields(self, metadata: str) -> dict[str, str]:
        return dict(pair.partition("=")[::2] for pair in metadata.split(","))

    def _start(self, row: list[str]) -> None:
        fields = self._fields(row[7])
        node = fields.get("node_id")
        if not self._is_ours or node is None or fields.get("tag", "") != self._tag:
            return
        parent = fields.get("parent_id", "0")
        above = () if parent == "0" else self._open.get(parent, (UNKNOWN,))
        self._open[node] = self._intern(OTHER if above == OTHER else (*above, row[4]))

    def _intern(self, path: Path_) -> Path_:
        known = self._paths.get(path)
        if known is None:
            known = path if len(self._paths) < PATHS_MAX else OTHER
            self._paths[known] = known
        return known

    def _end(self, row: list[str]) -> StageRow | None:
        fields = self._fields(row[7])
        node = fields.get("node_id")
        if not self._is_ours or node is None or fields.get("tag", "") != self._tag:
            return None
        path = self._open.pop(node, None)
        if path is None:
            path = self._intern((UNKNOWN, row[4]))
        try:
            cuda = fields.get("cuda_ms")
            return StageRow(
                int(row[3]), path, ms_to_ns(row[6]), None if cuda is None else ms_to_ns(cuda)
            )
        except ValueError:
            self.bad_rows += 1
            return None


def ms_to_ns(text: str) -> int:
    """Exact for six decimals, which is what the recorder writes.

    >>> ms_to_ns("1.234567"), ms_to_ns("2.5")
    (1234567, 2500000)
    """
    whole, _, decimals = text.partition(".")
    if len(decimals) == 6:
        return int(whole + decimals)
    return round(float(text) * 1e6)


def encode_tag(tag: str) -> str:
    """As it stands in the metadata column.

    >>> encode_tag("a=b, 50%")
    'a%3Db%2C 50%25'
    """
    return re.sub(r'[,="%\r\n]', lambda found: f"%{ord(found[0]):02X}", tag)


def csv_parts(csv_path: Path) -> tuple[io.BufferedReader, list[Path]]:
    """Opens the current file, and lists the older parts in order.

    The file is opened first: should it be rotated meanwhile, it is not read a second time.
    """
    current = open(csv_path, "rb")  # noqa: SIM115 (the caller closes it)
    with contextlib.ExitStack() as stack:
        stack.callback(current.close)
        identity = os.fstat(current.fileno())
        parts = [
            part
            for part in sorted(csv_path.parent.glob(f"{glob_escape(csv_path.stem)}.part*.csv"))
            if not os.path.samestat(part.stat(), identity)
        ]
        stack.pop_all()
    return current, parts


def glob_escape(text: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", text)


def lines_of_files(csv_path: Path, progress: Callable[[int], Any]) -> Iterator[str]:
    """All lines of the CSV, its older parts first. `progress` is called with bytes read."""
    current, parts = csv_parts(csv_path)
    with current:
        for part in parts:
            # A part may be removed just now, to keep under the cap.
            with contextlib.suppress(FileNotFoundError), open(part, "rb") as file:
                yield from _lines(file, progress)
        yield from _lines(current, progress)


def _lines(file: io.BufferedReader, progress: Callable[[int], Any]) -> Iterator[str]:
    next(file, None)  # the header
    waiting = 0
    for line in file:
        waiting += len(line)
        if waiting > 1 << 20:
            progress(waiting)
            waiting = 0
        yield line.decode("utf-8", "replace")
    progress(waiting)


@contextlib.contextmanager
def progress_bar(total_bytes: int) -> Iterator[Callable[[int], Any]]:
    """A bar on standard error when that is a terminal and there is enough to read."""
    if total_bytes < BAR_BYTES_MIN or not sys.stderr.isatty():
        yield lambda count: None
        return
    with shown_bar("reading stages", total_bytes, "bytes") as move:
        done = 0

        def read(count: int) -> None:
            nonlocal done
            done += count
            move(done, total_bytes)

        yield read


def size_of_files(csv_path: Path) -> int:
    current, parts = csv_parts(csv_path)
    with current:
        total = os.fstat(current.fileno()).st_size
    for part in parts:
        with contextlib.suppress(FileNotFoundError):
            total += part.stat().st_size
    return total
