"""The findings of the rules. It imports no rule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict, cast

from ...core.notebook import html_text
from ...core.public import public
from .kinds import Kind, is_costly
from .utilisation import ModelFlops, utilisation

Status = Literal["ok", "found", "not judged"]

NO_TIME = "the steps take no time"
NO_TIME_REMEDY = "look at the times of its rows: a clock that stands still gives none"

_COLOURS: dict[Status, str] = {"ok": "#009e73", "found": "#d55e00", "not judged": "#8a8f98"}


class EvidenceData(TypedDict):
    """An operation in which the time is lost.

    share: of what the finding costs.
    took_ns: what it takes where the finding is, each time.
    usual_ns: what it takes elsewhere.
    """

    name: str
    share: float
    took_ns: int
    usual_ns: int


class DetailData(TypedDict, total=False):
    """Figures for the text. Which are there depends on the kind and on what was recorded.

    took_ns: what the part takes a step.
    step_ns: what a step takes the ranks.
    others_ns: what the part takes the other ranks.
    losers: how many ranks wait.
    waits_in: the stage in which they wait.
    parts: the stages that take more, with their shares.
    at_least: part of the time is hidden, so that the cost is a lower bound.
    lost_ns: what is lost.
    inside_ns: of it, inside a stage in which ranks meet.
    times: how many steps have the stage, if few do.
    each_ns: what it takes in one of these; missing where it takes longer in the others, too.
    every: so many steps are between two of these, or between two hiccups.
    slow_step: the first of these, or the first hiccup.
    slow_steps: all hiccups.
    hiccups: how many steps are hiccups.
    hiccup_ns: what the run takes longer for each of them.
    top_share: of that time, in the stage with most of it.
    causes: the causes with 20 % and more, each with its share.
    cause: the one with half of the time, or "unknown".
    disk_pages: pages that were read in a hiccup.
    ran_share: of the time that the thread wanted to run.
    others: threads that wanted to run at the same time.
    objects: how many a full garbage collection looked at.
    workers_do: what the loader's workers did most: "storage", "delay", "runs" or "waits".
    worker: the number of the worker that did most.
    read_bytes: what it read a step.
    num_workers: of the data loader.
    ran_shares: the least and the largest of the ranks, of the time that they wanted to run.
    threads: that torch computes with on a rank.
    by_quota: a quota of the host causes it.
    by: the figure of a batch with which the time goes up and down.
    correlation: of that figure and the time.
    spread_ns: between the slowest and the fastest rank of a step.
    before_ns: a step at the beginning.
    after_ns: a step at the end.
    stage_share: of the rise, in the stage.
    what: the memory that grows.
    growth: how much it has grown.
    steps: how many steps the warm-up has.
    gpu_mhz: the clock of these ranks' GPUs.
    gpu_mhz_others: the clock of the other GPUs.
    gpu_reason: why it is lower, empty where it is not known.
    last_in: the stage to which a rank comes last.
    last_rank: the rank that comes last.
    last_share: of the steps, in which it comes last.
    last_slow_share: the same of the slow steps.
    last_steps: how many steps were compared.
    last_wait_ns: what the others wait for it.
    waiting: how many ranks wait for it.
    enqueued: the times are those of enqueueing, not of the GPU.
    gpu_error_ns: the error of the GPUs' times.
    bucket: the number of the gradient bucket or collective.
    bucket_bytes: its size.
    bucket_modules: the modules in it.
    bucket_kind: "bucket", or the collective.
    modules_before: those in the bucket before.
    slower: what the rank takes longer in the stage, as a share of the usual.
    score: how far a rank that is slower beyond chance is from the others, in units of their
        scatter.
    peer_score: the largest score of the ranks that are not named.
    also: other stages in which the rank is slow in the same way.
    """

    took_ns: float
    step_ns: float
    others_ns: float
    losers: float
    waits_in: str
    parts: list[tuple[str, float]]
    at_least: bool
    lost_ns: float
    inside_ns: float
    times: int
    each_ns: float
    every: int
    slow_step: int
    slow_steps: list[int]
    hiccups: int
    hiccup_ns: float
    top_share: float
    causes: list[tuple[str, float]]
    cause: str
    disk_pages: int
    ran_share: float
    others: int
    objects: int
    workers_do: str
    worker: int
    read_bytes: int
    num_workers: int
    ran_shares: tuple[float, float]
    threads: int
    by_quota: bool
    by: str
    correlation: float
    spread_ns: float
    before_ns: float
    after_ns: float
    stage_share: float
    what: str
    bytes_a_step: float
    growth: float
    steps: int
    gpu_mhz: int
    gpu_mhz_others: int
    gpu_reason: str
    last_in: str
    last_rank: int
    last_share: float
    last_slow_share: float
    last_steps: int
    last_wait_ns: float
    waiting: int
    enqueued: bool
    gpu_error_ns: float
    bucket: int
    bucket_bytes: int
    bucket_modules: str
    bucket_kind: str
    modules_before: str
    slower: float
    score: float
    peer_score: float
    also: list[str]


class FindingData(TypedDict):
    """One thing that costs time.

    ranks: those named, empty where none is.
    hosts: what the ranks share, if they are all ranks of these hosts.
    stage: its path, null if it is not known.
    cost_ns_a_step: what it costs each step, in ns of the run's time.
    share: the cost as a share of the step.
    saves_ns_a_step: how much shorter a step is without it; 0 if that cannot be known from outside.
    since_step: the first step of it, null if it was always so.
    inferred: where ranks wait was found in the times, and not recorded.
    window_steps: of how many steps means were judged; 1 for single steps.
    single_from: the first step that the CSVs have by itself, null where they have all.
    detail: figures for the text, which depend on the kind.
    claim: only by replay: what is claimed, in plain words.
    role: only by replay: the pipeline stage as text, "stage 3", or null.
    pipeline_stage: only by replay: that of the ranks, where it is one.
    saving_interval: only by replay: the 95 % interval of the saving as a share of the step.
    steps: only by replay: the steps concerned, empty for all.
    evidence: only by replay: the operations in which the time is lost, the first the most.
    """

    kind: Kind
    ranks: list[int]
    hosts: list[str]
    stage: str | None
    cost_ns_a_step: int
    share: float
    saves_ns_a_step: int
    since_step: int | None
    inferred: bool
    detail: DetailData
    claim: NotRequired[str]
    role: NotRequired[str | None]
    pipeline_stage: NotRequired[int | None]
    saving_interval: NotRequired[tuple[float, float]]
    steps: NotRequired[list[int]]
    evidence: NotRequired[list[EvidenceData]]


class ReplayData(TypedDict):
    """How good the replay is, and how much slower the run is than an ideal one.

    operations: how many were replayed.
    off_share: how far the replay with nothing changed is from the measured step, at most.
    unknown_share: of the step, what equal ranks and equal steps would not have and no finding
        explains.
    inferred_meetings: where ranks meet by the times alone.
    slowdown: against an ideal in which every kind of operation takes its usual time.
    ideal_ms: a step of that ideal.
    busy_ms: a step of the run without what is outside it.
    """

    operations: int
    off_share: float
    unknown_share: float
    inferred_meetings: list[str]
    slowdown: float | None
    ideal_ms: float | None
    busy_ms: float | None


class VerdictData(TypedDict):
    """A verdict as plain data.

    status: "ok", nothing costs 10 % of a step; "found"; "not judged", then `reason` says why.
    ending: how the run ended, where it did not end normally.
    next: what to do about the first finding: a line to change, or a command that tells more.
    findings: the most costly first; of a run that is ok or not judged only what is worth knowing.
    step_ms: the mean of a judged step.
    samples_a_second: of all ranks together; null where they were not recorded.
    tokens_a_second: the same of tokens.
    flops_a_second: those of the model, of all ranks, as `my_utils.set_model_flops` says; else null.
    mfu: the share of the peaks that were set, as in appendix B of the PaLM paper; else null.
    untimed_share: of a step, what is in no stage.
    warmup: steps at the beginning that were left out.
    judged_ranks: how many ranks were judged.
    judged_steps: how many steps were judged.
    attempts: how often the job was started, as far as its files say.
    older_attempts: earlier runs in the same files, which were not judged.
    repeated_steps: the first and the last step that a restart did again.
    inferred: where ranks wait was found in the times, and not recorded.
    notes: sentences about the files and the rules.
    text: the verdict for a terminal, a line each.
    replay: only of a verdict by replay.
    """

    version: Literal[1]
    status: Status
    reason: str | None
    ending: str | None
    next: str | None
    findings: list[FindingData]
    step_ms: float
    samples_a_second: float | None
    tokens_a_second: float | None
    flops_a_second: float | None
    mfu: float | None
    untimed_share: float
    warmup: int
    judged_ranks: int
    world_size: int
    judged_steps: int
    first_step: int | None
    last_step: int | None
    attempts: int
    older_attempts: int
    repeated_steps: list[int] | None
    inferred: bool
    window_steps: int
    single_from: int | None
    notes: list[str]
    text: list[str]
    replay: NotRequired[ReplayData]


@public("my_utils.analysis.why")
@dataclass
class Finding:
    """One thing that costs time.

    kind: see `my_utils.analysis.verdict.kinds`. ranks: those named, () where none is. hosts: those
    of the ranks, if these are all ranks of the hosts. stage: its path, None if it is not known.
    cost_ns_a_step: what it costs each step, in ns of the run's time; share: of the step.
    saves_ns_a_step: how much shorter a step is without it; 0.0 if that cannot be known from
    outside. since_step: the first step of it, None if it was always so. inferred: where ranks wait
    was not recorded, but found in the times. detail: figures for the text, times in ns.
    """

    kind: Kind
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    stage: str | None = None
    cost_ns_a_step: float = 0.0
    share: float = 0.0
    saves_ns_a_step: float = 0.0
    since_step: int | None = None
    inferred: bool = False
    detail: dict[str, Any] = field(default_factory=dict)

    def as_data(self) -> FindingData:
        """Plain data that goes into JSON; times in ns."""
        detail = {key: _plain(value) for key, value in self.detail.items()}
        return {
            "kind": self.kind,
            "ranks": list(self.ranks),
            "hosts": list(self.hosts),
            "stage": self.stage,
            "cost_ns_a_step": round(self.cost_ns_a_step),
            "share": round(self.share, 4),
            "saves_ns_a_step": round(self.saves_ns_a_step),
            "since_step": self.since_step,
            "inferred": self.inferred,
            "detail": cast(DetailData, detail),
        }


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    return list(value) if isinstance(value, tuple) else value


@public("my_utils.analysis.why")
@dataclass
class Verdict:
    """What bounds a run.

    status: "ok", nothing costs 10 % of a step, and no data that the verdict needs was missing;
    "found"; "not judged", then `reason` says why. findings: the most costly first; of a run that is
    ok only what is worth knowing ("not judged inside", "compute", "warm-up", "slower rank"); of one
    that is not judged only ranks that are slower than the others beyond chance.
    warmup: steps at the beginning that were left out. judged_ranks, judged_steps: how many.
    attempts, older_attempts, repeated, ending: as in RunData.
    step_ns: the mean of a judged step. samples_a_step, tokens_a_step: of all ranks together, None
        where they were not recorded. model_flops: of a step of all ranks, and the peak of their
        devices; None where `my_utils.set_model_flops` was not called. hangs: whether a process that
        is alive makes no progress; None where nobody looked at the processes, and where the run had
        hung when they ended. gpu_errors: sentences about critical errors of GPUs, and losses about
        rows that were lost; both are among the notes, too.
    window_steps, single_from: `width` and `single_from` of RunData.
    notes: sentences about the files and the rules.

    >>> Verdict("not judged", reason="12 steps, 20 are needed").lines()[0]
    'NOT JUDGED: 12 steps, 20 are needed'
    """

    status: Status
    findings: list[Finding] = field(default_factory=list)
    reason: str | None = None
    remedy: str | None = None
    warmup: int = 0
    judged_ranks: int = 0
    world_size: int = 0
    judged_steps: int = 0
    first_step: int | None = None
    last_step: int | None = None
    step_ns: float = 0.0
    untimed_share: float = 0.0
    samples_a_step: float | None = None
    tokens_a_step: float | None = None
    model_flops: ModelFlops | None = None
    memory: str = ""
    stopped: tuple[int, ...] = ()
    is_cuda: bool = False
    attempts: int = 1
    older_attempts: int = 0
    repeated: tuple[int, int] | None = None
    inferred: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    running: bool = False
    ending: str = ""
    hangs: bool | None = None
    gpu_errors: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    window_steps: int = 1
    single_from: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def costly(self) -> list[Finding]:
        """The findings that keep the run from being ok."""
        return [one for one in self.findings if is_costly(one.kind)]

    def lines(self, width: int = 100) -> list[str]:
        """The verdict for a terminal: at most twelve lines of at most `width` characters, plain."""
        from .text import terminal_lines

        return terminal_lines(self, width)

    def next_step(self) -> str | None:
        """What to do about the first finding: a line to change, or a command that tells more; None
        where nothing was found."""
        from .text import next_step

        return next_step(self)

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        """For notebooks."""
        return html_text(self.lines(), _COLOURS[self.status])

    def markdown(self) -> str:
        """The same for an issue or a chat, with all findings."""
        from .text import markdown

        return markdown(self)

    def _a_second(self, a_step: float | None) -> float | None:
        return round(a_step / self.step_ns * 1e9, 3) if a_step and self.step_ns else None

    def as_data(self) -> VerdictData:
        """The same as plain data. Later versions only add keys; `version` is 1."""
        mfu = utilisation(self.model_flops, self.step_ns)
        return {
            "version": 1,
            "status": self.status,
            "reason": self.reason,
            "ending": self.ending or None,
            "next": self.next_step(),
            "findings": [one.as_data() for one in self.findings],
            "step_ms": round(self.step_ns * 1e-6, 6),
            "samples_a_second": self._a_second(self.samples_a_step),
            "tokens_a_second": self._a_second(self.tokens_a_step),
            "flops_a_second": self._a_second(self.model_flops and self.model_flops.a_step),
            "mfu": None if mfu is None else round(mfu, 6),
            "untimed_share": round(self.untimed_share, 4),
            "warmup": self.warmup,
            "judged_ranks": self.judged_ranks,
            "world_size": self.world_size,
            "judged_steps": self.judged_steps,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "attempts": self.attempts,
            "older_attempts": self.older_attempts,
            "repeated_steps": None if self.repeated is None else list(self.repeated),
            "inferred": bool(self.inferred),
            "window_steps": self.window_steps,
            "single_from": self.single_from,
            "notes": list(self.notes),
            "text": self.lines(),
        }
