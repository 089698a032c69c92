"""Finished stages from the profile CSV of this process, or from the rows in memory."""

from __future__ import annotations

import contextlib
import glob
import io
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ... import _core
from ...core.run_files.row_metadata import encoded_word
from ...core.trusted_open import open_filled

Path_ = tuple[str, ...]

PATHS_MAX = 4096
OTHER: Path_ = ("(other)",)
UNKNOWN = "(unknown)"  # stands for a parent whose START row is gone

PROGRESS_BYTES = 1 << 20


class StageRow(NamedTuple):
    """One finished stage; `cuda_ns` is None if no GPU time was taken."""

    step: int
    path: Path_
    duration_ns: int
    cuda_ns: int | None


class StageReader:
    """Pairs START and END rows by node id, so that each stage gets its path.

    `tag` selects the timer, `attempt` the run: rows of earlier runs in the same files are skipped.
    Memory grows with the open stages, and at most PATHS_MAX paths. Not thread-safe.
    """

    def __init__(self, tag: str, attempt: int | None) -> None:
        self.bad_rows = 0
        self._tag = encoded_word(tag)
        self._attempt = attempt
        self._is_ours = True
        self._is_known = False
        self._open: dict[int, Path_] = {}
        self._paths: dict[Path_, Path_] = {}

    def read(
        self, parts: Iterable[_core._TracePart], progress: Callable[[int], Any] = lambda count: None
    ) -> Iterator[StageRow | None]:
        """Yields None where another run begins; the stages before it do not count.

        `progress` is called with the number of bytes that were read since it was called last.
        """
        for part in parts:
            rows = _core.StageRows(part, self._tag)
            shown = 0
            for row in rows:
                if row[0] == "START":
                    if self._is_ours:
                        self._start(row[1], row[2], row[3])
                elif row[0] == "END":
                    if self._is_ours and (stage := self._end(row)):
                        yield stage
                elif row[0] == "BAD":
                    self.bad_rows += 1
                elif self._turns_to(self._attempt in (None, row[1])):
                    self._open.clear()
                    yield None
                if rows.bytes_read - shown >= PROGRESS_BYTES:
                    progress(rows.bytes_read - shown)
                    shown = rows.bytes_read
            progress(rows.bytes_read - shown)

    def _turns_to(self, ours: bool) -> bool:
        """Notes whether the rows that follow are this run's. Returns whether that is new."""
        changed = ours != self._is_ours or not self._is_known
        self._is_ours, self._is_known = ours, True
        return changed

    def _start(self, node: int, parent: int, name: str) -> None:
        above = () if parent <= 0 else self._open.get(parent, (UNKNOWN,))
        self._open[node] = self._intern(OTHER if above == OTHER else (*above, name))

    def _intern(self, path: Path_) -> Path_:
        known = self._paths.get(path)
        if known is None:
            known = path if len(self._paths) < PATHS_MAX else OTHER
            self._paths[known] = known
        return known

    def _end(self, row: _core._EndRow) -> StageRow | None:
        _, node, _, name, _, bad, step, duration_ns, cuda_ns, *_ = row
        path = self._open.pop(node, None)
        if path is None:
            path = self._intern((UNKNOWN, name))
        if duration_ns is None or bad not in ("", "timestamp_unix"):
            self.bad_rows += 1
            return None
        return StageRow(step, path, duration_ns, cuda_ns)


def csv_parts(csv_path: Path) -> tuple[io.FileIO, list[Path]]:
    """Opens the current file, which the caller closes, and lists the older parts in order.

    The file is opened first: should it be rotated meanwhile, it is not read a second time.
    """
    current = open(csv_path, "rb", buffering=0, opener=open_filled)  # noqa: SIM115
    with contextlib.ExitStack() as stack:
        stack.callback(current.close)
        identity = os.fstat(current.fileno())
        parts = [
            part
            for part in sorted(csv_path.parent.glob(f"{glob.escape(csv_path.stem)}.part*.csv"))
            if not os.path.samestat(part.stat(), identity)
        ]
        stack.pop_all()
    return current, parts


def parts_of_files(csv_path: Path) -> Iterator[_core._TracePart]:
    """The CSV for StageReader, its older parts first; each is open while it is asked for."""
    current, parts = csv_parts(csv_path)
    with current:
        for path in parts:
            # A part may be removed just now, to keep under the cap.
            with (
                contextlib.suppress(FileNotFoundError),
                open(path, "rb", buffering=0, opener=open_filled) as file,
            ):
                yield _behind_header(file, path)
        yield _behind_header(current, csv_path)


def _behind_header(file: io.FileIO, path: Path) -> _core._TracePart:
    """The recorder's own file has the usual columns, also where the first line is damaged."""
    file.readline()
    return str(path), file.fileno(), -1, None, False


def part_of_memory(rows: bytes) -> _core._TracePart:
    """Rows that no file has, for StageReader."""
    return "the rows in memory", -1, -1, rows, False


def size_of_files(csv_path: Path) -> int:
    current, parts = csv_parts(csv_path)
    with current:
        total = os.fstat(current.fileno()).st_size
    for part in parts:
        with contextlib.suppress(FileNotFoundError):
            total += part.stat().st_size
    return total
