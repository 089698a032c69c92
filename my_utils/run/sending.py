"""Copies a run's files to a place that all hosts reach: the process that `sender` starts.

It looks once a minute what has changed. Where that takes more than 0.6 s of a processor, it waits a
hundred times as long, so that it takes 1 % of a core at most. An error ends one turn; the next one
goes on where that stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import sys
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ..core.bounded_read import read_whole
from ..core.ranks import host_name
from ..core.run_files.files import FLIGHTS_FOLDER, REPLICAS_FOLDER
from ..core.run_files.heartbeat import HEARTBEAT_TRIES, is_whole
from ..core.run_files.pointers import follow_pointer
from ..core.run_files.run_file import RUN_FILE
from ..core.run_files.sent_list import (
    EVERY_S,
    FILE_BYTES_MAX,
    GROWING,
    JOURNAL,
    LIST,
    PIECE_BYTES,
    VERSION,
    WHOLE,
    Sent,
    SentFile,
    piece_name,
    rank_of,
)
from ..core.run_files.stores import Store, describe_error, shown
from ..core.trusted_open import open_filled
from .closing import print_lines
from .report_file import read_reports

NICE = 5  # more, and on a host whose cores are all busy nothing would be sent
FIRST_S = 2.0  # between looks at the reports, until a rank has its files
TIMES_ITS_COST = 100.0
WAIT_MAX_S = 2 * EVERY_S  # readers take a host for silent after FRESH_S, 2.5 times that
TURN_S = 20.0  # after which the rest waits for the next turn, so that heartbeats come through
WHOLE_BYTES_MAX = 64 << 20
NAMES_MAX = 100_000  # of a folder
CHECKED_BYTES = 4096  # of what was sent last, which must still be there

FileId = tuple[int, int]  # device and inode


@dataclass
class _Growing:
    """A file that only grows. sent: so many bytes of it; check: the CRC of the last of these."""

    pieces: str
    sent: int = 0
    check: int = 0


@dataclass
class _Folder:
    """What was sent of one folder, and to where. whole: by name, size and time of the last write of
    what is there."""

    path: str
    to: str
    began_s: float
    run_id: str = ""
    whole: dict[str, SentFile] = field(default_factory=dict)
    versions: dict[str, tuple[int, int]] = field(default_factory=dict)
    growing: dict[FileId, _Growing] = field(default_factory=dict)
    begun: int = 0  # growing files
    has_list: bool = False

    def forget(self) -> None:
        """What was sent is there no more."""
        self.whole.clear()
        self.versions.clear()
        self.growing.clear()


class Sending:
    """run_id: of the command that runs here. Not thread-safe."""

    def __init__(self, address: str, report: Path, run_id: str) -> None:
        self._address = address
        self._report = report
        self._run_id = run_id
        self._began_s = time.time()
        self._store: Store | None = None
        self._folders: dict[str, _Folder] = {}
        self._ranks: set[int] = set()
        self._has_warned = False
        self.missing = 0
        self.error = ""

    def has_ranks(self) -> bool:
        """Whether a rank of this host has said where it writes."""
        with contextlib.suppress(OSError):
            reported = read_reports(self._report)
            self._ranks = set(reported.ranks)
            for place in reported.places():
                if place not in self._folders:
                    self._folders[place] = _Folder(
                        place, self._name(len(self._folders)), self._began_s
                    )
        return bool(self._folders)

    def _name(self, number: int) -> str:
        host = re.sub(r"[^A-Za-z0-9._-]", "_", host_name()).lstrip(".")[:100] or "host"
        return f"{host}-{self._run_id[:12]}" + (f"-{number + 1}" if number else "")

    def send(self, *, over: bool) -> None:
        """One turn. over: the command has ended."""
        self.missing, self.error = 0, ""
        deadline = None if over else time.monotonic() + TURN_S
        if not self.has_ranks():
            return
        try:
            self._store = self._store or Store(self._address)
            for folder in self._folders.values():
                _Turn(self._store, folder, self._ranks, deadline, over).send()
        except Exception as error:  # of libraries, too
            self.error = describe_error(error)
            if not self._has_warned:
                self._has_warned = True
                print_lines([self._warning()])
        for folder in self._folders.values():
            try:
                self.missing += _missing(folder, self._ranks, over)
            except OSError as error:  # it cannot be listed
                self.error = self.error or describe_error(error)

    def _warning(self) -> str:
        to = shown(self._address)
        return f"my_utils run: {to} takes no files: {self.error}; tried again later"

    def result(self) -> str:
        """How it went, in one line."""
        to = shown(self._address)
        if not self._folders:
            return f"my_utils run: nothing was recorded here, and nothing sent to {to}"
        if not self.missing and not self.error:
            return f"my_utils run: sent to {to}"
        reason = self.error or "no time was left"
        return f"my_utils run: {self.missing} files were not wholly sent to {to}: {reason}"


class _Turn:
    """One turn of one folder."""

    def __init__(
        self, store: Store, folder: _Folder, ranks: set[int], deadline: float | None, over: bool
    ) -> None:
        self._store = store
        self._folder = folder
        self._ranks = ranks
        self._deadline = deadline
        self._over = over

    def send(self) -> None:
        """The list is written also where something before it failed: what came is whole."""
        whole, growing = _found(self._folder.path, self._ranks, self._over)
        if self._folder.has_list and self._store.lacks(f"{self._folder.to}/{LIST}"):
            self._folder.forget()
        try:
            for name, path in whole.items():
                self._send_whole(name, path)
            for path in growing:
                self._send_growing(path)
        finally:
            # Looked for again: a CSV that got full meanwhile has another name.
            self._send_list(list(whole), _found(self._folder.path, self._ranks, self._over)[1])

    def _send_whole(self, name: str, path: str) -> None:
        folder = self._folder
        try:
            status = os.stat(path)
            version = (status.st_size, status.st_mtime_ns)
            if folder.versions.get(name) == version:
                return
            data = _read_whole(path)
        except (OSError, ValueError):  # it is being replaced, or is no such file
            return
        sent = SentFile(name, len(data), status.st_mtime_ns)
        self._store.write(f"{folder.to}/{name}", _packed(name, data))
        folder.whole[name], folder.versions[name] = sent, version
        if name == RUN_FILE:
            with contextlib.suppress(ValueError, AttributeError):
                folder.run_id = str(json.loads(data).get("run_id") or "")

    def _send_growing(self, path: str) -> None:
        try:
            file = open(path, "rb", buffering=0, opener=open_filled)  # noqa: SIM115
        except OSError:  # it is gone, or is no such file: others still can be sent
            return
        with file:
            status = os.fstat(file.fileno())
            size = min(status.st_size, FILE_BYTES_MAX)
            key = (status.st_dev, status.st_ino)
            one = self._folder.growing.get(key)
            if one is None or not _continues(file.fileno(), one, size):
                one = self._folder.growing[key] = self._begin(path)
            while one.sent < size and not self._is_late():
                self._send_piece(file.fileno(), one, size)

    def _begin(self, path: str) -> _Growing:
        self._folder.begun += 1
        return _Growing(f"{os.path.basename(path)}.{self._folder.begun}")

    def _send_piece(self, file: int, one: _Growing, size: int) -> None:
        number = one.sent // PIECE_BYTES
        begin = number * PIECE_BYTES
        data = os.pread(file, min(PIECE_BYTES, size - begin), begin)
        if begin + len(data) <= one.sent:
            raise OSError("a file became shorter while it was read")
        self._store.write(f"{self._folder.to}/{piece_name(one.pieces, number)}", data)
        one.sent = begin + len(data)
        one.check = _check(file, one.sent)

    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    def _send_list(self, whole: list[str], growing: list[str]) -> None:
        folder = self._folder
        ids: set[FileId] = set()
        files = [folder.whole[name] for name in whole if name in folder.whole]
        for path in growing:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(path)
                key = (status.st_dev, status.st_ino)
                if (one := folder.growing.get(key)) is not None and key not in ids:
                    ids.add(key)
                    name = os.path.basename(path)
                    files.append(SentFile(name, one.sent, status.st_mtime_ns, one.pieces))
        missing = _missing(folder, self._ranks, self._over)
        sent = Sent(
            VERSION, host_name(), folder.run_id, folder.began_s, time.time(), self._over, missing,
            files,
        )  # fmt: skip
        self._store.write(f"{folder.to}/{LIST}", msgspec.json.encode(sent))
        folder.has_list = True
        self._forget(set(whole), ids)

    def _forget(self, names: set[str], ids: set[FileId]) -> None:
        """Removes what the run has removed, as the oldest parts of a CSV."""
        folder = self._folder
        for name in folder.whole.keys() - names:
            del folder.whole[name], folder.versions[name]
            self._store.remove(f"{folder.to}/{name}")
        for key in folder.growing.keys() - ids:
            gone = folder.growing.pop(key)
            for number in range(-(-gone.sent // PIECE_BYTES)):
                self._store.remove(f"{folder.to}/{piece_name(gone.pieces, number)}")


def _found(folder: str, ranks: set[int], over: bool) -> tuple[dict[str, str], list[str]]:
    """The files to send, in this order: those that are sent whole, by their names, and the paths of
    those that grow: windows, then the CSVs that are written, then older parts, the newest first."""
    whole: dict[str, str] = {}
    growing: list[str] = []
    for name in _names(folder):
        path = os.path.join(folder, name)
        if over and name.endswith(".journal-ref"):
            target, _ = follow_pointer(path)
            name, path = name.removesuffix("-ref"), target or path
        is_journal = JOURNAL.fullmatch(name) is not None
        is_growing = GROWING.fullmatch(name) is not None
        if not (is_growing or WHOLE.fullmatch(name) or (is_journal and over)):
            continue
        if rank_of(name) not in (None, *ranks):
            continue
        if is_growing:
            growing.append(path)
        else:
            whole[name] = path
    return whole, sorted(growing, key=_urgency)


def _names(folder: str) -> list[str]:
    found: list[str] = []
    for below in ("", FLIGHTS_FOLDER, REPLICAS_FOLDER):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found += [os.path.join(below, name) for name in os.listdir(os.path.join(folder, below))]
        if len(found) > NAMES_MAX:
            raise OSError(f"more than {NAMES_MAX} files are in {folder}")
    return sorted(found)


def _urgency(path: str) -> tuple[int, int]:
    part = re.search(r"\.part(\d+)\.csv$", path)
    return (0, 0) if path.endswith(".windows") else (2, -int(part[1])) if part else (1, 0)


def _missing(folder: _Folder, ranks: set[int], over: bool) -> int:
    """Files of which something is not there as it is here."""
    whole, growing = _found(folder.path, ranks, over)
    count = 0
    for name, path in whole.items():
        with contextlib.suppress(OSError):
            status = os.stat(path)
            count += folder.versions.get(name) != (status.st_size, status.st_mtime_ns)
    for path in growing:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            one = folder.growing.get((status.st_dev, status.st_ino))
            count += one is None or one.sent < min(status.st_size, FILE_BYTES_MAX)
    return count


def _read_whole(path: str) -> bytes:
    """A heartbeat is read again while it is being written over."""
    data = b""
    for _ in range(HEARTBEAT_TRIES):
        data, _ = read_whole(path, WHOLE_BYTES_MAX, "a run's file")
        if not path.endswith(".heartbeat.json") or is_whole(data):
            break
    return data


def _packed(name: str, data: bytes) -> bytes:
    """Next to all of a journal is zeros."""
    return zlib.compress(data, 1) if JOURNAL.fullmatch(name) else data


def _continues(file: int, one: _Growing, size: int) -> bool:
    """Whether what was sent of it is still its beginning."""
    return one.sent <= size and _check(file, one.sent) == one.check


def _check(file: int, end: int) -> int:
    begin = max(0, end - CHECKED_BYTES)
    return zlib.crc32(os.pread(file, end - begin, begin)) if end else 0


def main() -> None:
    """Sends until standard input ends, and then what is left. The command line: the address, the
    file of reports, the run's id, and whether to say how it went."""
    address, report, run_id, quiet = sys.argv[1:]
    with contextlib.suppress(OSError):
        os.nice(NICE)
    sending = Sending(address, Path(report), run_id)
    wait_s = FIRST_S
    while not _is_over(wait_s):
        began_s = time.process_time()
        if not sending.has_ranks():
            continue
        sending.send(over=False)
        wait_s = _wait_s(time.process_time() - began_s)
    sending.send(over=True)
    if not int(quiet) or sending.missing or sending.error:
        print_lines([sending.result()])


def _wait_s(cost_s: float) -> float:
    """Until the next turn, after one that took so much of a processor.

    >>> _wait_s(0.07), _wait_s(0.75), _wait_s(20.0)
    (60.0, 75.0, 120.0)
    """
    return min(max(EVERY_S, TIMES_ITS_COST * cost_s), WAIT_MAX_S)


def _is_over(wait_s: float) -> bool:
    """Whether the parent has closed its end, or is gone."""
    readable, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(readable)
