"""The arrays of a run that the rules judge.

A rank is a row, a step a column, a stage a layer. Files are turned into it by `load`, and a
simulator makes it without files, so that each rule can be tested against what was planted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...core.run_files.state import WORLD_SIZE_MAX
from .ready_times import ReadyTimes
from .recorded_rank import RecordedRank
from .utilisation import ModelFlops

Matrix: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
SyncKind: TypeAlias = Literal["collective", "ddp", "fsdp", "pipeline", "clip"]

HOST_COUNTERS = (
    "cpu_us", "kernel_us", "delay_us", "quota_us", "gc0_us", "gc1_us", "gc2_us", "major_faults",
    "gil_us", "storage_us", "page_us", "other_us", "stopped_us", "limits_met", "stalled_us",
    "refaults",
)  # fmt: skip
HOST_STATES = ("gc_objects", "runnable")  # which are not parts of a step's time
CLOSED = "closed"
NS_IN_US = 1000.0  # of the counters of the host
GPU_COUNTERS = ("gpu_sm_mhz", "gpu_reasons", "gpu_xids", "gpu_last_xid")
LOADER_COUNTERS = ("loader_worker", "loader_ran_us", "loader_storage_us")
LOADER_DELAY = "loader_delay_us"  # missing where the kernel does not say; "ran" has it then
LOADER_READ = "loader_read_bytes"  # from storage; in rows for which it was read anew


def in_layers(shape: tuple[int, int, int], value: float = 0.0) -> Matrix:
    """An array rank × step × stage full of `value`. A stage lies in one piece, as most rules look
    at one stage of all ranks and steps."""
    ranks, steps, stages = shape
    if not value:  # memory that is taken as it is written to
        return np.zeros((stages, ranks, steps)).transpose(1, 2, 0)
    return np.full((stages, ranks, steps), value).transpose(1, 2, 0)


def cut(values: Matrix, rows: Integers, columns: Integers) -> Matrix:
    """Of an array rank × step these rows and columns, which rise; without a copy where neither has
    a gap. Not to be written to."""
    if not (_has_no_gap(rows) and _has_no_gap(columns)):
        return values[np.ix_(rows, columns)]
    return values[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _has_no_gap(places: Integers) -> bool:
    return len(places) > 0 and int(places[-1]) - int(places[0]) == len(places) - 1


class Process(NamedTuple):
    """The last process of a rank: "running", "silent", "dead" or "closed". seen_ns: its last sign
    of life, Unix time by the clock of its host and its own offset."""

    state: str
    seen_ns: int


@dataclass(frozen=True)
class SyncPoint:
    """A stage in which ranks wait for each other.

    stage: its path. members: the ranks that meet in it, sorted; empty means all ranks. kind: why
    they meet. inferred: found in the times, not recorded by the run.
    """

    stage: str
    members: tuple[int, ...] = ()
    kind: SyncKind = "collective"
    inferred: bool = False


@dataclass
class GpuTimes:
    """GPU times of the stages, on the host's time axis: arrays rank × step × stage in ns, NaN where
    no GPU time was taken. error_ns: the bound of the error of that axis, an array rank × step.

    own: what each stage takes on the device's axis without the stages inside it, as `device_cells`
    says; launch, rank × step: for how long the device waits until the host has launched something.
    None if they follow from the first begin and the last end of each stage."""

    begins: Matrix
    ends: Matrix
    totals: Matrix
    error_ns: Matrix
    own: Matrix | None = None
    launch: Matrix | None = None


@dataclass(repr=False)
class RunData:
    """One run. Arrays of R ranks, S steps and K stages; times are ns.

    ranks, hosts: of each row; ranks are sorted. world_size: what the processes said, 0 unknown.
    steps: the number of each column, rising. stages: paths of the training thread, "/" between a
    stage and the one around it; parents come before their children.
    begins, ends: of the first and the last run of a stage in a step, each on its rank's own clock,
        counted from the begin of the run. NaN where the rank did not have the stage in the step.
    totals: what a stage took in a step, without the stages inside it; 0 if it did not run.
    step_begins: when each step began on each rank. step_ns: from its beginning to that of the next
        step; the last step ends with its last stage. NaN where the rank has no such step. What no
        stage covers (`untimed`) is step_ns less the totals.
    sync_points: where ranks meet, if the run recorded it; None if it did not, then it is inferred.
    peers: of each rank the number of its pipeline stage; only ranks with the same one are compared.
    device: where the model computes. gpu: None without GPU times.
    counters: arrays rank × step of what was recorded, NaN where missing: "samples" and "tokens" of
        a step, "rss_bytes" and "allocated_bytes" at its end, what the host took from it (see
        `causes`), what the busiest worker of the loader did meanwhile, and the state of the GPU.
    clock_error_ns: the bound of the clocks' error between ranks, None if they are not aligned.
    ended: of each rank, whether its process ended normally. problems: what could not be read,
        a sentence each; losses: those of them about rows that were lost. workload: what was
        recorded once, such as "num_workers". model_flops: of a step, None where a rank set none.
    paths: what it was read from. running: whether a process of it lives. command: the one passed to
        `my_utils run`. ending: how the run ended, "" if it ended normally.
    attempts: how many starts of the processes count; older_attempts: how many do not, because a
        later one began again at the first step. repeated: the first and the last of the steps that
        were done again, of which the last copy counts. renumbered: whether in the files the steps
        of each attempt begin at 0; here they are numbered through. begins_anew: whether a step is
        the first of an attempt on a rank, an array R × S: the time before it is not a step's. None
        if there is one attempt.
    ready: when the buckets of DDP were ready inside backward, None if it was not recorded.
    recorded: the ranks that recorded where they meet, for a replay. processes: by rank.
        all_closed: whether there are some, and all of them and their children ended normally. gone:
        ranks that the last attempt has no more; they are in no array. run_file: what `run.json`
        says.
    start_ns: the begin of the run, from which times are counted, Unix time by the clock of the rank
        that began first.
    width: of how many steps a column has the means; `steps` has the first of each then. longest_ns:
        the longest step of each column, an array rank × step; None where a column is one step.
        single_from: the first step that the CSVs have by itself.
    """

    ranks: npt.NDArray[np.int64]
    hosts: Sequence[str]
    world_size: int
    steps: npt.NDArray[np.int64]
    stages: Sequence[str]
    begins: Matrix
    ends: Matrix
    totals: Matrix
    step_begins: Matrix
    step_ns: Matrix
    sync_points: Sequence[SyncPoint] | None = None
    peers: npt.NDArray[np.int64] | None = None
    device: str = "cpu"
    gpu: GpuTimes | None = None
    counters: Mapping[str, Matrix] = field(default_factory=dict)
    clock_error_ns: float | None = None
    ended: Sequence[bool] = ()
    problems: Sequence[str] = ()
    losses: Sequence[str] = ()
    workload: Mapping[str, str] = field(default_factory=dict)
    model_flops: ModelFlops | None = None
    paths: Sequence[str] = ()
    running: bool = False
    command: Sequence[str] = ()
    ending: str = ""
    attempts: int = 1
    older_attempts: int = 0
    repeated: tuple[int, int] | None = None
    renumbered: bool = False
    begins_anew: npt.NDArray[np.bool_] | None = None
    ready: ReadyTimes | None = None
    recorded: Sequence[RecordedRank] = ()
    processes: Mapping[int, Process] = field(default_factory=dict)
    all_closed: bool = False
    start_ns: int = 0
    gone: Sequence[int] = ()
    run_file: Mapping[str, Any] = field(default_factory=dict)
    width: int = 1
    longest_ns: Matrix | None = None
    single_from: int | None = None

    @property
    def missing_ranks(self) -> list[int]:
        """Those without files; none where the run's size is not known."""
        here = set(self.ranks.tolist())
        return [rank for rank in range(min(self.world_size, WORLD_SIZE_MAX)) if rank not in here]

    def __repr__(self) -> str:
        return (
            f"RunData({len(self.ranks)} ranks, {len(self.steps)} steps, {len(self.stages)} stages, "
            f"paths={list(self.paths)!r})"
        )
