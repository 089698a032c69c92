"""What `my_utils.analysis.live.snapshot` returns: plain data that goes into JSON.

Later versions only add keys.

The annotations are not strings here: msgspec evaluates them, from Python 3.14 on with the names of
the module that `public` gives the class.
"""

from typing import Literal, NotRequired, TypedDict

from ...core.public import public


class OpenStageData(TypedDict):
    """A stage that has not ended. A name that is not known is empty.

    since_ns: Unix nanoseconds.
    open_s: seconds since then.
    """

    name: str
    step: int
    since_ns: int
    open_s: float


class FinishedStageData(TypedDict):
    """A stage that has ended. A name that is not known is empty.

    start_ns: Unix nanoseconds.
    """

    name: str
    step: int
    start_ns: int
    duration_ms: float


class ThreadData(TypedDict):
    """A thread.

    open: the stages that have not ended, outermost first.
    last: the stages that ended, newest first; only from journals.
    """

    tid: int
    name: str
    tag: str
    step: int
    open: list[OpenStageData]
    last: list[FinishedStageData]


class RankData(TypedDict):
    """A process of a rank.

    worker: above 0: a forked worker or a second process of the rank.
    state: "running", "silent", "dead" or "closed".
    source: "journal" or "heartbeat".
    beat_age_s: seconds since the last sign of life.
    began_s: Unix time of the process's start.
    time_offset_s: what the process adds to its clock.
    clock_ahead_s: how far its host's clock is ahead of the file server's.
    dropped: records that were dropped because they came too fast.
    step: that of the main thread.
    stack: names of the main thread's open stages, outermost first.
    open_s: seconds in the innermost of these stages.
    moved_ns: when a stage of the main thread last began or ended, in Unix nanoseconds.
    still_s: seconds since then.
    """

    label: str
    rank: int
    worker: int
    world_size: int
    host: str
    pid: int
    attempt: int
    state: str
    source: str
    beat_age_s: float | None
    began_s: float | None
    time_offset_s: float
    clock_ahead_s: float | None
    dropped: int
    step: int | None
    stack: list[str]
    open_s: float | None
    moved_ns: int | None
    still_s: float | None
    threads: list[ThreadData]


class SuspectData(TypedDict):
    """A rank that holds the run up; the keys that a rank has too mean the same.

    kinds: of "dead", "silent", "ended", "behind", "elsewhere", "longest" and "slow", and those of
        causes by dumps.
    reasons: one for each kind.
    """

    rank: int
    worker: int
    label: str
    host: str
    state: str
    step: int | None
    stack: list[str]
    moved_ns: int | None
    still_s: float | None
    kinds: list[str]
    reasons: list[str]


class WaitingData(TypedDict):
    """A rank that waits for a suspect.

    waits_for: the suspect's number.
    stage: the open stages, as text.
    """

    rank: int
    label: str
    waits_for: int
    stage: str


class EarlierData(TypedDict):
    """A process of an earlier run in the same directory."""

    rank: int
    worker: int
    label: str
    state: str


class ProblemData(TypedDict):
    """A file that was left out."""

    file: str
    reason: str


class HangData(TypedDict):
    """Whether the run hangs.

    after_s: how long a rank may be without progress.
    since_ns: when the first of the stuck ranks last made progress, in Unix nanoseconds.
    waiting: ranks that make no progress and are not suspects.
    waiting_step: where most of these are.
    waiting_stack: the open stages where most of these are.
    missing: ranks without files, while others wait.
    """

    after_s: float
    hung: bool
    since_ns: int | None
    waiting: list[int]
    waiting_step: int | None
    waiting_stack: list[str]
    missing: list[int]
    longest_still_s: float | None


class LastCallData(TypedDict):
    """The last call that a rank made.

    place: the caller's line.
    started: on the device.
    """

    seq: int
    name: str
    sizes: str
    place: str
    started: bool


class CallData(LastCallData):
    """A call in which ranks wait.

    description: that of the group.
    members: the ranks of the group.
    seq: the number of the call within the group.
    place: the caller's line.
    started: on the device.
    since_ns: Unix nanoseconds.
    verdict: "never entered", "different calls" or "not finished".
    waiting: ranks that have called it.
    missing: ranks that never entered it.
    no_dump: ranks without a dump.
    unknown: ranks whose dump does not say it.
    calls: what ranks called under that number, where they differ.
    last_calls: of the missing ranks, by rank.
    """

    group: str
    description: str
    members: list[int]
    since_ns: int
    verdict: str
    waiting: list[int]
    missing: list[int]
    no_dump: list[int]
    unknown: list[int]
    calls: dict[str, list[int]]
    last_calls: dict[str, LastCallData | None]


class CauseData(TypedDict):
    """Who holds up the others.

    kind: by dumps of the flight recorder "never entered", "stuck inside", "came late", "other
        path", "other order", "no dump", "dead" or "stopped"; by the open stages one of the kinds of
        a suspect. Undecided ones also "inside" and "ring".
    decided: false: it is among these ranks.
    waited_s: seconds that others had waited.
    waiting_directly: the ranks that wait for them in a call or a stage.
    waiting: those and all that wait for these.
    reasons: sentences.
    call: the one in which others wait; only by dumps.
    """

    kind: str
    ranks: list[int]
    decided: bool
    waited_s: float
    waiting_directly: list[int]
    waiting: list[int]
    reasons: list[str]
    call: NotRequired[CallData]


class FlightRecorderData(TypedDict):
    """What the dumps of torch's flight recorder say.

    dumps: the ranks of which there is one.
    causes: who holds up the others, what is sure first.
    stalled: the calls in which ranks wait, the one that has waited longest first.
    stale: ranks whose dump is older than the standstill.
    problems: dumps that were left out.
    """

    place: str
    dumps: list[int]
    ranks_without_dump: list[int]
    causes: list[CauseData]
    stalled: list[CallData]
    stale: list[int]
    problems: list[ProblemData]


@public("my_utils.analysis.live")
class SnapshotData(TypedDict):
    """A snapshot of a run; what is not known is null.

    log_dir: the first of `log_dirs`.
    time: Unix seconds.
    ranks: sorted.
    suspects: the ranks that hold the run up, the most suspicious first.
    causes: who holds up the others, by all that is known, what is sure first. Their ranks are among
        `suspects` where they have files.
    waiting: the ranks that wait for a suspect.
    missing_ranks: numbers below the world size that left no file.
    earlier_run: processes of an earlier run in the same directory, which are not among `ranks`.
    problems: files that were left out.
    hang: only if it was asked whether the run hangs.
    flight_recorder: only if dumps were named.
    """

    version: Literal[1]
    log_dir: str
    log_dirs: list[str]
    time: float
    ranks: list[RankData]
    suspects: list[SuspectData]
    causes: list[CauseData]
    waiting: list[WaitingData]
    missing_ranks: list[int]
    earlier_run: list[EarlierData]
    problems: list[ProblemData]
    hang: NotRequired[HangData]
    flight_recorder: NotRequired[FlightRecorderData]
