"""What `my_utils.live.snapshot` returns: plain data that goes into JSON.

Its docstring says what the keys mean; later versions only add some.

The annotations are no strings here: msgspec evaluates them, from Python 3.14 on with the names of
the module that `public` gives the class.
"""

from typing import Literal, NotRequired, TypedDict

from ..common.public import public


class OpenStageData(TypedDict):
    name: str
    step: int
    since_ns: int
    open_s: float


class FinishedStageData(TypedDict):
    name: str
    step: int
    start_ns: int
    duration_ms: float


class ThreadData(TypedDict):
    tid: int
    name: str
    tag: str
    step: int
    open: list[OpenStageData]
    last: list[FinishedStageData]


class RankData(TypedDict):
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
    rank: int
    label: str
    waits_for: int
    stage: str


class EarlierData(TypedDict):
    rank: int
    worker: int
    label: str
    state: str


class ProblemData(TypedDict):
    file: str
    reason: str


class HangData(TypedDict):
    after_s: float
    hung: bool
    since_ns: int | None
    waiting: list[int]
    waiting_step: int | None
    waiting_stack: list[str]
    missing: list[int]
    longest_still_s: float | None


class LastCallData(TypedDict):
    seq: int
    name: str
    sizes: str
    place: str
    started: bool


class CallData(LastCallData):
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
    kind: str
    ranks: list[int]
    decided: bool
    waited_s: float
    waiting_directly: list[int]
    waiting: list[int]
    call: CallData


class FlightRecorderData(TypedDict):
    place: str
    dumps: list[int]
    ranks_without_dump: list[int]
    causes: list[CauseData]
    stalled: list[CallData]
    stale: list[int]
    problems: list[ProblemData]


@public("my_utils.live")
class SnapshotData(TypedDict):
    """A snapshot of a run, as `snapshot` describes it."""

    version: Literal[1]
    log_dir: str
    log_dirs: list[str]
    time: float
    ranks: list[RankData]
    suspects: list[SuspectData]
    waiting: list[WaitingData]
    missing_ranks: list[int]
    earlier_run: list[EarlierData]
    problems: list[ProblemData]
    hang: NotRequired[HangData]
    flight_recorder: NotRequired[FlightRecorderData]
