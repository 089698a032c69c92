"""A timeline as plain data, for JSON."""

from __future__ import annotations

from typing import TypedDict

from ..verdict.result import FindingData
from .timeline import Timeline


class PartData(TypedDict):
    """Steps in which one verdict holds.

    first_step, last_step: both belong to it.
    step_ms: the mean of a step in it.
    longer: by how much a step takes longer than in the part before, as a part of that one.
    stage: the stage with most of that, null for several.
    drift: by how much steps become longer little by little in it, as a part of the first; null
        where they do not.
    slow: ranks whose own work takes longer than that of the others, by a twentieth of a step or
        more.
    slow_in: the stage in which they do, null for several.
    restarted: whether it begins with a new attempt.
    finding: what costs most in these steps alone, null where nothing costs a tenth of a step.
    """

    first_step: int
    last_step: int
    step_ms: float
    longer: float
    stage: str | None
    drift: float | None
    slow: list[int]
    slow_in: str | None
    restarted: bool
    finding: FindingData | None


class PeriodData(TypedDict):
    """Each so many steps some ranks take longer in a stage.

    every: steps from one to the next.
    first_step: of the first.
    times: how many there are.
    ranks: those that take longer themselves; empty for all.
    stage: null for what no stage times, and where it is in one stage or another.
    each_ms: what a step takes longer, in the median.
    share: of the time of all judged steps.
    """

    every: int
    first_step: int
    times: int
    ranks: list[int]
    stage: str | None
    each_ms: float
    share: float


class TimelineData(TypedDict):
    """The parts of a run.

    parts: in their order; empty where nothing changes.
    periods: what comes back, the most costly first.
    """

    parts: list[PartData]
    periods: list[PeriodData]


def as_data(timeline: Timeline) -> TimelineData:
    return {
        "parts": [
            {
                "first_step": one.first_step, "last_step": one.last_step,
                "step_ms": round(one.step_ns * 1e-6, 6), "longer": round(one.longer, 4),
                "stage": one.stage, "drift": None if one.drift is None else round(one.drift, 4),
                "slow": list(one.slow), "slow_in": one.slow_in, "restarted": one.restarted,
                "finding": None if one.finding is None else one.finding.as_data(),
            }
            for one in timeline.parts
        ],
        "periods": [
            {
                "every": one.every, "first_step": one.first_step, "times": one.times,
                "ranks": list(one.ranks), "stage": one.stage,
                "each_ms": round(one.each_ns * 1e-6, 6), "share": round(one.share, 4),
            }
            for one in timeline.periods
        ],
    }  # fmt: skip
