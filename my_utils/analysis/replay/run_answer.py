"""The verdict on a run: by replay where its ranks meet inside a stage, else by the rules."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...core.arguments import check_int
from ..timeline.timeline import Timeline, make_timeline
from ..verdict.causes import causes_of_all, find_causes
from ..verdict.finding_causes import KINDS, known_part, sum_host
from ..verdict.load import NothingToJudge, load_run
from ..verdict.loss import LEAST_SHARE
from ..verdict.result import Verdict
from ..verdict.rules import find_slower_ranks, judge as judge_by_rules, set_throughput
from ..verdict.run_data import RunData
from ..verdict.shown import about
from .result import ReplayFinding, ReplayVerdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..ledger.read import LedgerReader


def judge(
    run: RunData, warmup: int | None = None, within: tuple[int, int] | None = None
) -> Verdict:
    """What bounds a run: by replay where its ranks recorded that they meet inside a stage, else by
    the rules.

    warmup: how many steps at the beginning are left out; by default those that clearly take longer,
    see `docs/runs/verdict.md`. within: of the rest only these steps, a half-open range.
    Thread-safe; the run is not changed.

    Raises TypeError and ValueError for a warmup that is not a whole number from 0 up.

    >>> from my_utils.analysis.why import RunData, judge
    >>> import numpy as np
    >>> step_ns = np.full((1, 50), 10e6)
    >>> begins = np.cumsum(step_ns, axis=1) - step_ns
    >>> run = RunData(
    ...     ranks=np.array([0]), hosts=["a"], world_size=1, steps=np.arange(50),
    ...     stages=["input", "forward"], step_begins=begins, step_ns=step_ns,
    ...     begins=np.stack([begins, begins + 6e6], axis=2),
    ...     ends=np.stack([begins + 6e6, begins + 10e6], axis=2),
    ...     totals=np.full((1, 50, 2), [6e6, 4e6]),
    ... )
    >>> verdict = judge(run)
    >>> verdict.status, verdict.findings[0].kind, round(verdict.findings[0].share, 2)
    ('found', 'input', 0.6)
    """
    if warmup is not None:
        check_int("warmup", operator.index(warmup), 0)
    return _replayed(run, warmup, within) or judge_by_rules(run, warmup, within)


def _replayed(run: RunData, warmup: int | None, within: tuple[int, int] | None) -> Verdict | None:
    """None where nothing was recorded for a replay, or it does not give the measured steps."""
    if not any(one.meets_inside for one in run.recorded):
        return None
    from .judge import judge_operations
    from .read_run import operations_of_run

    operations = operations_of_run(run.recorded)
    if operations is None:
        return None
    steps = run.steps
    if within is not None:
        steps, warmup = steps[(steps >= within[0]) & (steps < within[1])], 0
    operations = operations.kept(np.isin(operations.step, steps))
    workers = run.workload.get("num_workers", "")
    operations.num_workers = int(workers) if workers.isdecimal() else None
    operations.world_size = run.world_size
    verdict = judge_operations(operations, run.paths, warmup, LEAST_SHARE)
    if verdict.status == "not judged":
        return None
    verdict.command, verdict.running = tuple(run.command), run.running
    verdict.ending = run.ending
    _add_recorded_causes(run, verdict)
    verdict.attempts, verdict.older_attempts = run.attempts, run.older_attempts
    verdict.notes += run.problems
    judged = (run.steps >= (verdict.first_step or 0)) & (run.steps <= (verdict.last_step or 0))
    columns = np.flatnonzero(judged & np.isfinite(run.step_ns).all(0))
    set_throughput(verdict, run, columns)
    verdict.findings += find_slower_ranks(run, columns, verdict.findings)
    return verdict


def _add_recorded_causes(run: RunData, verdict: ReplayVerdict) -> None:
    """Adds "causes", and "cause" where one has half of the time, to the findings."""
    first, last = verdict.first_step or 0, verdict.last_step or 0
    columns = np.flatnonzero((run.steps >= first) & (run.steps <= last))
    for one in verdict.findings:
        is_known = one.kind in (*KINDS, "host hiccups") and one.since_step is None
        if not is_known or not isinstance(one, ReplayFinding):
            continue
        host, rows = sum_host(run, one.ranks, columns)
        cost_ns = one.saves_ns_a_step
        if one.steps and len(one.steps) < verdict.judged_steps:
            there = np.isin(run.steps[columns], one.steps)
            each_ns = cost_ns * verdict.judged_steps / len(one.steps)
            found = find_causes(host, np.tile(np.where(there, each_ns, 0.0), (len(rows), 1)))
        else:
            found = causes_of_all(host, cost_ns, verdict.step_ns)
        one.detail |= known_part(found)


class Answer(NamedTuple):
    """What bounds a run. timeline: when what held; None where nothing is judged, and for files of
    other tools. all_closed: whether its processes are known, and all of them ended normally."""

    verdict: Verdict
    timeline: Timeline | None = None
    all_closed: bool = False


def answer_of_run(
    paths: Sequence[str],
    ranks: set[int] | None = None,
    steps: tuple[int, int] | None = None,
    warmup: int | None = None,
    ledger: LedgerReader | None = None,
    newest_bytes: int | None = None,
    whole: bool = False,
    at: int | None = None,
) -> Answer:
    """The answer on the rows of a run.

    paths, steps, newest_bytes, whole: as for `load_run`; warmup: as for `judge`; at: as for
    `answer_on`. ranks: the run is judged whole, and of the findings those are kept that concern
    these ranks. ledger: takes the rows of all ranks, too. "not judged" with the reason where
    nothing can be read. Thread-safe.
    """
    try:
        on_rank = None if ledger is None else ledger.add
        run = load_run(paths, None, steps, on_rank=on_rank, newest_bytes=newest_bytes, whole=whole)
    except NothingToJudge as error:
        reason, *more = str(error).splitlines()
        return Answer(Verdict("not judged", reason=reason, notes=more, paths=tuple(paths)))
    if ledger is not None:
        ledger.choose(run)
    answer = answer_on(run, warmup, at)
    if ranks is None:
        return answer
    return answer._replace(verdict=about(answer.verdict, ranks, run.ranks.tolist()))


def answer_on(run: RunData, warmup: int | None = None, at: int | None = None) -> Answer:
    """The verdict on a run, and its parts. Where nothing stands out in all steps together, it is
    the verdict on the part that loses most: what some steps lose is little in all of them.

    at: a step; then the verdict is that of the part in which it is, of a run with several."""
    verdict = judge(run, warmup)
    if verdict.status == "not judged":
        return Answer(verdict, all_closed=run.all_closed)
    timeline = make_timeline(run, lambda run, steps: judge(run, warmup, steps), warmup)
    shown = timeline.worst if verdict.status == "ok" else None
    if at is not None:
        shown = timeline.part_at(at)
    if shown is not None:
        verdict = replace(shown.verdict, warmup=verdict.warmup)
    return Answer(verdict, timeline, run.all_closed)
