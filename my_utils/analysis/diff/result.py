"""The result of a comparison. It imports no rule; its text is in `text`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypedDict

from ...core.notebook import html_text
from . import text
from .intervals import Interval

Status = Literal["slower", "faster", "no difference", "not compared"]

_COLOURS: dict[Status, str] = {
    "slower": "#d55e00",
    "faster": "#009e73",
    "no difference": "#009e73",
    "not compared": "#8a8f98",
}


class IntervalData(TypedDict):
    """How much more B has than A; null where it is not known.

    share: a relative difference, 0.02 is 2 % more.
    low: the least that it is with all but certainty.
    high: the most that it is with all but certainty.
    sees: the smallest difference that would have been found nine times in ten.
    """

    share: float | None
    low: float | None
    high: float | None
    sees: float | None


class StageDifferenceData(IntervalData):
    """A stage without those inside it. The shares are of a step of A and add up to that of the
    step.

    differs: zero is not in the interval.
    own: how much more of itself it takes.
    a_ms: what it usually takes in a step of A, the mean of the ranks.
    b_ms: what it usually takes in a step of B, the mean of the ranks.
    above: what single steps take longer than that, in the same unit.
    above_differs: zero is not in the interval of `above`.
    a_above_ms: that of A, the mean of all steps.
    b_above_ms: that of B, the mean of all steps.
    ranks: those that have the difference of the usual times, empty for all.
    """

    stage: str
    differs: bool
    own: IntervalData
    a_ms: float
    b_ms: float
    above: IntervalData
    above_differs: bool
    a_above_ms: float
    b_above_ms: float
    ranks: list[int]


class FigureDifferenceData(TypedDict):
    """Another figure of both sides.

    name: "memory" (bytes), "samples/s" or "tokens/s".
    share: how much more B has.
    interval: null if its error is not known, as with one run a side.
    """

    name: str
    a: float
    b: float
    share: float
    interval: IntervalData | None


class RowDifferenceData(TypedDict):
    """A row of the ledgers, or goodput, as the share of all time of a job.

    a: the mean of the runs of A.
    b: the mean of the runs of B.
    """

    row: str
    a: float
    b: float


class DifferenceData(TypedDict):
    """Two sides of runs, A and B.

    status: of B against A.
    reason: why they are not compared.
    step: how much longer a step of B usually takes.
    a_ms: the mean of a step of A, without what single steps take longer than usual.
    b_ms: the mean of a step of B, without what single steps take longer than usual.
    above: how much more of what single steps take longer B has, as a share of a_ms.
    whole: how much longer the mean of all steps of B is.
    a_whole_ms: the mean of all steps of A.
    b_whole_ms: the mean of all steps of B.
    stages: the one with the largest difference first.
    ledger: goodput, and each row that a run has; empty where a run has no ledger.
    runs: how many A and B have.
    within_these_runs_only: one side has one run, so that nothing is known of how much runs differ.
    warmup: steps at the beginning of each run that were left out.
    steps: how many of each run count, after the warm-up.
    ranks: how many A and B have.
    a: the paths of A.
    b: the paths of B.
    text: the difference for a terminal, a line each.
    """

    version: Literal[1]
    status: Status
    reason: str | None
    step: IntervalData
    a_ms: float
    b_ms: float
    above: IntervalData
    whole: IntervalData
    a_whole_ms: float
    b_whole_ms: float
    stages: list[StageDifferenceData]
    figures: list[FigureDifferenceData]
    ledger: list[RowDifferenceData]
    runs: tuple[int, int]
    within_these_runs_only: bool
    warmup: int
    steps: int
    ranks: tuple[int, int]
    a: list[str]
    b: list[str]
    notes: list[str]
    text: list[str]


def _interval_data(interval: Interval | None) -> IntervalData:
    if interval is None:
        return {"share": None, "low": None, "high": None, "sees": None}
    return {
        "share": finite(interval.share),
        "low": finite(interval.low),
        "high": finite(interval.high),
        "sees": finite(interval.sees),
    }


def finite(value: float) -> float | None:
    """The value for JSON, which has neither infinity nor NaN."""
    return round(value, 6) if math.isfinite(value) else None


@dataclass
class StageDifference:
    """A stage without those inside it.

    interval: how much longer it usually takes on B, as a share of A's step; the shares of all
    stages add up to that of the step. own: the same as a share of the stage on A. ranks: those that
    have the difference, () for all. a_ns, b_ns: its usual time in a step, the mean of the ranks.
    above, a_above_ns, b_above_ns: the same of what single steps take longer.
    """

    stage: str
    interval: Interval
    own: Interval
    a_ns: float
    b_ns: float
    above: Interval
    a_above_ns: float
    b_above_ns: float
    ranks: tuple[int, ...] = ()

    def as_data(self) -> StageDifferenceData:
        """Plain data that goes into JSON."""
        return {
            "stage": self.stage,
            **_interval_data(self.interval),
            "differs": self.interval.differs,
            "own": _interval_data(self.own),
            "a_ms": round(self.a_ns * 1e-6, 6),
            "b_ms": round(self.b_ns * 1e-6, 6),
            "above": _interval_data(self.above),
            "above_differs": self.above.differs,
            "a_above_ms": round(self.a_above_ns * 1e-6, 6),
            "b_above_ms": round(self.b_above_ns * 1e-6, 6),
            "ranks": list(self.ranks),
        }


@dataclass
class FigureDifference:
    """Another figure of the sides: "memory" in bytes, "samples/s" or "tokens/s". interval: None if
    its error is not known (one run a side)."""

    name: str
    a: float
    b: float
    interval: Interval | None

    @property
    def share(self) -> float:
        """How much more B has."""
        return self.b / self.a - 1

    def as_data(self) -> FigureDifferenceData:
        """Plain data that goes into JSON."""
        return {
            "name": self.name,
            "a": self.a,
            "b": self.b,
            "share": round(self.share, 6),
            "interval": None if self.interval is None else _interval_data(self.interval),
        }


class RowDifference(NamedTuple):
    """A row of the ledgers, or goodput: the shares of all time of a job."""

    row: str
    a: float
    b: float


@dataclass
class Difference:
    """Two sides of runs, A and B.

    status: of B against A, by their usual times. reason: why they are not compared. step: the
    difference of the usual step time; above: that of what single steps take longer; whole: both, of
    the mean of all steps. stages: the one with the largest difference first. ledger: goodput, then
    the rows of the ledgers. runs: how many each side has. within: a side has one run, so how much
    runs differ is not known. steps: how many of each run count, after warmup. a_ns, b_ns: the usual
    step; a_whole_ns, b_whole_ns: the mean of all steps.

    >>> Difference("not compared", reason="12 steps, 20 are needed").lines()
    ['NOT COMPARED: 12 steps, 20 are needed']
    """

    status: Status
    reason: str | None = None
    step: Interval | None = None
    above: Interval | None = None
    whole: Interval | None = None
    stages: list[StageDifference] = field(default_factory=list)
    figures: list[FigureDifference] = field(default_factory=list)
    ledger: list[RowDifference] = field(default_factory=list)
    runs: tuple[int, int] = (0, 0)
    within: bool = False
    warmup: int = 0
    steps: int = 0
    ranks: tuple[int, int] = (0, 0)
    a_ns: float = 0.0
    b_ns: float = 0.0
    a_whole_ns: float = 0.0
    b_whole_ns: float = 0.0
    a_paths: tuple[str, ...] = ()
    b_paths: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def different(self) -> list[StageDifference]:
        """The stages that differ for sure."""
        return [one for one in self.stages if one.interval.differs]

    def lines(self) -> list[str]:
        """The difference for a terminal, plain."""
        return text.terminal_lines(self)

    def markdown(self) -> str:
        """The same for an issue or a review, with a table of the stages."""
        return text.markdown(self)

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        """For notebooks."""
        return html_text(self.lines(), _COLOURS[self.status])

    def as_data(self) -> DifferenceData:
        """Plain data that goes into JSON. Later versions only add keys; `version` is 1."""
        return {
            "version": 1,
            "status": self.status,
            "reason": self.reason,
            "step": _interval_data(self.step),
            "a_ms": round(self.a_ns * 1e-6, 6),
            "b_ms": round(self.b_ns * 1e-6, 6),
            "above": _interval_data(self.above),
            "whole": _interval_data(self.whole),
            "a_whole_ms": round(self.a_whole_ns * 1e-6, 6),
            "b_whole_ms": round(self.b_whole_ns * 1e-6, 6),
            "stages": [one.as_data() for one in self.stages],
            "figures": [one.as_data() for one in self.figures],
            "ledger": [
                {"row": one.row, "a": round(one.a, 6), "b": round(one.b, 6)} for one in self.ledger
            ],
            "runs": self.runs,
            "within_these_runs_only": self.within,
            "warmup": self.warmup,
            "steps": self.steps,
            "ranks": self.ranks,
            "a": list(self.a_paths),
            "b": list(self.b_paths),
            "notes": list(self.notes),
            "text": self.lines(),
        }
