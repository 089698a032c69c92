"""Stages that took more or less time from a step on, as the median over ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..timeline.timeline import Timeline
from ..verdict.change_points import SEGMENT_MIN
from ..verdict.quantiles import median
from ..verdict.result import Finding
from ..verdict.run_data import RunData
from ..verdict.slow_ranks import taken_ns


@dataclass(frozen=True)
class StageChange:
    """A stage that takes more or less time from `step` on: itself, without those inside it, as the
    median over ranks of a step."""

    stage: str
    step: int
    before_ms: float
    after_ms: float


def changes_of_stages(
    run: RunData, warmup: int, timeline: Timeline, findings: Sequence[Finding] = ()
) -> list[StageChange]:
    """The stage of each change in the timeline, and of each finding that is "slower since" a step,
    in the order of steps. The warm-up is left out."""
    steps = run.steps[warmup:]
    edges = _edges(timeline, findings)
    bounds = [0, *np.searchsorted(steps, sorted(edges)).tolist(), len(steps)]
    found = []
    for before, at, after in zip(bounds, bounds[1:], bounds[2:], strict=False):
        if not before < at < after:
            continue
        stage = edges[int(steps[at])]
        took_ms = median(taken_ns(run, run.stages.index(stage))[:, warmup:], 0) * 1e-6
        levels = [float(np.nanmedian(part)) for part in (took_ms[before:at], took_ms[at:after])]
        found.append(StageChange(stage, int(steps[at]), *levels))
    return found


def _edges(timeline: Timeline, findings: Sequence[Finding]) -> dict[int, str]:
    """The stage by the step that it changes at. Of two steps that are as good as the same, that of
    the finding."""
    since = {one.since_step: one.stage for one in findings if one.kind == "slower since"}
    known = {step: stage for step, stage in since.items() if step is not None and stage is not None}
    parted = {
        one.first_step: one.stage
        for one in itertools.islice(timeline.parts, 1, None)
        if one.stage is not None and not _is_near(one.first_step, known)
    }
    return {**parted, **known}


def _is_near(step: int, others: dict[int, str]) -> bool:
    return any(abs(step - other) < SEGMENT_MIN for other in others)
