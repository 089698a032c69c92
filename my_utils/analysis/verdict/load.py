"""Files of a run into arrays, without any package beyond numpy.

Each rank is read by the engine, in one piece and without the interpreter's lock; then its rows are
added up to what each stage took in each step.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import _core
from ...core.ranges import parse_members
from ...core.run_files.hosts import hosts_text
from ...core.run_files.newest import run_folders
from ...core.run_files.run_metadata import Note
from ...trace.inputs import FileSet
from .endings import describe_ending, find_processes, find_states, read_command, run_file_of
from .evaluations import with_whole_evaluations
from .load_ready import STAGE, ready_of_rank, ready_of_run
from .load_windows import first_single_step, read_whole_run
from .rank_cells import EVER, RankCells, cells_of_rank, for_the_verdict, peers_of
from .rank_files import (
    SEPARATOR,
    Columns,
    RankStages,
    chosen,
    find_rank_files,
    newest_rows,
    read_rank,
)
from .readers import read_side_by_side
from .recorded_rank import RecordedRank
from .run_data import GpuTimes, Integers, Matrix, RunData, SyncKind, SyncPoint, in_layers
from .run_ranks import (
    RunRanks,
    describe_losses,
    describe_problems,
    ranks_of_run,
    without_like_ranks,
)
from .utilisation import find_model_flops
from .window_cells import STEP_COLUMNS

CELLS_MAX = 60_000_000  # ranks × steps × stages: three arrays of them take 1.4 GB
STEPS_KEPT = 1000  # at least, however many ranks there are
NEWEST_LEAST = 64 << 10  # bytes of a rank
STAGES_MAX = 40  # what is beyond them counts into the stages around
LEAST_SHARE = 0.002  # of all time: what takes less counts into the stage around it
SYNC_KINDS: tuple[SyncKind, ...] = ("collective", "ddp", "fsdp", "pipeline", "clip")


class NothingToJudge(ValueError):
    """No rank of the input can be read; the text says why, a line each."""


def load_run(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    ranks: Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
    *,
    least_share: float = LEAST_SHARE,
    stages_max: int = STAGES_MAX,
    on_rank: Callable[[RankStages], None] | None = None,
    newest_bytes: int | None = None,
    whole: bool = False,
    few: bool = False,
) -> RunData:
    """The run in the files of all its ranks.

    paths: log directories, CSVs, journals or globs of them; one or several, which are one run. A
    folder of several runs, such as `logs` after `my_utils.auto()`, means the newest.
    ranks: only these; all by default. steps: only these, a half-open range; all by default.
    least_share, stages_max: a stage inside another one counts as part of it if it takes less than
    `least_share` of all time, or if there are more than `stages_max` stages. on_rank: called with
    all rows of each rank once they are read, by several threads. newest_bytes: only so many bytes
    of rows, the newest, of all ranks together, but some of each. whole: where the oldest parts of
    the CSVs were removed, the run from its first step on, in windows of steps: a column of its
    arrays is the mean of `width` steps then. `on_rank` is not called for these. few: of the ranks
    only the lowest one, and each that did steps that none before it did; all are read.

    If a process was started again and `my_utils run` recorded both attempts, both count, and steps
    are numbered through. Else each step counts from the last attempt that did it; an attempt that
    began again at the first step is another run, and only the last run counts. Thread-safe.

    Raises NothingToJudge, a ValueError, where no rank can be read.
    """
    several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    names = run_folders(several)
    wanted = None if ranks is None else set(ranks)
    file_sets, problems = find_rank_files(names, wanted)
    if whole and (found := _whole_run(file_sets, problems, names, wanted, steps, few)) is not None:
        return found
    if newest_bytes is not None:
        of_each = max(newest_bytes // max(len(file_sets), 1), NEWEST_LEAST)
        file_sets = [newest_rows(one, of_each) for one in file_sets]
    bounds = least_share, stages_max
    chosen = ranks_of_run(list(_read_all(file_sets, on_rank)))
    chosen = without_like_ranks(chosen) if few else chosen
    return make_run(chosen, problems, names, wanted, steps, bounds)


def _whole_run(
    file_sets: Sequence[FileSet],
    problems: list[str],
    names: Sequence[str],
    wanted: Collection[int] | None,
    steps: tuple[int, int] | None,
    few: bool,
) -> RunData | None:
    """From windows. None where the CSVs have all of these steps. Also where only they have GPU
    times; `problems` says so then."""
    found = read_whole_run(file_sets)
    if found is None:
        return None
    chosen = ranks_of_run(found.ranks)
    chosen = without_like_ranks(chosen) if few else chosen
    if not chosen.kept:
        return None
    rank = chosen.kept[0]
    files = next(one for one in file_sets if one.rank == rank.metadata.rank)
    single_from = first_single_step(files, rank)
    if steps is not None and single_from is not None and steps[0] >= single_from:
        return None
    run = make_run(chosen, [*problems, *found.problems], names, wanted, steps)
    if run.device != "cpu":
        problems.append(f"steps before {single_from} are in windows, which have no GPU times")
        return None
    run.width, run.single_from = found.width, single_from
    return run


def make_run(
    ranks: RunRanks,
    problems: Sequence[str],
    names: Sequence[str],
    wanted: Collection[int] | None,
    steps: tuple[int, int] | None,
    bounds: tuple[float, int] = (LEAST_SHARE, STAGES_MAX),
) -> RunData:
    """The run of ranks that have been read, whose cells are used up.

    problems: what was wrong with their files. names: the paths in which these were found. wanted,
    steps, bounds (least_share and stages_max): the arguments of `load_run` that chose them. Raises
    NothingToJudge where no rank has a stage.
    """
    kept = ranks.kept
    losses = list(describe_losses(ranks))
    if not kept:
        empty = losses + [
            f"rank {one.metadata.rank}: {why}"
            for one in ranks.read
            for why in one.metadata.errors or ["no stage has ended in its files"]
        ]
        raise NothingToJudge("\n".join([*problems, *empty]) or "no rank was found")
    run = _as_arrays(kept, ranks.shifts, steps or EVER, bounds)
    run.problems = [*problems, *describe_problems(ranks, wanted or ()), *run.problems]
    run.world_size = 0 if wanted is not None else max(one.metadata.world_size for one in kept)
    run.older_attempts = max(one.metadata.older_runs for one in kept)
    if again := [one.repeated for one in kept if one.repeated is not None]:
        run.repeated = min(first for first, _ in again), max(last for _, last in again)
    run.losses = losses
    run.recorded = [] if ranks.lost else _recorded(kept, ranks.shifts)  # calls may be missing
    run.run_file, unreadable = run_file_of(names)
    hosts = list(filter(None, [hosts_text(names)]))
    run.problems = [*run.problems, *unreadable, *hosts]
    run.losses = [*run.losses, *hosts]
    run.paths, run.command = list(names), read_command(run.run_file)
    run.gone = tuple(ranks.gone)
    run.processes, run.all_closed = find_processes(names)
    run.ended, run.running = find_states(run.processes, run.ranks)
    if not run.running:
        has_ended = dict(zip(run.ranks.tolist(), run.ended, strict=True))
        run.ending = describe_ending(kept, has_ended, run.run_file)
    return run


def _read_all(
    file_sets: Sequence[FileSet], on_rank: Callable[[RankStages], None] | None
) -> Iterator[RankCells]:
    def read(file_set: FileSet) -> RankCells:
        rank = with_whole_evaluations(read_rank(file_set))
        if on_rank is not None:
            on_rank(rank)
        return for_the_verdict(cells_of_rank(rank))

    return read_side_by_side(file_sets, read)


def _recorded(ranks: list[RankCells], shifts: dict[int, int]) -> list[RecordedRank]:
    found = [one.recorded for one in ranks if one.recorded is not None]
    for one in found:
        if shifts.get(one.attempt, 0):
            one.shift(shifts[one.attempt])
    return found


# --- all ranks ---


def _as_arrays(
    ranks: list[RankCells],
    shifts: dict[int, int],
    steps: tuple[int, int],
    bounds: tuple[float, int],
) -> RunData:
    _core.give_back_memory()  # of the rows
    numbers = _join_steps(ranks)
    numbers = numbers[(numbers >= steps[0]) & (numbers < steps[1])]
    if not len(numbers):
        raise NothingToJudge(f"no step of {steps[0]}:{steps[1]} is in the files")
    notes = [note for one in ranks for note in one.notes]
    sync_points = _sync_points(notes)
    names = _stage_names(ranks, {point.stage for point in sync_points or ()}, *bounds)
    numbers_of = {name: number for number, name in enumerate(names)}
    steps_max = max(CELLS_MAX // (len(ranks) * len(names)), STEPS_KEPT)
    left_out, numbers = numbers[:-steps_max], numbers[-steps_max:]
    shape = (len(ranks), len(numbers), len(names))
    start = min(one.metadata.begin_ns for one in ranks)
    filled = _Filled(shape, any("gpu_ns" in one.cells for one in ranks), start)
    ready = [ready_of_rank(one.notes) for one in ranks]
    last_backwards = []
    for row, one in enumerate(ranks):
        places = [_place(path, one, numbers_of) for path in range(len(one.paths))]
        filled.add(row, one, np.array(places, np.int64), numbers)
        last_backwards.append(_last_backwards(one, start) if ready[row].rows else {})
        one.cells = {}  # so that they are not in memory twice
    _core.give_back_memory()  # of the cells
    begins_anew = np.zeros(shape[:2], bool)
    for row, one in enumerate(ranks):
        if len(one.begins_anew):
            begins_anew[row] = np.isin(numbers, one.begins_anew)
    step_begins, step_ns = _step_times(filled.first, filled.last, numbers, begins_anew)
    counters = _counter_arrays(ranks, numbers)
    of_windows = [counters.pop(name, None) for name in STEP_COLUMNS]
    if of_windows[0] is not None and of_windows[1] is not None:
        since = np.array([one.metadata.begin_ns - start for one in ranks])
        step_ns, step_begins = of_windows[0], of_windows[1] + since[:, None]
    errors = [one.metadata.clock_error_s for one in ranks]
    shortened = f"only steps from {numbers[0]} on are judged: the run is long"
    return RunData(
        ranks=np.array([one.metadata.rank for one in ranks], np.int64),
        hosts=[one.metadata.host for one in ranks],
        world_size=0,
        steps=numbers,
        stages=names,
        begins=filled.begins, ends=filled.ends, totals=filled.totals,
        step_begins=step_begins, step_ns=step_ns,
        sync_points=sync_points,
        peers=np.array([peers_of(one) for one in ranks], np.int64),
        device=_device(notes, filled.gpu is not None),
        gpu=filled.gpu,
        counters=counters,
        clock_error_ns=None if None in errors else 1e9 * max(e for e in errors if e is not None),
        workload={
            key: value
            for note in notes
            for key, value in note.pairs.items()
            if note.name in ("my_utils.workload", "my_utils.run")
        },
        model_flops=find_model_flops(
            [note.pairs for note in one.notes if note.name == "my_utils.workload"] for one in ranks
        ),
        attempts=max(len(one.attempts) for one in ranks),
        renumbered=any(shifts.values()) or any(one.metadata.programs for one in ranks),
        begins_anew=begins_anew,
        longest_ns=of_windows[2],
        start_ns=start,
        ready=ready_of_run(ready, shifts, numbers, last_backwards),
        problems=[shortened] if len(left_out) else [],
    )  # fmt: skip


def _join_steps(ranks: Sequence[RankCells]) -> Integers:
    """Of all ranks, most of which have the same."""
    several: list[Integers] = []
    for one in ranks:
        steps = one.cells["step"]  # which rise
        if not several or not np.array_equal(steps, several[-1]):
            several.append(steps)
    return np.unique(np.concatenate([steps[_firsts(steps)] for steps in several]))


class _Layout(NamedTuple):
    """Where the cells of a rank go. here: those that count, None for all. at: of each that counts
    its column; firsts: where each column begins among them. stages: of each its stage, or -1.
    counts: which have one; own: which are one themselves. cells: of `counts`, the place in the flat
    array step × stage."""

    here: npt.NDArray[np.bool_] | None
    at: Integers
    firsts: Integers
    stages: Integers
    counts: npt.NDArray[np.bool_]
    own: npt.NDArray[np.bool_]
    cells: Integers


class _Filled:
    """The arrays of a run while ranks are put in. first, last: begin and end of each step."""

    def __init__(self, shape: tuple[int, int, int], has_gpu: bool, start_ns: int) -> None:
        self.start_ns = start_ns
        self.begins, self.ends = in_layers(shape), in_layers(shape)  # NaN once a rank is put in
        self.totals = in_layers(shape)
        self.first, self.last = np.full(shape[:2], np.inf), np.full(shape[:2], -np.inf)
        self._last: tuple[list[npt.NDArray[Any]], _Layout] | None = None
        self.gpu: GpuTimes | None = None
        if has_gpu:
            begins, ends, totals = (np.full(shape, np.nan) for _ in range(3))
            error, launch = (np.zeros(shape[:2]) for _ in range(2))
            self.gpu = GpuTimes(begins, ends, totals, error, np.zeros(shape), launch)

    def add(self, row: int, rank: RankCells, places: Integers, numbers: Integers) -> None:
        """places: of each of the rank's paths the stage it counts into, -1 none."""
        here, at, firsts, stages, counts, own, places_of_cells = self._layout(rank, places, numbers)
        self.begins[row] = self.ends[row] = np.nan
        if not len(at):
            return
        columns = rank.cells if here is None else chosen(rank.cells, here)
        begins, ends = columns["begin_ns"] - self.start_ns, columns["end_ns"] - self.start_ns
        self.first[row, at[firsts]] = np.minimum.reduceat(begins, firsts)
        self.last[row, at[firsts]] = np.maximum.reduceat(ends, firsts)
        self._sum(self.totals[row], places_of_cells, columns["self_ns"][counts])
        cell = row, at[own], stages[own]
        self.begins[cell], self.ends[cell] = begins[own], ends[own]
        if self.gpu is not None and "gpu_ns" in columns:
            assert self.gpu.own is not None and self.gpu.launch is not None
            since_ns = rank.metadata.begin_ns - self.start_ns
            self._add_gpu(self.gpu, row, columns, since_ns, at, stages, own)
            self._sum(self.gpu.own[row], places_of_cells, columns["device_ns"][counts])
            self._sum(self.gpu.launch[row], at, columns["launch_ns"])

    def _layout(self, rank: RankCells, places: Integers, numbers: Integers) -> _Layout:
        """That of the rank before where it has the same steps and stages, as most ranks do."""
        parents = np.array(rank.parents)
        given = [rank.cells["step"], rank.cells["path"], places, parents]
        if self._last is not None and all(map(np.array_equal, given, self._last[0])):
            return self._last[1]
        at, here = _find_columns(rank.cells["step"], numbers)
        paths = rank.cells["path"]
        if not here.all():
            at, paths = at[here], paths[here]
        stages = places[paths]
        counts = stages >= 0
        layout = _Layout(
            None if here.all() else here, at, _firsts(at),  # cells are in the order of steps
            stages, counts, counts & self._owners(places, parents)[paths],
            at[counts] * self.totals.shape[2] + stages[counts],
        )  # fmt: skip
        self._last = given, layout
        return layout

    @staticmethod
    def _sum(sums: Matrix, places: Integers, values: Any) -> None:
        """places: in the flat array."""
        sums[...] = np.bincount(places, values, minlength=sums.size).reshape(sums.shape)

    @staticmethod
    def _owners(places: Integers, parents: Integers) -> npt.NDArray[np.bool_]:
        """Paths that are a separate stage, and do not count into the one around them."""
        own: npt.NDArray[np.bool_] = (places >= 0) & (
            (parents == np.arange(len(parents))) | (places != places[parents])
        )
        return own

    def _add_gpu(
        self, gpu: GpuTimes, row: int, columns: Columns, since_ns: int, at: Any, stages: Any,
        own: Any,
    ) -> None:  # fmt: skip
        timed = own & np.isfinite(columns["gpu_ns"])
        cell = row, at[timed], stages[timed]
        gpu.begins[cell] = columns["gpu_begin_ns"][timed] + since_ns
        gpu.ends[cell] = columns["gpu_end_ns"][timed] + since_ns
        gpu.totals[cell] = columns["gpu_ns"][timed]
        np.maximum.at(gpu.error_ns[row], at[timed], columns["gpu_error_ns"][timed])


def _stage_names(
    ranks: Sequence[RankCells], always: set[str], least_share: float, stages_max: int
) -> list[str]:
    """The stages that count, parents before their children: those that take most, `always`, and
    what is around them."""
    totals: dict[str, float] = {}
    for one in ranks:
        sums = np.bincount(
            one.cells["path"], one.cells["self_ns"].astype("f8"), minlength=len(one.paths)
        )
        for path, total in enumerate(sums.tolist()):
            if total or path in one.cells["path"]:
                totals[one.paths[path]] = totals.get(one.paths[path], 0.0) + total
    least = least_share * sum(totals.values())
    order = sorted(totals, key=lambda name: -totals[name])
    kept = {name for name in order[:stages_max] if totals[name] >= least}
    kept |= {name for name in order[:stages_max] if SEPARATOR not in name}
    kept |= always & totals.keys()
    for name in list(kept):
        parts = name.split(SEPARATOR)
        around = itertools.accumulate(parts[:-1], lambda a, b: f"{a}{SEPARATOR}{b}")
        kept |= {one for one in around if one in totals}
    return sorted(kept)


def _place(path: int, rank: RankCells, numbers: dict[str, int]) -> int:
    """The stage that a path counts into: itself, or the nearest one around it; -1 for none."""
    while rank.paths[path] not in numbers:
        if rank.parents[path] == path:
            return -1
        path = rank.parents[path]
    return numbers[rank.paths[path]]


def _step_times(
    first: Matrix, last: Matrix, numbers: Integers, begins_anew: npt.NDArray[np.bool_]
) -> tuple[Matrix, Matrix]:
    """The begin of each step, and the time to the next one's; to the own end where the next number
    is missing, or is that of the next attempt."""
    begins = np.where(np.isfinite(first), first, np.nan)
    took = np.where(np.isfinite(last), last - first, np.nan)
    follows = (np.diff(numbers) == 1) & ~begins_anew[:, 1:]
    to_next = np.diff(begins, axis=1)
    use = follows & np.isfinite(to_next) & (to_next > 0)
    took[:, :-1] = np.where(use, to_next, took[:, :-1])
    return begins, took


# --- what the run says of itself ---


def _sync_points(notes: Sequence[Note]) -> list[SyncPoint] | None:
    """None where the run did not record where its ranks meet. Many ranks say the same, so what they
    say is distinguished by its text."""
    said = dict.fromkeys(
        (note.pairs.get("stage", ""), note.pairs.get("members", ""), note.pairs.get("kind"))
        for note in notes
        if note.name == "my_utils.sync"
    )
    if not said:
        return None
    kinds: dict[str | None, SyncKind] = {kind: kind for kind in SYNC_KINDS}
    points = (
        SyncPoint(stage, parse_members(members), kinds[kind])
        for stage, members, kind in said
        if stage and kind in kinds
    )
    return list(dict.fromkeys(points))


def _device(notes: Sequence[Note], has_gpu: bool) -> str:
    named = [note.pairs["device"] for note in notes if "device" in note.pairs]
    return ("cuda" if has_gpu else "cpu") if not named else named[-1]


def _last_backwards(rank: RankCells, start_ns: int) -> dict[int, float]:
    """By step, when the last backward in it began, ns since `start_ns`."""
    if STAGE not in rank.paths:
        return {}
    rows = rank.cells["path"] == rank.paths.index(STAGE)
    begins = (rank.cells["last_begin_ns"][rows] - start_ns).astype(np.float64)
    return dict(zip(rank.cells["step"][rows].tolist(), begins.tolist(), strict=True))


def _counter_arrays(ranks: Sequence[RankCells], numbers: Integers) -> dict[str, Matrix]:
    """Of the counters that some rank recorded."""
    rows_of = {name: row for row, name in enumerate(
        dict.fromkeys(name for one in ranks for name in one.counters.names)
    )}  # fmt: skip
    arrays = np.full((len(rows_of), len(ranks), len(numbers)), np.nan)
    for row, one in enumerate(ranks):
        at, here = _find_columns(one.counters.steps, numbers)
        counters = [rows_of[name] for name in one.counters.names]
        arrays[np.array(counters, np.int64)[:, None], row, at[here]] = one.counters.values[:, here]
    return dict(zip(rows_of, arrays, strict=True))


def _find_columns(steps: Integers, numbers: Integers) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Of each step its place among the numbers of the columns, and whether it is one of them."""
    if int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1:
        at = steps - numbers[0]
        return at, (at >= 0) & (at < len(numbers))
    at = np.minimum(np.searchsorted(numbers, steps), len(numbers) - 1)
    return at, numbers[at] == steps


def _firsts(steps: Integers) -> Integers:
    """Where each of some steps that rise begins."""
    is_first = np.ones(len(steps), bool)
    np.not_equal(steps[1:], steps[:-1], out=is_first[1:])
    return np.flatnonzero(is_first)
