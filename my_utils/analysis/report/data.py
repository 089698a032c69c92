"""What `my_utils report --json` prints."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from ..verdict.result import VerdictData
from .changes import StageChange
from .stragglers import Straggler


class RunFigures(TypedDict):
    """What is said of the whole run.

    warmup: steps at the beginning that were left out of comparisons.
    not_judged: why ranks that cost little are not tested, such as "fewer than 4 ranks"; null where
        they are.
    step_ms: the median of all ranks and steps.
    synchronising: the stages in which ranks wait for one another.
    waited_s: of all ranks together.
    """

    ranks: int
    steps: int
    first_step: int
    last_step: int
    warmup: int
    not_judged: str | None
    step_ms: float | None
    duration_s: float
    synchronising: list[str]
    waited_s: float


class StageData(TypedDict):
    """A stage.

    count: single runs of all ranks.
    total_s: of all ranks.
    self_s: of all ranks, without the stages inside.
    mean_ms: a single run; likewise p50_ms, p99_ms and max_ms.
    step_mean_ms: what it takes a rank in a step.
    step_std_ms: the standard deviation of what it takes a rank in a step.
    imbalance: how much longer than the mean of the ranks the slowest_rank took, a fraction.
    critical_s: of it on the critical path of the steps, without the warm-up.
    critical_share: of the critical path.
    synchronises: ranks wait in it.
    """

    stage: str
    count: int
    total_s: float
    self_s: float
    mean_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    step_mean_ms: float
    step_std_ms: float | None
    imbalance: float | None
    slowest_rank: int
    critical_s: float
    critical_share: float
    synchronises: bool


class StepData(TypedDict):
    """A step.

    busy_ms: without the stages in which ranks wait, the median of the ranks.
    busy_low_ms: the same, 10 % of the ranks.
    busy_high_ms: the same, 90 % of the ranks.
    busy_max_ms: the same of busiest_rank.
    rank: only where ranks wait for one another: that they waited for longest; likewise stage,
        lost_ms and cost_s.
    stage: in which the rank lost the time.
    cost_s: what all ranks together waited.
    """

    step: int
    median_ms: float | None
    busy_ms: float | None
    busy_low_ms: float | None
    busy_high_ms: float | None
    busy_max_ms: float | None
    busiest_rank: int
    rank: NotRequired[int | None]
    stage: NotRequired[str | None]
    lost_ms: NotRequired[float | None]
    cost_s: NotRequired[float | None]


class RankRowData(TypedDict):
    """A rank. Its places in parallel groups are there for the groups that any rank has.

    waited_s: for others.
    cost_s: what the others waited for it.
    bad_rows: rows that could not be read.
    open: stages that had not ended.
    attempts: the number of its last start in the directory.
    clock_error_s: the bound of its clock's error against rank 0, null where it is not known.
    """

    rank: int
    host: str
    dp: NotRequired[int | None]
    tp: NotRequired[int | None]
    pp: NotRequired[int | None]
    ep: NotRequired[int | None]
    cp: NotRequired[int | None]
    sp: NotRequired[int | None]
    step_ms: float | None
    waited_s: float
    cost_s: float
    last_step: int
    rows: int
    bad_rows: int
    dropped: int
    open: int
    attempts: int
    clock_error_s: float | None


class SumsData(TypedDict):
    """Sums over some ranks.

    ranks: how many.
    stragglers: how many of them are stragglers.
    step_ms: the median.
    """

    ranks: int
    stragglers: int
    step_ms: float | None
    waited_s: float
    cost_s: float


class HostData(SumsData):
    """Sums over the ranks of a host."""

    host: str


class GroupData(SumsData):
    """Sums over the ranks of a parallel group.

    group: its kind, such as "pp".
    place: its number.
    """

    group: str
    place: int


class OverlapData(TypedDict):
    """A trace of torch's profiler.

    hidden_s: communication while there is compute.
    hidden_share: of the communication.
    """

    rank: int
    trace: str
    communication_s: float
    compute_s: float
    hidden_s: float
    hidden_share: float | None


class ReportData(TypedDict):
    """All figures of a report. Times are seconds (`_s`) or milliseconds (`_ms`).

    stragglers: the ranks that the verdict names as slow, the most expensive first.
    changes: stages that took more or less time from a step on.
    groups: of each parallel group that the labels of the ranks name.
    overlap: of the traces of torch's profiler that were given.
    problems: what is wrong with the files, in sentences.
    verdict: as `my_utils why --json` prints it.
    """

    version: Literal[1]
    run: RunFigures
    stragglers: list[Straggler]
    changes: list[StageChange]
    stages: list[StageData]
    steps: list[StepData]
    ranks: list[RankRowData]
    hosts: list[HostData]
    groups: list[GroupData]
    overlap: list[OverlapData]
    problems: list[str]
    verdict: NotRequired[VerdictData]
