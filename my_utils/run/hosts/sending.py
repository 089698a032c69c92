"""What a host has to send: the files of its ranks in a folder, as far as they have changed.

Rows are bounded. Of a rank with more the newest are kept, and before them what its process said of
itself; the windows beside them have what is older. All else is sent as it is.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from ...core.run_files.files import FLIGHTS_FOLDER, REPLICAS_FOLDER
from ...core.run_files.heartbeat import HEARTBEAT_BYTES_MAX, is_whole
from ...core.run_files.sent_list import rank_of
from ...core.trusted_open import open_without_waiting
from .receiving import is_taken
from .wire import CHUNK

HEAD = 256 << 10  # bytes of a CSV, in which a process has said what it says once
TAIL = 64  # bytes by which a file is known that has grown
WHOLE_MAX = 8 << 20  # bytes of a file that is sent anew where it has changed
_CSV = re.compile(r"profile_rank_\d+(?:\.w\d+)?(?:\.part(\d+))?\.csv")


class Piece(NamedTuple):
    """What goes into the file `name` at `at`; as `wire.Request` has it. data: None drops it."""

    name: str
    at: int
    data: bytes | None
    fresh: bool = False
    last: bool = False


class _Sent:
    """What the other side has of a file: `head`, and its bytes from `begin` to `end`. tail: the
    last of them. stamp: size and time of one that is sent whole."""

    def __init__(self, begin: int, end: int, head: bytes = b"") -> None:
        self.begin = begin
        self.end = end
        self.head = head
        self.tail = b""
        self.stamp = (0, 0)

    @property
    def size(self) -> int:
        return len(self.head) + self.end - self.begin


class Sending:
    """Of one folder. Not thread-safe. left_out: bytes that the other side did not take."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sent: dict[str, _Sent] = {}
        self._left_out: dict[str, int] = {}
        self._refused = False

    @property
    def left_out(self) -> int:
        return sum(self._left_out.values())

    def pieces(self, ranks: Collection[int], rows_max: int) -> Iterator[Piece]:
        """What has changed since the last time. The next piece is read once the one before was
        taken, or `refuse` was called; then the rest of its file is left out. rows_max: bytes of
        rows of all ranks. OSError if the folder cannot be listed."""
        names = self._names(ranks)
        rows: dict[str, list[str]] = {}
        for name in names:
            if _CSV.fullmatch(name):
                rows.setdefault(name.partition(".part")[0].removesuffix(".csv"), []).append(name)
        others = [name for name in names if not _CSV.fullmatch(name)]
        for name in others:
            if name.endswith((".windows", ".sums")):
                yield from self._grown(name)
            else:
                yield from self._changed(name)
        for of_rank in rows.values():
            yield from self._rows(sorted(of_rank, key=_order), rows_max // len(rows))
        for name in [*self._sent]:
            if _CSV.fullmatch(name) and name not in names:  # the recorder has removed it
                yield self._dropped(name)

    def refuse(self) -> None:
        """The other side has no space for the last piece."""
        self._refused = True

    def _names(self, ranks: Collection[int]) -> list[str]:
        names = os.listdir(self._folder)
        for below in (FLIGHTS_FOLDER, REPLICAS_FOLDER):
            with contextlib.suppress(OSError):
                names += [f"{below}/{name}" for name in os.listdir(self._folder / below)]
        wanted = {None, *ranks}
        return [name for name in names if is_taken(name) and rank_of(name) in wanted]

    # --- rows ---

    def _rows(self, names: list[str], most: int) -> Iterator[Piece]:
        """names: the current file, then its parts, the newest first."""
        for name in names:
            try:
                size = os.stat(self._folder / name).st_size
            except OSError:
                continue
            if ".part" not in name or most >= max(min(size, 2 * HEAD), 1):
                yield from self._newest(name, most)
            elif name in self._sent:
                yield self._dropped(name)
            most = max(most - size, 0)

    def _dropped(self, name: str) -> Piece:
        del self._sent[name]
        return Piece(name, 0, None)

    def _newest(self, name: str, most: int) -> Iterator[Piece]:
        """All of the file, or where that is too large its newest rows, half as many as may be."""
        known = self._sent.get(name)
        with self._opened(name) as file:
            size = -1 if file is None else os.fstat(file).st_size
            begin = 0 if known is None or size < known.end else known.begin
            if file is not None and size - begin > most:
                begin = _line_after(file, size - most // 2)
                head = _said(file)
                yield from self._pieces(name, file, _Sent(begin, begin, head), size, fresh=True)
                return
        yield from self._grown(name)

    # --- other files ---

    def _grown(self, name: str) -> Iterator[Piece]:
        """What was added, of a file that is as it was before that; else all of it."""
        known = self._sent.get(name)
        with self._opened(name) as file:
            if file is None:
                return
            size = os.fstat(file).st_size
            if known is not None and size >= known.end:
                tail = os.pread(file, len(known.tail), known.end - len(known.tail))
                if tail == known.tail:
                    yield from self._pieces(name, file, known, size, fresh=False)
                    return
            yield from self._pieces(name, file, _Sent(0, 0), size, fresh=True)

    def _changed(self, name: str) -> Iterator[Piece]:
        """All of a file that is not as it was."""
        known = self._sent.get(name)
        with self._opened(name) as file:
            if file is None:
                return
            found = os.fstat(file)
            stamp = found.st_size, found.st_mtime_ns
            is_known = known is not None and known.stamp == stamp
            if is_known or not _is_whole(name, file):
                return
            if found.st_size > WHOLE_MAX:
                self._left_out[name] = found.st_size
                return
            sent = _Sent(0, 0)
            sent.stamp = stamp
            yield from self._pieces(name, file, sent, found.st_size, fresh=True)

    def _pieces(
        self, name: str, file: int, sent: _Sent, size: int, *, fresh: bool
    ) -> Iterator[Piece]:
        """The bytes from `sent.end` to `size`; of rows whole lines."""
        head = sent.head if fresh else b""
        while True:
            data = os.pread(file, min(CHUNK - HEAD, size - sent.end), sent.end)
            if _CSV.fullmatch(name):
                data = data[: data.rfind(b"\n") + 1]
            is_last = not data or sent.end + len(data) >= size
            if not data and not fresh:
                return
            self._refused = False
            at = sent.size - len(head)
            yield Piece(name, at, head + data, fresh, fresh and is_last)
            if self._refused:
                self._left_out[name] = size - sent.end
                return
            head = b""
            sent.end += len(data)
            sent.tail = (sent.tail + data)[-TAIL:]
            if is_last or not fresh:
                self._sent[name] = sent
            if is_last:
                self._left_out.pop(name, None)
                return

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[int | None]:
        """None where it is gone, or cannot be read."""
        try:
            file = open_without_waiting(self._folder / name, os.O_RDONLY)
        except OSError:
            yield None
            return
        try:
            yield file
        finally:
            os.close(file)


def _order(name: str) -> int:
    """The current file first, then the newest part."""
    part = _CSV.fullmatch(name)
    return -int(part[1]) if part is not None and part[1] else -(1 << 62)


def _is_whole(name: str, file: int) -> bool:
    """Whether a heartbeat is not being written over just now."""
    return not name.endswith(".heartbeat.json") or is_whole(os.pread(file, HEARTBEAT_BYTES_MAX, 0))


def _line_after(file: int, at: int) -> int:
    """Where the first line begins that is whole from `at` on."""
    data = os.pread(file, CHUNK, at)
    return at + data.find(b"\n") + 1


def _said(file: int) -> bytes:
    """The first line of a CSV, and the rows about the run at its beginning."""
    lines = os.pread(file, HEAD, 0).splitlines(True)[:-1]
    return b"".join(lines[:1] + [one for one in lines[1:] if b",my_utils." in one])
