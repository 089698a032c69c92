"""The ranks that the verdict names, each with what the others waited for it.

Which ranks are slow say the rules alone: those that cost a tenth of a step, and those that are
slower beyond chance (`verdict.slow_ranks`).

The annotations are not strings here: msgspec evaluates them, from Python 3.14 on with the names of
the module that `public` gives the class.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from ...core.public import public
from ..verdict.kinds import is_costly
from ..verdict.rank_files import SEPARATOR
from ..verdict.result import Finding, Verdict
from ..verdict.run_data import Matrix, RunData
from .waits import RunWaits

_OF_SLOW_RANKS = {"others_ns", "hiccups", "last_rank", "slower"}  # of details: by the rules
_SLOW_CLAIMS = (
    "slow rank", "slow host", "slow stage", "steps that stick out", "input", "checkpoint", "eval",
)  # fmt: skip


@public("my_utils.analysis.report")
@dataclass
class Straggler:
    """A rank that is slow in a stage; "" where the stage is not known.

    steps: those in which it stood out; of a persistent one those in which the others waited for it.
    since: the first step of a persistent one, where it became slow in the middle of the run.
    cost_s: what all ranks together waited for it in these steps; where ranks do not meet, what it
    took longer than the others. saved_s: how much shorter the run had been without that, as the
    verdict says; of ranks that it names together, without that of all of them. slower_percent: in
    the stage, as the median of all steps where it is persistent and of `steps` where it is not.
    score: how far it is from the others, in standard errors or in the scatter of the ranks,
    whichever is less, for a persistent one; in the scatter of single steps for an intermittent one;
    0 where the verdict names it without that test. peer_score: the largest of the ranks that the
    test does not name, to judge it by. also: other stages in which the rank is slow in the same
    way.
    """

    rank: int
    host: str
    stage: str
    kind: Literal["persistent", "intermittent"]
    steps: list[int] = field(default_factory=list)
    since: int | None = None
    cost_s: float = 0.0
    saved_s: float = 0.0
    slower_percent: float = 0.0
    score: float = 0.0
    peer_score: float = 0.0
    also: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, as plain data that goes into JSON; times in seconds."""
        return asdict(self)


def find_stragglers(run: RunData, verdict: Verdict, waits: RunWaits) -> list[Straggler]:
    """The most expensive first. A rank is in it once for each finding that names it; one without a
    stage does not count where another one has the rank's stage."""
    findings = list(_about_slow_ranks(verdict))
    with_stage = {rank for one in findings if one.stage is not None for rank in one.ranks}
    named = [
        _straggler(run, verdict, waits, one, int(np.searchsorted(run.ranks, rank)))
        for one in findings
        for rank in one.ranks
        if rank in run.ranks and (one.stage is not None or rank not in with_stage)
    ]
    return sorted(named, key=lambda one: (-one.cost_s, one.rank))


def _about_slow_ranks(verdict: Verdict) -> Iterator[Finding]:
    """Findings that name ranks because they take longer than others."""
    for one in verdict.findings:
        some = 0 < len(one.ranks) < max(verdict.judged_ranks, 2)
        compared = bool(_OF_SLOW_RANKS & one.detail.keys())
        is_slow = is_costly(one.kind) or one.kind == "slower rank"
        by_replay = getattr(one, "claim", "") in _SLOW_CLAIMS
        if some and is_slow and (compared or by_replay):
            yield one


def _straggler(
    run: RunData, verdict: Verdict, waits: RunWaits, one: Finding, row: int
) -> Straggler:
    detail = one.detail
    at_times: list[int] = list(detail.get("slow_steps", getattr(one, "steps", ())))
    stages = [] if one.stage is None else [one.stage, *detail.get("also", [])]
    here = run.steps >= (verdict.first_step or 0)
    if one.since_step is not None:
        here &= run.steps >= one.since_step
    result = Straggler(
        int(run.ranks[row]), run.hosts[row] if len(run.hosts) else "", one.stage or "",
        "intermittent" if at_times or "hiccups" in detail else "persistent",
        since=one.since_step,
        saved_s=one.saves_ns_a_step * verdict.judged_steps * 1e-9,
        slower_percent=round(100 * _slower(one), 2),
        score=detail.get("score", 0.0), peer_score=detail.get("peer_score", 0.0),
        also=detail.get("also", []),
    )  # fmt: skip
    if not waits.stages:
        result.cost_s = result.saved_s
        result.steps = at_times or run.steps[here].tolist()
        return result
    if at_times:  # the others wait in the step, or in the next one
        here &= np.isin(run.steps, at_times) | np.isin(run.steps - 1, at_times)
    costs = _waits_for(run, waits, row, stages)
    result.cost_s = float(costs[here].sum()) * 1e-9
    result.steps = at_times or run.steps[here & (costs > 0)].tolist()
    return result


def _slower(one: Finding) -> float:
    """What the rank takes longer than the others, as a share of theirs; 0.0 if it is not known."""
    others = one.detail.get("others_ns", 0.0)
    of_rules = one.detail["took_ns"] / others - 1 if others else 0.0
    return float(one.detail.get("slower", of_rules))


def _waits_for(run: RunData, waits: RunWaits, row: int, stages: Sequence[str]) -> Matrix:
    """Of each step, what the others waited for a rank that lost the time in these stages, or in any
    if none of them is a stage of the run; ns."""
    wanted = tuple(f"{stage}{SEPARATOR}" for stage in stages)
    numbers = [
        number for number, name in enumerate(run.stages) if f"{name}{SEPARATOR}".startswith(wanted)
    ]
    costs = np.zeros(len(run.steps))
    for meeting in waits.meetings:
        blamed = meeting.last == row
        if numbers:
            blamed &= np.isin(meeting.lost_stage, numbers)
        costs[blamed] += meeting.cost_ns[blamed]
    return costs
