"""Findings about ranks that are slow beyond chance though that costs too little to be a loss.

They leave a run ok: they are worth knowing, as the next slow device may be among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .rank_files import SEPARATOR
from .result import Finding
from .run_data import Integers, Matrix, RunData
from .slow_ranks import SlowRank, since_when, slow_ranks
from .sync import Meetings
from .work import Work


def slower_ranks(
    run: RunData, meetings: Meetings, left: Sequence[tuple[Work, Matrix]], columns: Integers,
    costly: Sequence[Finding],
) -> list[Finding]:  # fmt: skip
    """One of each rank that is always slow, and one of each that is at times. left: of each group
    of ranks, what is left of their own work, rank × judged step; what is found is taken off.
    columns: the judged steps. costly: what was found before; the same of a rank is not said twice.
    Of a rank that is named there without a stage it is said where, and the saving is a part of that
    finding's.
    """
    if not len(columns):
        return []
    slow: dict[tuple[int, str], list[SlowRank]] = {}
    for one in slow_ranks(run, meetings, int(columns[0])):
        known = next((other for other in costly if _names(other, one, run)), None)
        if known is None:
            slow.setdefault((one.row, one.kind), []).append(one)
        elif len(known.ranks) == 1:
            known.detail = {**_scores(run, [one]), **known.detail}
    group_of = {row: (work, own) for work, own in left for row in work.rows.tolist()}
    several = [sorted(one, key=lambda each: -_whole_ns(each)) for one in slow.values()]
    several.sort(key=lambda one: -_whole_ns(one[0]))
    without_stage = {rank for one in costly if one.stage is None for rank in one.ranks}
    found = []
    for group in several:
        work, own = group_of[group[0].row]
        is_part = int(run.ranks[group[0].row]) in without_stage
        found.append(_finding(run, work, work.own.sum(2) if is_part else own, group, columns))
    return found


def _whole_ns(one: SlowRank) -> float:
    return float(np.nansum(one.excess_ns[one.steps]))


def _names(other: Finding, one: SlowRank, run: RunData) -> bool:
    """Whether a finding names the rank and the stage."""
    if int(run.ranks[one.row]) not in other.ranks or len(other.ranks) == len(run.ranks):
        return False
    return f"{run.stages[one.stage]}{SEPARATOR}".startswith(f"{other.stage}{SEPARATOR}")


def _finding(
    run: RunData, work: Work, own: Matrix, group: list[SlowRank], columns: Integers
) -> Finding:
    """own: rank × judged step, off which it is taken. group: of one rank and kind; the first stage,
    which has most of it, is named."""
    first = group[0]
    since = since_when(first) if first.kind == "persistent" else None
    less = np.zeros((len(work.rows), len(columns)))
    at = int(np.searchsorted(work.rows, first.row))
    for one in group:
        less[at] += _less_ns(one, since or 0, work)[columns]
    cost = float(work.saved_alone(own, less)[at])
    own -= less
    return Finding(
        "slower rank", (int(run.ranks[first.row]),), (), run.stages[first.stage], cost,
        cost / work.step_ns if work.step_ns else 0.0, cost,
        None if since is None else int(run.steps[since]),
        detail=_detail(run, group, cost * len(columns)),
    )  # fmt: skip


def _less_ns(one: SlowRank, since: int, work: Work) -> Matrix:
    """Per step, how much sooner the rank comes to the next meeting without its excess."""
    less = np.zeros(len(one.excess_ns))
    less[one.steps] = np.maximum(np.nan_to_num(one.excess_ns[one.steps]), 0)
    less[:since] = 0
    return np.append(0.0, less[:-1]) if one.stage in work.tail else less


def _detail(run: RunData, group: list[SlowRank], whole_ns: float) -> dict[str, Any]:
    first = group[0]
    detail = _scores(run, group)
    if first.kind == "intermittent":
        steps = np.unique(np.concatenate([one.steps for one in group]))
        detail |= {
            "hiccups": len(steps),
            "hiccup_ns": whole_ns / len(steps),
            "slow_step": int(run.steps[steps[0]]),
            "slow_steps": run.steps[steps].tolist(),
        }
    return detail


def _scores(run: RunData, group: list[SlowRank]) -> dict[str, Any]:
    first = group[0]
    excess_ns = float(np.nanmedian(first.excess_ns[first.steps]))
    return {
        "slower": excess_ns / max(first.usual_ns, 1.0),
        "score": round(first.score, 2),
        "peer_score": round(first.peer_score, 2),
        "also": [run.stages[one.stage] for one in group[1:]],
    }
