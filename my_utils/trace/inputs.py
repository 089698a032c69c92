"""Sorts the inputs of csv2trace, CSVs, directories, globs and journals, into one set a process.

Internal. A file set is the rotated parts of one process in order, then its current file, then the
rows that only its journal holds.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import threading
from pathlib import Path

from .. import _core
from ..core.ranges import RANK_MAX
from ..core.run_files.pointers import follow_pointer
from ..core.trusted_open import open_filled, open_filled_or_pipe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CSV_NAME = re.compile(r"profile_rank_(\d+)(?:\.w(\d+))?(?:\.part(\d+))?\.csv$")
JOURNAL_NAME = re.compile(r"rank_(\d+)(?:\.w(\d+))?\..*\.journal(?:-ref)?$")
RANKS_SHOWN = 8
HEAD_MAX = 1 << 20  # bytes of a pipe in which its first good row must be
TRACE_SUFFIXES = (".pftrace", ".perfetto-trace", ".json", ".pftrace.gz", ".json.gz")
DOUBTFUL = b",my_utils.doubtful,INSTANT,"  # a row that says so of those recovered with it
GLOB_CHARACTERS = re.compile(r"[*?\[]")

FileId = tuple[int, int]  # device and inode


def named_by(texts: Iterable[str]) -> list[str]:
    """What inputs name: of a glob what it matches. One that matches nothing stays."""
    found: list[str] = []
    for text in texts:
        is_glob = GLOB_CHARACTERS.search(text) and not os.path.exists(text)
        found += (_matches(text) if is_glob else []) or [text]
    return found


def _matches(pattern: str) -> list[str]:
    import glob

    return sorted(glob.glob(pattern))


def _file_id(path: Path) -> FileId | None:
    """None where there is no such file, or nothing can be known of it."""
    try:
        return _id_of(os.stat(path))
    except OSError:
        return None


def _id_of(status: os.stat_result) -> FileId:
    return status.st_dev, status.st_ino


def _real(path: Path) -> Path:
    """Without links. Links that end nowhere stay, in a circle too."""
    return Path(os.path.realpath(path))


class Record:
    """Named values, shown and compared as such. Dataclasses would double the time of a start."""

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class Part(Record):
    """One file, or rows in memory. `limit`: the bytes of the file that count, -1 for all. A file
    that was found in a directory must be a regular one; the user may name a pipe.

    `path` is absolute, as other processes read it too; None for standard input, and for rows.
    `name`: the path as it was given, or what else the part is called in messages. `file`: which
    one it was when it was found, as a rotation gives its name to another one; None where that is
    not known.
    """

    def __init__(
        self,
        name: str,
        path: Path | None = None,
        limit: int = -1,
        rows: bytes | None = None,
        is_found: bool = False,
        file: FileId | None = None,
    ) -> None:
        self.name = name
        self.path = path
        self.limit = limit
        self.rows = rows
        self.is_found = is_found
        self.file = file
        self._pipe: io.FileIO | None = None
        self._head = b""  # of a pipe, which can be read but once

    @property
    def is_pipe(self) -> bool:
        return self.rows is None and (self.path is None or not self.path.is_file())

    def first_ns(self) -> int | None:
        """The time of the first good row, Unix nanoseconds; None where there is none, or where it
        is not in the first megabyte of a pipe. OSError where it cannot be read."""
        if self.is_pipe:
            return self._first_ns_of_pipe()
        with contextlib.ExitStack() as stack, contextlib.suppress(ValueError):
            return _core.trace_first_ns(self.opened(stack))
        return None

    def _first_ns_of_pipe(self) -> int | None:
        self._pipe = self._open(self.path) if self.path else io.FileIO(0, "rb", closefd=False)
        while len(self._head) < HEAD_MAX and (chunk := self._pipe.read(HEAD_MAX)):
            self._head += chunk
            whole = self._head[: self._head.rfind(b"\n") + 1]
            with contextlib.suppress(ValueError):
                return _core.trace_first_ns((self.name, -1, -1, whole, True))
        return None

    def size(self) -> int:
        if self.rows is not None:
            return len(self.rows)
        if self.path is None:
            return 0
        size = self.path.stat().st_size
        return size if self.limit < 0 else min(size, self.limit)

    def opened(self, stack: contextlib.ExitStack) -> _core._TracePart:
        """The form in which the engine takes it, its file open until the stack is left."""
        if self.rows is not None:
            return self.name, -1, -1, self.rows, False
        if self._pipe is not None:
            return self.name, stack.enter_context(_joined(self._head, self._pipe)), -1, None, True
        if self.path is None:
            return self.name, 0, -1, None, True
        return (
            self.name,
            stack.enter_context(self._open(self.path)).fileno(),
            self.limit,
            None,
            True,
        )

    def _open(self, path: Path) -> io.FileIO:
        """The file, which may have become an older part since it was found."""
        opener = open_filled if self.is_found else open_filled_or_pipe
        for place in self._places(path):
            with contextlib.suppress(FileNotFoundError):
                file = open(place, "rb", buffering=0, opener=opener)  # noqa: SIM115
                if self.file in (None, _id_of(os.fstat(file.fileno()))):
                    return file
                file.close()
        return open(path, "rb", buffering=0, opener=opener)

    def _places(self, path: Path) -> Iterator[Path]:
        yield path
        if self.file is not None and _is_current(path.name):
            yield from _older_parts(path)


def _why_not(path: Path) -> str:
    """Why a file that was found cannot be used; "" where it can."""
    try:
        with open(path, "rb", buffering=0, opener=open_filled):
            return ""
    except OSError as error:
        return error.strerror or str(error)


@contextlib.contextmanager
def _joined(head: bytes, pipe: io.FileIO) -> Iterator[int]:
    """A pipe of what was read of another one, and of the rest. The thread ends with either."""
    read_fd, write_fd = os.pipe()

    def copy() -> None:
        with open(write_fd, "wb", buffering=0) as out, contextlib.suppress(BrokenPipeError):
            data = memoryview(head)
            while data:
                data = data[out.write(data) :]
                data = data or memoryview(pipe.read(HEAD_MAX) or b"")

    threading.Thread(target=copy, daemon=True).start()
    try:
        yield read_fd
    finally:
        os.close(read_fd)


class FileSet(Record):
    """What one process of one rank recorded."""

    def __init__(self, rank: int, worker: int = 0) -> None:
        self.rank = rank
        self.worker = worker
        self.parts: list[Part] = []
        self.slot = 0

    def starts(self) -> list[str]:
        """How the names of other files of the process begin, one for each folder: "logs/rank_0"."""
        found: dict[str, None] = {}
        for path in (part.path for part in self.parts if part.path is not None):
            if match := CSV_NAME.match(path.name):
                worker = f".w{match[2]}" if match[2] else ""
                found[os.path.join(path.parent, f"rank_{match[1]}{worker}")] = None
        return list(found)

    def heartbeat(self) -> Path | None:
        """Where the heartbeat file of the process is; None where no part has the name of one."""
        return next((Path(f"{start}.heartbeat.json") for start in self.starts()), None)


class Inputs:
    """Collects file sets. `errors` are inputs that were left out, with the reason."""

    def __init__(self, rank: int | None, recover: bool) -> None:
        self._rank = rank
        self._recover = recover
        self._sets: dict[tuple[str, int, int], FileSet] = {}
        self._seen: set[Path] = set()  # journals
        self._parts: dict[FileId, Part | None] = {}  # None for a CSV that belongs to no rank
        self._unread: dict[Path, int] = {}  # journals of dead processes, and their ranks
        self.errors: list[str] = []

    def add(self, text: str, is_found: bool = False) -> None:
        if text == "-":
            self._set("-", self._next_rank(), 0).parts.append(Part("standard input"))
            return
        try:
            self._add_path(text, is_found)
        except OSError as error:  # it cannot be listed, or what is in it cannot be asked for
            self.errors.append(f"{error.filename or text}: {error.strerror or error}")

    def _add_path(self, text: str, is_found: bool) -> None:
        path = Path(text)
        if path.is_dir():
            self._add_directory(path)
        elif path.exists():
            self._add_file(path, is_found)
        elif GLOB_CHARACTERS.search(text):
            self._add_glob(text)
        else:
            self.errors.append(f"{text}: no such file or directory")

    def _add_glob(self, pattern: str) -> None:
        found = _matches(pattern)
        if not found:
            self.errors.append(f"{pattern}: matches no file")
        for name in found:
            self.add(name, is_found=True)

    def _add_directory(self, path: Path) -> None:
        # One that is rotated while the names are listed is known by what had its name before.
        before = {name: _file_id(path / name) for name in os.listdir(path) if _is_current(name)}
        names = sorted(os.listdir(path))
        files = [path / name for name in names if CSV_NAME.match(name)]
        journals = [path / name for name in names if JOURNAL_NAME.match(name)]
        if not files and not (journals and self._recover):
            found = " (it has journals: --recover reads them)" if journals else ""
            self.errors.append(f"{path}: the directory holds no profile_rank_*.csv{found}")
            return
        for file in sorted(files, key=_rotation_order):
            if _is_current(file.name) and before.get(file.name) is None:  # it was just made
                self._add_with_older(file, is_found=True)
            else:
                self._add_csv(file, is_found=True, file=before.get(file.name))
        self._take_journals(journals)

    def _take_journals(self, journals: Iterable[Path]) -> None:
        """Of files that are converted anyway."""
        for journal in journals:
            if self._recover:
                self._add_journal(journal)
            else:
                match = JOURNAL_NAME.match(journal.name)
                self._unread[journal] = int(match[1]) if match else 0

    def unread_journals(self) -> list[str]:
        """A line where dead processes have recorded what is in no CSV and is not asked for."""
        found: dict[int, int] = {}
        for path, rank in self._unread.items():
            rows = _rows_of_the_dead(path)
            if rows:
                found[rank] = found.get(rank, 0) + rows
        if not found:
            return []
        shown = ", ".join(map(str, sorted(found)[:RANKS_SHOWN]))
        more = "" if len(found) <= RANKS_SHOWN else f" and {len(found) - RANKS_SHOWN} more"
        ranks = f"rank {shown}" if len(found) == 1 else f"ranks {shown}{more}"
        return [f"journals of dead processes hold {sum(found.values())} rows that are in no CSV "
                f"({ranks}): --recover reads them"]  # fmt: skip

    def _add_file(self, path: Path, is_found: bool) -> None:
        if path.name.endswith(TRACE_SUFFIXES):
            self.errors.append(
                f"{path}: is a trace, not a profile CSV; --merge takes Chrome's JSON"
            )
            return
        if path.name.endswith((".journal", ".journal-ref")):
            self._add_journal(path)
            return
        match = CSV_NAME.match(path.name)
        self._add_with_older(path, is_found)
        if match:
            self._take_journals(_find_journals(path, match))

    def _add_with_older(self, path: Path, is_found: bool) -> None:
        file = _file_id(path)
        for older in _older_parts(path) if _is_current(path.name) else ():
            self._add_csv(older, is_found=True)
        self._add_csv(path, is_found, file)

    def _add_csv(self, path: Path, is_found: bool, file: FileId | None = None) -> None:
        """file: which one had the name before the older parts were listed."""
        file = file or _file_id(path)
        if file in self._parts:
            return
        is_checked = is_found and file == _file_id(path)  # else it has another name by now
        if is_checked and not path.is_file():
            self.errors.append(f"{path}: no regular file")
            return
        if is_checked and (reason := _why_not(path)):
            self.errors.append(f"{path}: {reason}")
            return
        match = CSV_NAME.match(path.name)
        part = Part(str(path), path.absolute(), is_found=is_found, file=file)
        is_of_none = self._is_of_no_rank(path, match)
        if file is not None:
            self._parts[file] = None if is_of_none else part
        if is_of_none:
            return
        if match:
            rank, worker = int(match[1]), int(match[2] or 0)
            rank = rank if self._rank is None else self._rank
            target = self._set(str(path.parent), rank, worker)
        else:
            target = self._set(str(path), self._next_rank(), 0)
        target.parts.append(part)

    def _is_of_no_rank(self, path: Path, match: re.Match[str] | None) -> bool:
        """Whether its name has a number above those of ranks and processes, which is noted."""
        if match is None or self._rank is not None:
            return False
        is_of_none = max(int(match[1]), int(match[2] or 0)) > RANK_MAX
        if is_of_none:
            self.errors.append(f"{path} belongs to no rank and is left out")
        return is_of_none

    def _add_journal(self, given: Path) -> None:
        path = self._followed(given)
        if path is None or _real(path) in self._seen:
            return
        self._seen.add(_real(path))
        try:
            csv_name, csv_bytes, rows = _core.recover_rows(str(path))
        except (OSError, ValueError) as error:
            self.errors.append(f"{path}: {error}")
            return
        match = JOURNAL_NAME.match(path.name)
        if self._is_of_no_rank(path, match):
            return
        rank, worker = (int(match[1]), int(match[2] or 0)) if match else (self._next_rank(), 0)
        parent = str(Path(csv_name).parent) if csv_name else str(given.parent)
        if csv_name and csv_bytes > 0 and Path(csv_name).exists():
            self._add_file_of_journal(Path(csv_name), csv_bytes)
        target = self._set(parent, rank if self._rank is None else self._rank, worker)
        if rows:
            target.parts.append(Part(f"{path} (recovered rows)", rows=rows))
        if DOUBTFUL in rows:
            self.errors.append(
                f"{path}: of another boot, or with parts of several moments, as after a power "
                "loss; the rows that only it holds have doubtful=1"
            )

    def _add_file_of_journal(self, csv: Path, csv_bytes: int) -> None:
        file = _file_id(csv)
        if file is not None and file not in self._parts:  # rotations since the names were listed
            current = csv.with_name(re.sub(r"\.part\d+\.csv$", ".csv", csv.name))
            for older in _older_parts(current):
                if _rotation_order(older) <= _rotation_order(csv):
                    self._add_csv(older, is_found=True)
            self._add_csv(csv, is_found=True, file=file)
        part = None if file is None else self._parts.get(file)
        if part is not None:
            part.limit = csv_bytes

    def _followed(self, path: Path) -> Path | None:
        """The journal that a pointer file names; a journal itself as it is."""
        if not path.name.endswith("-ref"):
            return path
        target, problem = follow_pointer(str(path))
        if target is not None and not os.path.exists(target):
            problem = f"names {target}, which is not on this host"
        if problem:
            self.errors.append(f"{path}: {problem}")
        return Path(target) if target is not None and not problem else None

    def _set(self, place: str, rank: int, worker: int) -> FileSet:
        return self._sets.setdefault((place, rank, worker), FileSet(rank, worker))

    def _next_rank(self) -> int:
        if self._rank is not None:
            return self._rank
        used = {file_set.rank for file_set in self._sets.values()}
        return next(rank for rank in range(len(used) + 1) if rank not in used)

    def file_sets(self, ranks: set[int] | None) -> list[FileSet]:
        """In the order of ranks. Each gets a separate slot among the sets of its rank."""
        found = [s for s in self._sets.values() if s.parts and (ranks is None or s.rank in ranks)]
        found.sort(key=lambda s: (s.rank, s.worker))
        taken: set[tuple[int, int]] = set()
        for file_set in found:
            file_set.slot = file_set.worker
            while (file_set.rank, file_set.slot) in taken:
                file_set.slot += 1
            taken.add((file_set.rank, file_set.slot))
        return found


def _rows_of_the_dead(path: Path) -> int:
    """How many rows only this journal has; 0 while its process lives."""
    target = str(path)
    if path.name.endswith("-ref"):
        found, _ = follow_pointer(target)
        if found is None:
            return 0
        target = found
    try:
        if _core.read_journal(target)["held"]:
            return 0
        rows = _core.recover_rows(target)[2]
        return rows.count(b"\n") - rows.count(b',START,,"opens=')
    except (OSError, ValueError):
        return 0  # it is on another host, or was adopted in between


def _rotation_order(path: Path) -> tuple[int, int, int]:
    match = CSV_NAME.match(path.name)
    assert match is not None
    part = sys.maxsize if match[3] is None else int(match[3])
    return int(match[1]), int(match[2] or 0), part


def _is_current(name: str) -> bool:
    match = CSV_NAME.match(name)
    return match is not None and match[3] is None


def _older_parts(path: Path) -> Iterable[Path]:
    stem = path.name.removesuffix(".csv")
    parts = re.compile(re.escape(stem) + r"\.part\d+\.csv$")
    found = [path.parent / name for name in os.listdir(path.parent) if parts.match(name)]
    return sorted(found, key=_rotation_order)


def _find_journals(path: Path, match: re.Match[str]) -> list[Path]:
    worker = f".w{match[2]}" if match[2] else ""
    start = f"rank_{match[1]}{worker}."
    names = sorted(os.listdir(path.parent))
    found = [name for name in names if name.startswith(start) and JOURNAL_NAME.match(name)]
    if not worker:
        found = [name for name in found if not name.startswith(f"{start}w")]
    return [path.parent / name for name in found]
