"""From the losses of groups to findings: what each costs a step, and how much shorter a step is
promised to be without it.
"""

from __future__ import annotations

from collections.abc import Sequence

from .loss import Loss, Remaining
from .result import Finding
from .run_data import Integers, RunData
from .stage_costs import shared_stages
from .trends import slower_over_time
from .work import Work


def make_findings(
    run: RunData, groups: Sequence[tuple[Work, Remaining]], columns: Integers
) -> list[Finding]:
    """Of all groups; what several of them lose is one finding. columns: the judged steps."""
    over_time = slower_over_time(groups)
    joined: dict[tuple[object, ...], Finding] = {}
    for work, left in groups:
        losses = [
            (loss, None if loss.part is None else work.parts[loss.part]) for loss in left.losses
        ]
        if over_time is not None and work is groups[0][0]:
            losses.append(over_time)
        losses += shared_stages(work, left)
        own: dict[tuple[object, ...], Finding] = {}
        for loss, stage in losses:
            is_shared = len(loss.rows) == len(work.rows)
            _join(own, _finding(run, work, loss, stage, columns), is_shared, adds=True)
        for (shared, *_), one in own.items():
            _join(joined, one, shared, adds=False)
    return list(joined.values())


def _finding(run: RunData, work: Work, loss: Loss, stage: str | None, columns: Integers) -> Finding:
    since = None if loss.since is None else int(run.steps[columns[loss.since]])
    cost = loss.cost_ns
    detail = dict(loss.detail)
    for name in {"slow_step", "slow_steps"} & detail.keys():  # until here places
        detail[name] = run.steps[columns[detail[name]]].tolist()
    if loss.kind == "short of cores" and run.workload.get("threads", "").isdecimal():
        detail["threads"] = int(run.workload["threads"])
    return Finding(
        kind=loss.kind,
        ranks=tuple(run.ranks[work.rows[loss.rows]].tolist()),
        hosts=loss.hosts,
        stage=stage,
        cost_ns_a_step=cost,
        share=cost / work.step_ns if work.step_ns else 0.0,
        saves_ns_a_step=0.0 if loss.kind == "not judged inside" else cost,
        since_step=since,
        detail=detail,
    )


def _join(
    findings: dict[tuple[object, ...], Finding], one: Finding, is_shared: object, *, adds: bool
) -> None:
    """Names once what is found several times. is_shared: by all ranks of a group; what one of them
    loses beyond the others is another finding. adds: in one group, where a stage is long in all
    steps and longer in some: the costs add up. Several groups pass it at once: the largest counts.
    """
    key = is_shared, one.kind, one.stage, one.hosts, one.since_step
    other = findings.get(key)
    if other is None:
        findings[key] = one
        return
    first, second = (one, other) if one.cost_ns_a_step > other.cost_ns_a_step else (other, one)
    if first.ranks == second.ranks:
        took_ns = _taken_together(first, second) if adds else {}
        first.detail = {**second.detail, **first.detail, **took_ns}
    first.ranks = tuple(sorted({*first.ranks, *second.ranks}))
    if adds:
        first.detail.pop("each_ns", None)  # so many times each is no longer all of the cost
        first.cost_ns_a_step += second.cost_ns_a_step
        first.saves_ns_a_step += second.saves_ns_a_step
        first.share += second.share
    findings[key] = first


def _taken_together(*findings: Finding) -> dict[str, float]:
    """What a stage takes a step where its pauses were found apart from what it always takes: these
    have no `took_ns` of their own."""
    always = [one for one in findings if "took_ns" in one.detail]
    if len(always) != 1:
        return {}
    pauses = (one.cost_ns_a_step for one in findings if one not in always)
    return {"took_ns": always[0].detail["took_ns"] + sum(pauses)}
