"""Reads the finished stages of all ranks of a run from their directories.

Files are found and sorted as csv2trace does it: rotated parts, the current file, then the rows
that only a journal holds. A rank is read by the engine, in one piece, without the interpreter's
lock.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from ... import _core
from ...core.bounded_read import describe
from ...core.run_files.lost_rows import LostRows, lost_in_heartbeat, lost_in_notes
from ...core.run_files.row_metadata import whole_number
from ...core.run_files.run_metadata import Note, parse_note, read_run_metadata
from ...core.run_files.state import WORLD_SIZE_MAX
from ...trace.inputs import FileSet, Inputs, Part

Columns: TypeAlias = dict[str, npt.NDArray[Any]]  # int64 where DTYPES does not say otherwise


SEPARATOR = "/"
RUN_END = "my_utils.run_end"
DTYPES = {"cuda_ms": "f8", "value": "f8", "path": "u4", "tag": "u4", "name": "u4", "attempt": "i4"}
INTEGER = re.compile("-?[0-9]{1,19}")
GROUP = re.compile(r"\b([a-z]{2,3})[=_-]?(\d+)\b")
HEAD_BYTES = 256 << 10  # of a file, in which a process has said what it says once
DIGITS_MAX = 10  # of a place in a group
SPAN_MAX = 1 << 61  # ns: no job has run for 73 years, and sums of such times fit into 64 bits
GROUPS = ("dp", "tp", "pp", "ep", "cp", "sp")


@dataclass
class RankMetadata:
    """What is known of a rank beside its stages.

    clock_error_s: the bound of its clock's error against rank 0, None where clocks were not lined
    up. attempts: the number of its last start in the directory. older_runs: runs that were recorded
    into the same files before; they are left out. programs: those of them that another program was.
    begin_ns, end_ns: of what counts, Unix time.
    open: stages that never ended. dropped: records that were lost. lost: those that could not be
    written, with their steps.
    """

    rank: int
    host: str = ""
    label: str = ""
    world_size: int = 0
    attempts: int = 0
    older_runs: int = 0
    programs: list[str] = field(default_factory=list)
    begin_ns: int = 0
    end_ns: int = 0
    clock_error_s: float | None = None
    rows: int = 0
    bad_rows: int = 0
    dropped: int = 0
    open: int = 0
    lost: list[LostRows] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def groups(self) -> dict[str, int]:
        """Its places in the parallel groups that its label names: "dp=3 tp=0 pp1"."""
        places = {name: place_of(text) for name, text in GROUP.findall(self.label)}
        return {name: at for name, at in places.items() if name in GROUPS and at is not None}


def place_of(text: str) -> int | None:
    """The number of a pipeline stage, or of a place in a group; None for what no run has.

    >>> place_of("3"), place_of(""), place_of(str(10**20))
    (3, None, None)
    """
    place = int(text) if text.isdecimal() and len(text) <= DIGITS_MAX else WORLD_SIZE_MAX
    return place if place < WORLD_SIZE_MAX else None


@dataclass
class RankStages:
    """One rank: `stages` has the columns step, path (an index into `paths`), begin_ns, end_ns, tid,
    cuda_ms, cuda_begin_ns, cuda_error_ns, tag (an index into `tags`) and attempt. `counters` has
    step, value, attempt and name (an index into `counter_names`: "memory.rss_bytes"). `notes` are
    rows about the run. `paths` are names joined by "/", parents before their children; `parents`
    their indices, or the path's own where it has no parent."""

    metadata: RankMetadata
    paths: list[str]
    parents: list[int]
    stages: Columns
    tags: list[str] = field(default_factory=list)
    counters: Columns = field(default_factory=dict)
    counter_names: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    @property
    def is_automatic(self) -> bool:
        """Whether `my_utils run` recorded it, which counts the steps itself."""
        return any(note.name == "my_utils.run" for note in self.notes)

    @property
    def around(self) -> npt.NDArray[np.int64]:
        """Of each path the one around it, -1 where there is none."""
        parents = np.array(self.parents, np.int64)
        return np.where(parents == np.arange(len(parents)), -1, parents)


def nanoseconds(text: str | None) -> int | None:
    """Of a row, which may be damaged: a moment or a difference.

    >>> nanoseconds("-7"), nanoseconds("7.5"), nanoseconds(str(2**62)), nanoseconds(None)
    (-7, None, None, None)
    """
    number = int(text) if text is not None and INTEGER.fullmatch(text) else SPAN_MAX
    return number if abs(number) < SPAN_MAX else None


def clock_ahead_ns(notes: Iterable[Note]) -> list[int]:
    """After each of a rank's notes, by how much the system's clock is ahead of the axis of the
    rank's times, of which its steps are taken out. The processes of a rank saw its steps one after
    the other; a new time offset begins a new axis."""
    found: list[int] = []
    ahead_ns = before_ns = 0
    attempt, offset = None, "0"
    for note in notes:
        if note.name == "my_utils.process" and note.attempt != attempt:
            before_ns, attempt, offset = ahead_ns, note.attempt, "0"
        elif note.name == "my_utils.time_offset" and note.pairs.get("offset_ns") != offset:
            ahead_ns, offset = before_ns, note.pairs.get("offset_ns", "0")
        elif note.name == "my_utils.clock_step":
            total, delta = (nanoseconds(note.pairs.get(key)) for key in ("total_ns", "delta_ns"))
            moved_ns = ahead_ns + (delta or 0) if total is None else before_ns + total
            ahead_ns = moved_ns if abs(moved_ns) < SPAN_MAX else ahead_ns
        found.append(ahead_ns)
    return found


def depths_of(around: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Of each path how many are around it. around: as `RankStages.around`."""
    depths = np.zeros(len(around), np.int64)
    for path, outer in enumerate(around.tolist()):  # which comes first
        depths[path] = 0 if outer < 0 else depths[outer] + 1
    return depths


def find_rank_files(
    paths: Iterable[str | os.PathLike[str]], ranks: set[int] | None = None
) -> tuple[list[FileSet], list[str]]:
    """The files of each rank, and what could not be used. What a rank wrote on several hosts, as a
    run may start anew with other ranks on a host, is joined in the order of its attempts. Of other
    processes of a rank the first is taken, and those of forked children are named in the second
    list."""
    inputs = Inputs(rank=None, recover=True)
    for path in paths:
        inputs.add(os.fspath(path))
    problems = list(inputs.errors)
    found: dict[int, FileSet] = {}
    for file_set in inputs.file_sets(ranks):
        if file_set.rank not in found:
            found[file_set.rank] = file_set
        elif not _join(found[file_set.rank], file_set):
            problems.append(
                f"rank {file_set.rank}: {file_set.parts[0].name} belongs to a second process of "
                "this rank and is left out"
            )
    return list(found.values()), problems


def _join(one: FileSet, other: FileSet) -> bool:
    """Adds the parts of the other one, if it has other attempts of the same run."""
    (run, attempts), (other_run, others) = read_attempts(one), read_attempts(other)
    if not run or run != other_run or attempts & others or one.worker != other.worker:
        return False
    in_order = sorted((one, other), key=lambda each: min(attempts if each is one else others))
    one.parts = [part for each in in_order for part in each.parts]
    return True


def read_attempts(file_set: FileSet) -> tuple[str, set[int]]:
    """The id of its run, "" where it has none, and the numbers of its attempts."""
    paths = {str(part.path) for part in file_set.parts if part.path and ".part" not in part.name}
    notes = [note for path in sorted(paths) for note in read_run_metadata(path).notes]
    ids = {pairs["run_id"] for note in notes for pairs in [note.pairs] if "run_id" in pairs}
    return ids.pop() if len(ids) == 1 else "", {note.attempt for note in notes}


def newest_rows(file_set: FileSet, most_bytes: int) -> FileSet:
    """The newest so many bytes of a rank's rows, and before them what the process says of itself at
    the beginning of a file. The first step may not be whole. What cannot be read stays, so that the
    reader says so."""
    newest = FileSet(file_set.rank, file_set.worker)
    left = most_bytes
    for part in reversed(file_set.parts):
        if left <= 0:
            break
        with contextlib.suppress(OSError):
            size = part.size()
            part, left = part if size <= left else _cut_part(part, size, left), left - size
        newest.parts.insert(0, part)
    return newest


def _cut_part(part: Part, size: int, count: int) -> Part:
    with contextlib.ExitStack() as stack:
        _, descriptor, _, rows, has_header = part.opened(stack)
        if rows is not None:
            head, tail = rows[:HEAD_BYTES], rows[size - count :]
        else:
            head = os.pread(descriptor, HEAD_BYTES, 0)
            tail = os.pread(descriptor, count, size - count)
    said = [row for row in head.splitlines(True)[has_header:-1] if b",my_utils." in row]
    whole = tail[tail.find(b"\n") + 1 :]
    return Part(part.name, part.path, rows=b"".join(said) + whole)


def read_rank(file_set: FileSet) -> RankStages:
    """Reads one rank, all its attempts. `metadata.errors` lists what cannot be read.
    Thread-safe."""
    unreadable = []
    with contextlib.ExitStack() as stack:
        parts = []
        for part in file_set.parts:
            try:
                parts.append(part.opened(stack))
            except OSError as error:
                unreadable.append(f"{part.name}: {error.strerror}")
        result = _core.read_stages(parts)
    notes = [parse_note(attempt, text, at_ns) for attempt, at_ns, _, text in result["notes"]]
    stages = _columns(result["columns"], result["count"])
    stages = _without_a_step_after_the_last(stages, notes)
    counters = _columns(result["counters"], result["counter_count"])
    counters = _without_a_step_after_the_last(counters, notes)
    begin_ns, end_ns = _span(stages)
    lost, unreported = _lost(file_set, notes, unreadable)
    metadata = RankMetadata(
        rank=file_set.rank,
        host=unquote(result["host"]),
        label=unquote(result["label"]),
        world_size=result["world_size"],
        attempts=result["attempt"],
        begin_ns=begin_ns,
        end_ns=end_ns,
        clock_error_s=None if result["clock_error_ns"] < 0 else result["clock_error_ns"] * 1e-9,
        rows=result["rows"],
        bad_rows=result["bad_rows"],
        dropped=result["dropped"] + unreported,
        open=result["open"],
        lost=lost,
        errors=unreadable + result["errors"],
    )
    parents = [parent for parent, _ in result["paths"]]
    return RankStages(
        metadata, _full_names(result["paths"]), parents, stages, result["tags"],
        counters, result["counter_names"], notes,
    )  # fmt: skip


def _without_a_step_after_the_last(columns: Columns, notes: Iterable[Note]) -> Columns:
    """What `my_utils run` recorded after the last iteration is in step -1. Rows that were written
    before the process knew that there is no other one have the next number."""
    for note in notes:
        count = whole_number(note.pairs.get("iterations")) if note.name == RUN_END else None
        if not count or int(columns["step"].max(initial=-1)) < count:
            continue
        rows = (columns["step"] >= count) & (columns["attempt"] == note.attempt)
        columns = {**columns, "step": np.where(rows, -1, columns["step"])}
    return columns


def _lost(
    file_set: FileSet, notes: Iterable[Note], unreadable: list[str]
) -> tuple[list[LostRows], int]:
    """The rows that could not be written, and how many of them no row reports."""
    lost = lost_in_notes(notes)
    path = file_set.heartbeat()
    unreported: list[LostRows] = []
    try:
        unreported = [] if path is None else lost_in_heartbeat(path, lost)
    except (OSError, ValueError) as error:
        unreadable.append(f"{path}: {describe(error)}")
    return lost + unreported, sum(one.rows for one in unreported)


def last_run(rank: RankStages) -> RankStages:
    """Without the stages of runs that were recorded into the same files before.

    A start that continues after the first step of the one before resumes it; one that begins at
    that step or before it is another run. Where `my_utils run` recorded, another program is.
    """
    if rank.is_automatic:
        return _last_program(rank)
    stages, older_runs = _last_run(rank.stages)
    if not older_runs:
        return rank
    begin_ns, end_ns = _span(stages)
    metadata = replace(rank.metadata, older_runs=older_runs, begin_ns=begin_ns, end_ns=end_ns)
    return replace(rank, stages=stages, metadata=metadata)


def _last_program(rank: RankStages) -> RankStages:
    attempts = rank.stages["attempt"]
    if all_same(attempts):
        return rank
    others = other_programs(rank.notes, np.unique(attempts[rank.stages["step"] >= 0]).tolist())
    if not others:
        return rank
    stages, counters = (
        chosen(columns, ~np.isin(columns["attempt"], [*others]))
        for columns in (rank.stages, rank.counters)
    )
    begin_ns, end_ns = _span(stages)
    metadata = replace(
        rank.metadata, older_runs=len(others), programs=[*others.values()],
        begin_ns=begin_ns, end_ns=end_ns,
    )  # fmt: skip
    notes = [note for note in rank.notes if note.attempt not in others]
    return replace(rank, metadata=metadata, stages=stages, counters=counters, notes=notes)


def other_programs(notes: Iterable[Note], attempts: Sequence[int]) -> dict[int, str]:
    """Of these attempts those in which another program ran than in the last one, and its name: one
    command may start several, one after the other.

    >>> notes = [Note(1, "my_utils.run", {"script": "/a/pretrain.py"}),
    ...          Note(2, "my_utils.run", {"script": "/a/tune.py"})]
    >>> other_programs(notes, [1, 2])
    {1: 'pretrain.py'}
    """
    programs = programs_of(notes)
    last = programs.get(max(attempts, default=0), "")
    names = {attempt: programs.get(attempt, last) for attempt in attempts}
    return {attempt: name for attempt, name in names.items() if last and name != last}


def programs_of(notes: Iterable[Note]) -> dict[int, str]:
    """By attempt the file name of the script, or the module, that ran; of `my_utils run` alone."""
    return {
        note.attempt: os.path.basename(note.pairs["script"])
        for note in notes
        if note.name == "my_utils.run" and "script" in note.pairs
    }


def all_same(column: npt.NDArray[Any]) -> bool:
    """Whether all rows have one value, or there is none."""
    return column.strides == (0,) or not len(column) or bool(column.min() == column.max())


def chosen(columns: Columns, rows: npt.NDArray[np.bool_]) -> Columns:
    """The same columns where all rows are chosen."""
    if rows.all():
        return columns
    count = int(rows.sum())
    return {
        name: np.broadcast_to(column[:1], count) if column.strides == (0,) else column[rows]
        for name, column in columns.items()
    }


def by_attempt(columns: Columns) -> Iterator[tuple[int, Columns]]:
    """The rows of each attempt, in the order of their numbers."""
    attempts = columns["attempt"]
    if all_same(attempts):
        yield from ((int(number), columns) for number in attempts[:1])
        return
    for number in np.unique(attempts):
        yield int(number), chosen(columns, attempts == number)


def _span(stages: Columns) -> tuple[int, int]:
    """The moments of the first begin and the last end, Unix time in ns; 0 if there is none."""
    if not len(stages["step"]):
        return 0, 0
    return int(stages["begin_ns"].min()), int(stages["end_ns"].max())


def _columns(columns: dict[str, bytes], count: int) -> Columns:
    """One value stands for a column that has no other; it stays one in memory."""
    found = {}
    for name, data in columns.items():
        dtype = np.dtype(DTYPES.get(name, "i8"))
        is_whole = len(data) == count * dtype.itemsize
        found[name] = np.ndarray(count, dtype, data, 0, None if is_whole else (0,))
    return found


def _last_run(stages: Columns) -> tuple[Columns, int]:
    """The rows of the last run, and how many runs there were before it in the files."""
    attempts = stages["attempt"]
    if all_same(attempts):
        return stages, 0
    older, last, first = 0, 0, None
    for attempt, rows in by_attempt(stages):
        step = first_step(rows["step"])
        if first is None or step <= first:
            older += first is not None
            last, first = attempt, step
    if not older:
        return stages, 0
    return chosen(stages, attempts >= last), older


def first_step(steps: npt.NDArray[np.int64]) -> int:
    """The first step of an attempt: the lowest that the next one follows, if there is one. What
    comes before a script says where it resumes is in step 0.

    >>> first_step(np.array([0, 40, 41, 42])), first_step(np.array([0, 10, 20]))
    (40, 0)
    """
    known = np.unique(steps)
    followed = known[:-1][np.diff(known) == 1]
    return int(followed[0] if len(followed) else known[0])


def _full_names(paths: list[tuple[int, str]]) -> list[str]:
    """Parents come before their children. Names that hold the separator may meet: numbered."""
    names: list[str] = []
    taken: set[str] = set()
    counts: dict[str, int] = {}
    for number, (parent, name) in enumerate(paths):
        full = name if parent == number else f"{names[parent]}{SEPARATOR}{name}"
        unique, count = full, counts.get(full, 1)
        while unique in taken:
            count += 1
            unique = f"{full} ({count})"
        counts[full] = count
        taken.add(unique)
        names.append(unique)
    return names
