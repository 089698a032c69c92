"""The samples of a run as CSV, which grows while it runs: a crash leaves what was sampled so far.

Rows are collected until `flush` and go out in one write. Nothing is buffered in a file object, so
that a forked child has nothing to write.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from ....core.trusted_open import open_own
from ....core.warnings import warn_once

# What waits at most for a disk that is full.
PENDING_BYTES = 1 << 20


class SampleFile:
    """Rows behind those that are there already. Not thread-safe.

    A file of that name with the same header continues; one with another header is set aside, as
    `<name>.old1.csv` and so on. While somebody writes it, another process or a tracker of this one,
    the rows go to `<name>.2.csv` and so on; also where the name is a link, a FIFO, or a file of
    another user, with a warning. `path` is the file's. OSError when it cannot be opened. Later
    trouble is one warning.
    """

    def __init__(self, path: Path, header: Sequence[str]) -> None:
        first = (",".join(header) + "\n").encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._file = _opened(path)
        goes_on = os.fstat(self._file).st_size > 0
        if goes_on and os.pread(self._file, len(first), 0) != first:
            _set_aside(self.path)
            self.drop()
            self.path, self._file = _opened(self.path)
            goes_on = False
        self._pending = bytearray(self._end_of_cut_line() if goes_on else first)
        self.lost = 0
        """Rows that found no room, as the disk was full."""

    def _end_of_cut_line(self) -> bytes:
        size = os.fstat(self._file).st_size
        return b"" if os.pread(self._file, 1, size - 1) == b"\n" else b"\n"

    def add(self, row: str) -> None:
        """Adds a row, with its line end, to what `flush` writes."""
        if len(self._pending) < PENDING_BYTES:
            self._pending += row.encode("utf-8", "backslashreplace")
        else:
            self.lost += 1

    def flush(self) -> None:
        try:
            while self._pending:
                written = os.write(self._file, self._pending)
                del self._pending[:written]
        except OSError as error:
            warn_once(
                f"tracker_csv:{self.path}",
                f"cannot write samples to {self.path} ({error.strerror}); the tracker goes on",
            )

    def close(self) -> None:
        if self._file >= 0:
            self.flush()
            self.drop()

    def drop(self) -> None:
        """Closes it without writing, as in a forked child."""
        file, self._file = self._file, -1
        if file >= 0:
            with contextlib.suppress(OSError):
                os.close(file)


def quoted(text: str) -> str:
    """Text as a field."""
    if any(letter in text for letter in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _opened(path: Path) -> tuple[Path, int]:
    """The first of `path` and its numbered kin that is ours and that nobody writes, open and
    locked."""
    for number in itertools.count(2):
        file = _own(path)
        if file is not None and _locked(file):
            return path, file
        path = path.with_name(f"{_stem(path)}.{number}{path.suffix}")
    raise AssertionError


def _own(path: Path) -> int | None:
    """None, with a warning, for a file that is not ours: others chose what the rows go into."""
    try:
        return open_own(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
    except PermissionError as error:
        if not os.path.lexists(path):  # the directory refuses
            raise
        warn_once(f"tracker_csv:{path}", f"{path}: {error.strerror}; samples go to another file")
        return None


def _locked(file: int) -> bool:
    """Closes the file that somebody else has locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return False
    except OSError:  # a file system without locks
        pass
    return True


def _stem(path: Path) -> str:
    stem, dot, number = path.stem.rpartition(".")
    return stem if dot and number.isdigit() else path.stem


def _set_aside(path: Path) -> None:
    number = 1
    while (aside := path.with_suffix(f".old{number}{path.suffix}")).exists():
        number += 1
    path.rename(aside)
