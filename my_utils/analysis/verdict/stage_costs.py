"""The time of all ranks in stages other than computing: input, copies, communication, checkpoints.

The cost of such a stage is how much shorter steps are without it, after the losses of single ranks
were taken off; the most costly stage first, so that costs never add up to more than the step. Of a
meeting counts what it takes the rank that waits least. A meeting that is not communication, such
as the backward pass under DDP, holds computing and communication: it is "not judged inside". So are
the sends and receives of a pipeline, in which ranks wait for other pipeline stages.
"""

from __future__ import annotations

import numpy as np

from .blame import is_regular
from .kinds import Kind, kind_of_stage
from .loss import LEAST_SHARE, Loss, Remaining
from .quantiles import median
from .run_data import Matrix
from .work import Work

RARE = 0.5  # of the steps, below which those that have a stage are counted
NOT_AT_ALL = 0.1  # of what it takes at most: below it, a step does not have the stage
NEARLY_ALL = 0.95  # of the cost: where these steps have less, so many times each is not the cost


def shared_stages(work: Work, left: Remaining) -> list[tuple[Loss, str]]:
    """The losses with the name of their stage."""
    found = _meetings(work, left)
    own = left.own()
    kinds = {number: kind_of_stage(name) for number, name in enumerate(work.parts)}
    open_parts = [number for number, kind in kinds.items() if kind is not None]
    while open_parts:
        saved = [work.saved(own, own - left.parts[..., part]) for part in open_parts]
        best = int(np.argmax([float(one.mean()) for one in saved]))
        part = open_parts.pop(best)
        kind = kinds[part]
        if kind is None or float(saved[best].mean()) < LEAST_SHARE * work.step_ns:
            break
        loss = Loss(kind, saved[best], np.arange(len(work.rows)), part)
        longest = saved[best] if work.meets else left.parts[own.mean(1).argmax(), :, part]
        took = median(left.parts[..., part], 0)
        loss.detail = {"took_ns": loss.cost_ns, **_times(took, longest)}
        found.append((loss, work.parts[part]))
        own = own - left.parts[..., part]
    return found


def _times(took_ns: Matrix, longest_ns: Matrix) -> dict[str, float]:
    """Of a stage that few steps have: in how many they have it, at what distance if that is always
    the same, how long it takes then, and the place of the first. Both of each step, of the usual
    rank and of the last."""
    steps = np.flatnonzero(took_ns > NOT_AT_ALL * took_ns.max(initial=0.0))
    if not len(steps) or len(steps) > RARE * len(took_ns):
        return {}
    if longest_ns[steps].sum() < NEARLY_ALL * longest_ns.sum():
        return {}
    found: dict[str, float] = {
        "times": len(steps), "each_ns": float(longest_ns[steps].mean()), "slow_step": int(steps[0]),
    }  # fmt: skip
    if is_regular(steps):
        found["every"] = int(steps[1] - steps[0])
    return found


def _meetings(work: Work, left: Remaining) -> list[tuple[Loss, str]]:
    found = []
    for place, base in enumerate(left.bases.T):
        name = work.meeting_names[place]
        kind: Kind = "not judged inside"
        if kind_of_stage(name) == "communication" and name not in work.pipelines:
            kind = "communication"
        if float(base.mean()) < LEAST_SHARE * work.step_ns:
            continue
        loss = Loss(kind, base, np.arange(len(work.rows)))
        loss.detail = {"took_ns": float(base.mean()), **left.lasts.get(name, {})}
        found.append((loss, name))
    return found
