"""A verdict by replay as data; the words are in `text`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...core.public import public
from ..verdict.kinds import Kind
from ..verdict.result import (
    EvidenceData,
    Finding,
    FindingData,
    ReplayData,
    Status,
    Verdict,
    VerdictData,
)
from ..verdict.utilisation import ModelFlops  # noqa: F401 - in an annotation that is inherited
from .slowdown import Slowdown


@dataclass
class Evidence:
    """An operation in which the time is lost. share: of what the finding costs. took_ns, usual_ns:
    what it takes where the finding is, each time, and what it takes elsewhere."""

    name: str
    share: float
    took_ns: float
    usual_ns: float

    def as_data(self) -> EvidenceData:
        return {
            "name": self.name,
            "share": round(self.share, 4),
            "took_ns": round(self.took_ns),
            "usual_ns": round(self.usual_ns),
        }


@public("my_utils.analysis.why")
@dataclass
class ReplayFinding(Finding):
    """A finding whose saving was computed by a replay.

    claim: what is claimed, in plain words. pipeline_stage: that of the ranks, if all share it.
    low, high: the 95 % interval of the saving as a share of the step. steps: those concerned, ()
    for all. evidence: the operations in which the time is lost, most first.
    """

    kind: Kind
    detail: dict[str, Any] = field(default_factory=dict)
    claim: str = ""
    pipeline_stage: int | None = None
    low: float = 0.0
    high: float = 0.0
    steps: tuple[int, ...] = ()
    evidence: list[Evidence] = field(default_factory=list)

    def as_data(self) -> FindingData:
        """As `Finding.as_data`, with these fields, too."""
        return {
            **super().as_data(),
            "claim": self.claim,
            "role": None if self.pipeline_stage is None else f"stage {self.pipeline_stage}",
            "pipeline_stage": self.pipeline_stage,
            "saving_interval": (round(self.low, 4), round(self.high, 4)),
            "steps": list(self.steps),
            "evidence": [one.as_data() for one in self.evidence],
        }


@public("my_utils.analysis.why")
@dataclass(repr=False)
class ReplayVerdict(Verdict):
    """A verdict whose savings were computed by replays.

    replay_off: how far a replay with nothing changed is from the measured step at most, as a share.
    unknown_share: the share of a step that equal ranks and steps would not have and that no finding
    explains. slowdown: against an ideal in which every kind of operation takes its usual time.

    >>> ReplayVerdict("not judged", reason="no operations").lines()[0]
    'NOT JUDGED: no operations'
    """

    status: Status
    replay_off: float = 0.0
    unknown_share: float = 0.0
    operations: int = 0
    slowdown: Slowdown | None = None

    @property
    def by_replay(self) -> list[ReplayFinding]:
        return [one for one in self.findings if isinstance(one, ReplayFinding)]

    def lines(self, width: int = 100) -> list[str]:
        from .text import terminal_lines

        return terminal_lines(self, width)

    def markdown(self) -> str:
        return "\n".join(["```", *self.lines(200), "```"]) + "\n"

    def as_data(self) -> VerdictData:
        """As `Verdict.as_data`, with `replay`: its error, the unknown share, and the slowdown."""
        data = super().as_data()
        ideal = self.slowdown
        replay: ReplayData = {
            "operations": self.operations,
            "off_share": self.replay_off,
            "unknown_share": round(self.unknown_share, 4),
            "inferred_meetings": list(self.inferred),
            "slowdown": None if ideal is None else round(ideal.factor, 4),
            "ideal_ms": None if ideal is None else round(ideal.ideal_ns * 1e-6, 6),
            "busy_ms": None if ideal is None else round(ideal.busy_ns * 1e-6, 6),
        }
        return {**data, "replay": replay}
