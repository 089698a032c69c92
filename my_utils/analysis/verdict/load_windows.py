"""The whole run, from windows of steps, where the CSVs have only its newest steps.

A window becomes a column of the arrays of a run, with the mean of its steps, so that nothing above
knows where a step's time came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...core.run_files.lost_rows import LOST_ROW
from ...core.run_files.row_metadata import whole_number
from ...core.run_files.run_metadata import Note, read_run_metadata
from ...trace.inputs import CSV_NAME, FileSet, Part
from .rank_cells import Attempt, RankCells
from .rank_files import HEAD_BYTES, RankMetadata, RankStages, all_same, other_programs, read_rank
from .readers import read_side_by_side
from .run_data import Integers
from .window_cells import WindowCells, cells_of_windows
from .window_files import WIDTHS, RankWindows, chosen_windows, read_windows

CELLS_MAX = 13_000_000  # ranks × columns × stages
COLUMNS_MIN = 95  # that windows are not joined below: fewer have no timeline
TOGETHER = 16  # ranks whose windows become cells at once


class WholeRun(NamedTuple):
    """width: steps of a column. ranks: with cells of windows. problems: a sentence each."""

    width: int
    ranks: list[RankCells]
    problems: list[str]


def read_whole_run(file_sets: Sequence[FileSet]) -> WholeRun | None:
    """None where the CSVs have all steps, or where some rank has no windows."""
    of_each_host = {_folder(one): one for one in reversed(file_sets)}.values()
    shape = _choose_width(file_sets) if any(map(_reaches_further, of_each_host)) else None
    if shape is None:
        return None
    coarser = (of_files for of_files in WIDTHS if of_files >= shape.of_files)
    tried = (_read_all(file_sets, _Shape(one, max(shape.width, one))) for one in coarser)
    return next((found for found in tried if found is not None), None)


def _read_all(file_sets: Sequence[FileSet], shape: _Shape) -> WholeRun | None:
    """None where a rank has no windows of that width."""
    ranks: list[RankCells] = []
    several = [file_sets[at : at + TOGETHER] for at in range(0, len(file_sets), TOGETHER)]
    for read in read_side_by_side(several, lambda some: _read(some, shape)):
        if read is None:
            return None
        ranks += read
    problems = [
        f"rank {one.metadata.rank}: {error}" for one in ranks for error in one.metadata.errors
    ]
    return WholeRun(shape.width, ranks, problems)


def _folder(file_set: FileSet) -> str:
    """Where its rows are. All ranks of a folder are alike in how far they reach back."""
    return next((str(part.path.parent) for part in file_set.parts if part.path is not None), "")


def _reaches_further(file_set: FileSet) -> bool:
    """Whether there are windows of steps before those in the CSV."""
    found = read_windows(file_set, WIDTHS[0])
    if found is None:
        return False
    first = found.windows[int(found.windows["begin_ns"].argmin())]
    begins = _read_head(file_set).stages["begin_ns"]
    step_ns = int(first["sum_ns"]) // int(first["steps"])
    return len(begins) == 0 or int(begins.min()) > int(first["begin_ns"]) + step_ns


class _Shape(NamedTuple):
    """of_files: the width of the windows that are read, one of WIDTHS. width: that of columns."""

    of_files: int
    width: int


def _choose_width(file_sets: Sequence[FileSet]) -> _Shape | None:
    """The finest windows that reach back as far as the coarsest, of all ranks not too many; of the
    coarsest several in a column where they are."""
    found: _Shape | None = None
    first_step: int | None = None
    for of_files in reversed(WIDTHS):
        windows = read_windows(file_sets[0], of_files)
        if windows is None:
            continue
        columns = len(np.unique(windows.windows["first_step"] // of_files))
        cells = len(file_sets) * columns * len(windows.paths)
        begins = int(windows.windows["first_step"].min())
        if first_step is not None and (begins > first_step or cells > CELLS_MAX):
            break
        first_step = begins if found is None else first_step
        together = min(-(-cells // CELLS_MAX), max(columns // COLUMNS_MIN, 1))
        found = _Shape(of_files, of_files * together)
    return found


def _read(file_sets: Sequence[FileSet], shape: _Shape) -> list[RankCells] | None:
    """None where one of them has no windows."""
    found: list[RankWindows] = []
    said: list[_Said] = []
    for file_set in file_sets:
        windows = read_windows(file_set, shape.of_files)
        if windows is None:
            return None
        said.append(_read_notes(file_set, np.unique(windows.windows["attempt"]).tolist()))
        found.append(_without_repeated(_of_last_program(windows, said[-1])))
    cells = cells_of_windows(found, shape.width)
    return [_make_rank(*of_rank) for of_rank in zip(file_sets, said, found, cells, strict=True)]


class _Said(NamedTuple):
    """notes: of a rank's last program. programs: the others, by their attempts."""

    notes: list[Note]
    programs: dict[int, str]


def _make_rank(
    file_set: FileSet, said: _Said, windows: RankWindows, cells: WindowCells
) -> RankCells:
    notes = said.notes
    return RankCells(
        _metadata(file_set, said, windows), windows.paths, windows.parents,
        cells.cells, cells.steps, notes, windows.is_automatic,
        _attempts(windows), cells.begins_anew,
    )  # fmt: skip


def _read_notes(file_set: FileSet, attempts: list[int]) -> _Said:
    notes = _notes(file_set)
    known = _notes(file_set, in_parts=True) if len(attempts) > 1 else notes
    programs = other_programs(known, attempts)
    return _Said([note for note in notes if note.attempt not in programs], programs)


def _notes(file_set: FileSet, in_parts: bool = False) -> list[Note]:
    """What the processes say of themselves, in the newest file of each folder. in_parts: in all of
    them, which repeat each other, but have what earlier processes said."""
    paths: dict[str, None] = {}
    for part in file_set.parts:
        match = CSV_NAME.match(part.path.name) if part.path is not None else None
        if part.path is not None and match is not None and (in_parts or not match[3]):
            paths[str(part.path)] = None
    return [note for path in paths for note in read_run_metadata(path).notes]


def _metadata(file_set: FileSet, said: _Said, windows: RankWindows) -> RankMetadata:
    found = RankMetadata(
        file_set.rank, errors=windows.errors, older_runs=len(said.programs),
        programs=[*said.programs.values()],
    )  # fmt: skip
    for note in said.notes:
        if note.name == "my_utils.process":
            found.host = note.pairs.get("host", found.host)
            found.label = note.pairs.get("label", found.label)
            found.world_size = whole_number(note.pairs.get("world_size")) or found.world_size
        elif note.name == LOST_ROW:
            found.dropped += whole_number(note.pairs.get("count")) or 0
    rows = windows.windows
    found.attempts = int(rows["attempt"].max())
    found.begin_ns = int(rows["begin_ns"].min())
    found.end_ns = int(_ends(windows).max())
    return found


def _ends(windows: RankWindows) -> Integers:
    rows = windows.windows
    ends: Integers = rows["begin_ns"] + rows["sum_ns"].astype(np.int64)
    return ends


def _attempts(windows: RankWindows) -> dict[int, Attempt]:
    rows, ends = windows.windows, _ends(windows)
    return {
        int(attempt): Attempt(
            int(rows["first_step"][those].min()), int(rows["last_step"][those].max()),
            int(rows["begin_ns"][those].min()), int(ends[those].max()),
        )
        for attempt in sorted(set(rows["attempt"].tolist()))
        for those in (rows["attempt"] == attempt,)
    }  # fmt: skip


def _without_repeated(windows: RankWindows) -> RankWindows:
    """Where a script counts the steps, those that a later attempt did again count from that one."""
    rows = windows.windows
    if windows.is_automatic or all_same(rows["attempt"]):
        return windows
    kept = np.ones(len(rows), bool)
    for attempt in np.unique(rows["attempt"])[1:]:
        first = rows["first_step"][rows["attempt"] == attempt].min()
        kept &= ~((rows["attempt"] < attempt) & (rows["first_step"] >= first))
    return _only(windows, kept)


def _of_last_program(windows: RankWindows, said: _Said) -> RankWindows:
    if not said.programs:
        return windows
    return _only(windows, ~np.isin(windows.windows["attempt"], [*said.programs]))


def _only(windows: RankWindows, kept: npt.NDArray[np.bool_]) -> RankWindows:
    windows.windows, windows.cells = chosen_windows(windows.windows, windows.cells, kept)
    return windows


def first_single_step(file_set: FileSet, rank: RankCells) -> int | None:
    """The first step that is in the CSV itself, numbered as the run is. rank: that of the files,
    numbered through."""
    stages = _read_head(file_set).stages
    known = stages["step"] >= 0
    if not known.any():
        return None
    steps = stages["step"][known] + np.array(
        [rank.shifts.get(int(one), 0) for one in stages["attempt"][known]], np.int64
    )
    return int(steps.min())


def _read_head(file_set: FileSet) -> RankStages:
    """Of the oldest rows that there are."""
    head = FileSet(file_set.rank, file_set.worker)
    for part in file_set.parts[:1]:
        limited = Part(part.name, part.path, HEAD_BYTES, part.rows, part.is_found, part.file)
        head.parts.append(limited if part.size() > HEAD_BYTES else part)
    return read_rank(head)
