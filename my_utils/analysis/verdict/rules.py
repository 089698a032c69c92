"""The rules: a pure function from the arrays of a run to its verdict.

In this order: whether the run can be judged at all; the device's view of a run on CUDA; where ranks
meet; then, in each group of ranks that can be compared, ranks that are slow all the time, those
that are slow now and then, imbalance that moves, and a lack of cores; over all groups, a run that
becomes slower; last, what all ranks spend in stages that are not computing. What one rule found is
taken off before the next one looks, so that no time is accounted for twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ...core.ranges import ranks_text
from ...core.units import bytes_text, count_text
from .blame import blame, blame_without_stage
from .causes import describe_worker
from .cores import short_of_cores
from .device import DeviceView, device_view, has_gpu_times
from .finding_causes import add_causes
from .gpu_clocks import describe_errors, lower_clock
from .hiccups import hiccups, moving_imbalance
from .kinds import is_costly
from .last_in_backward import last_inside
from .loss import LEAST_SHARE, Remaining
from .memory import LEAST_GROWTH, MEMORY_NAMES, find_growth
from .promises import make_findings
from .quantiles import median
from .result import NO_TIME, NO_TIME_REMEDY, Finding, Verdict
from .run_data import (
    GPU_COUNTERS,
    HOST_COUNTERS,
    HOST_STATES,
    LOADER_COUNTERS,
    LOADER_DELAY,
    LOADER_READ,
    Integers,
    Matrix,
    RunData,
)
from .run_ranks import RANGES_NAMED, missing_text
from .slower_ranks import slower_ranks
from .sync import Meetings, find_meetings
from .warmup import find_warmup
from .work import Work, measure_work

LOADER = (*LOADER_COUNTERS, LOADER_DELAY, LOADER_READ)
HOST = (*HOST_COUNTERS, *HOST_STATES, *LOADER)
STEPS_MIN = 20
WARMUP_SHARE = 0.10  # of the run, from which on the warm-up is worth a line
COMPUTES = 0.8  # of a step, from which on the device is busy enough to say so


def judge(
    run: RunData, warmup: int | None = None, within: tuple[int, int] | None = None
) -> Verdict:
    """What bounds the run, by these rules alone; see `replay.run_answer.judge`.

    warmup: so many steps at the beginning are left out; by default those that clearly take longer,
    see `docs/runs/verdict.md`. within: of the rest only these steps, a half-open range.
    Thread-safe; the run is not changed.
    """
    verdict = _described(run)
    columns = _judged_columns(run, warmup, within, verdict)
    verdict.reason = _why_not(run, columns, verdict)
    if verdict.reason is not None:
        verdict.findings = find_slower_ranks(run, columns)
        return verdict
    view: DeviceView | None = None
    if run.device == "cuda":
        view = device_view(run, columns)
        run = view.run
        verdict.untimed_share = view.untimed_share
    meetings = find_meetings(run, columns)
    groups = _groups(run, meetings, columns)
    verdict.step_ns = max(work.step_ns for work, _ in groups)  # the run ends with its slowest
    findings = make_findings(run, groups, columns)
    if view is not None and view.is_launch_bound:
        # Of a stage of the device that is long on all ranks the time is launching, named once.
        findings = [
            one
            for one in findings
            if one.stage not in view.stages or len(one.ranks) != len(run.ranks)
        ]
    _explain_input(run, findings, columns)
    _explain_clocks(run, findings, columns)
    add_causes(run, findings, columns)
    others_ns = sum(one.cost_ns_a_step for one in findings if is_costly(one.kind))
    findings += _of_the_device(view, verdict, others_ns)
    findings += _of_memory(run, columns, verdict)
    findings += _of_warmup(run, columns) if within is None else []
    costly = [one for one in findings if is_costly(one.kind)]
    remaining = [(work, left.own()) for work, left in groups]
    findings += slower_ranks(run, meetings, remaining, columns, costly)
    for one in findings:
        waits = bool(meetings.inferred) and bool(one.detail.get("waits_in"))
        one.inferred = waits or "inside_ns" in one.detail
    for one in findings:
        _count_in_steps(one, run.width)
    findings.sort(key=lambda one: (not is_costly(one.kind), -one.cost_ns_a_step))
    verdict.findings = findings
    verdict.inferred = tuple(meetings.inferred)
    verdict.status = "found" if verdict.costly else "ok"
    if verdict.status == "ok" and meetings.undecided is not None:
        _leave_undecided(verdict, *meetings.undecided)
    return verdict


def find_slower_ranks(
    run: RunData, columns: Integers, costly: Sequence[Finding] = ()
) -> list[Finding]:
    """Ranks that are slower beyond chance, of a run that these rules do not judge. columns: of the
    steps that count; costly: what was found otherwise."""
    if not len(columns) or run.step_ns[:, columns].sum() <= 0:
        return []
    meetings = find_meetings(run, columns)
    works = [measure_work(run, meetings, rows, columns) for rows in meetings.groups]
    return slower_ranks(run, meetings, [(work, work.own.sum(2)) for work in works], columns, costly)


# --- what can be judged ---


def _described(run: RunData) -> Verdict:
    gpu_errors = tuple(describe_errors(run.counters, run.ranks))
    return Verdict(
        "not judged",
        judged_ranks=len(run.ranks),
        world_size=max(run.world_size, len(run.ranks)),
        is_cuda=run.device == "cuda",
        attempts=run.attempts,
        older_attempts=run.older_attempts,
        repeated=run.repeated,
        paths=tuple(run.paths),
        command=tuple(run.command),
        running=run.running,
        ending=run.ending,
        gpu_errors=gpu_errors,
        losses=tuple(run.losses),
        window_steps=run.width,
        single_from=run.single_from,
        notes=[*run.problems, *gpu_errors],
    )


def judged_columns(run: RunData, warmup: int | None) -> tuple[Integers, int]:
    """The columns that all ranks have, without the warm-up and a step that is not over; and how
    many the warm-up has."""
    columns = np.zeros(0, np.int64)
    if run.step_ns.size:
        columns = np.flatnonzero(np.isfinite(run.step_ns).all(0))
    is_over = not run.running and all(run.ended)
    if not is_over and len(columns) and columns[-1] == len(run.steps) - 1:
        columns = columns[:-1]
    if warmup is None:
        own = find_warmup(run.step_ns[:, columns])
    else:
        own = min(-(-warmup // run.width), len(columns))
    return columns[own:], own


def _judged_columns(
    run: RunData, warmup: int | None, within: tuple[int, int] | None, verdict: Verdict
) -> Integers:
    columns, own = judged_columns(run, warmup)
    verdict.warmup = own * run.width
    if within is not None:
        steps = run.steps[columns]
        columns = columns[(steps >= within[0]) & (steps < within[1])]
    verdict.judged_steps = len(columns) * run.width
    if len(columns):
        verdict.first_step = int(run.steps[columns[0]])
        verdict.last_step = int(run.steps[columns[-1]]) + run.width - 1
        judged = run.step_ns[:, columns]
        verdict.step_ns = float(judged.mean())
        timed = run.totals.sum(2)[:, columns]
        untimed = np.maximum(judged - timed, 0)
        if verdict.step_ns > 0:
            verdict.untimed_share = float(untimed.sum() / judged.sum())
        set_throughput(verdict, run, columns)
    verdict.stopped = _stopped(run)
    return columns


def set_throughput(verdict: Verdict, run: RunData, columns: Integers) -> None:
    """What all ranks together get done in a judged step, where each step of each rank says it."""
    done = {
        name: float(run.counters[name][:, columns].sum(0).mean())
        for name in ("samples", "tokens")
        if name in run.counters and len(columns)
    }
    known = {name: count for name, count in done.items() if np.isfinite(count)}
    verdict.samples_a_step, verdict.tokens_a_step = known.get("samples"), known.get("tokens")
    verdict.model_flops = run.model_flops


def _stopped(run: RunData) -> tuple[int, ...]:
    """Ranks whose files end before the others', by more than a step."""
    if not run.step_ns.size:
        return ()
    here = np.isfinite(run.step_ns)
    last = np.where(here.any(1), here.shape[1] - 1 - here[:, ::-1].argmax(1), -1)
    return tuple(run.ranks[last < last.max() - 1].tolist())


def _why_not(run: RunData, columns: Integers, verdict: Verdict) -> str | None:
    """Why the run is not judged; sets what would make it judgeable."""
    if not len(run.ranks) or not len(run.steps):
        verdict.remedy = "time the stages of a step, or start the script with `my_utils run`"
        return "no rank has a step"
    if run.world_size > len(run.ranks):
        verdict.remedy = "name all folders of the run, those of other nodes too"
        return missing_text(run)
    if len(run.steps) == 1 and not run.command:
        verdict.remedy = "call timer.set_step(step), or start the script with `my_utils run`"
        return f"all rows have step {int(run.steps[0])}"
    if verdict.judged_steps == 0 and verdict.warmup > 1:
        verdict.remedy = "let it run longer, or say the warm-up with --warmup"
        return f"the warm-up is longer than half of the {verdict.warmup} steps"
    if len(columns) < STEPS_MIN:
        verdict.remedy = f"let it run for {STEPS_MIN} steps after the warm-up"
        early = (
            f"; {ranks_text(verdict.stopped, RANGES_NAMED)} ended early" if verdict.stopped else ""
        )
        return (
            f"{count_text(len(columns), 'step')} after the warm-up, {STEPS_MIN} are needed{early}"
        )
    if not verdict.step_ns > 0:
        verdict.remedy = NO_TIME_REMEDY
        return NO_TIME
    if run.device == "cuda" and not has_gpu_times(run, columns):
        verdict.remedy = "use MyTimer(use_cuda=True), or start the script with `my_utils run`"
        return "fewer than 80 % of the steps have GPU times; host times are times of enqueueing"
    return None


def _leave_undecided(verdict: Verdict, stage: str, apart_ns: float) -> None:
    verdict.status = "not judged"
    verdict.reason = (
        f"some ranks take {apart_ns * 1e-6:.3g} ms a step more than others in {stage}, and as much "
        "less elsewhere; their times do not show which of them wait"
    )
    verdict.remedy = "start the script with `my_utils run`, which records where ranks meet"


# --- the rules, in order ---


def _groups(run: RunData, meetings: Meetings, columns: Integers) -> list[tuple[Work, Remaining]]:
    groups: list[tuple[Work, Remaining]] = []
    for rows in meetings.groups:
        work = measure_work(run, meetings, rows, columns)
        left = Remaining(work.own.copy("K"), work.bases())
        blame(work, left, [run.hosts[row] for row in rows.tolist()])
        host = _counters(run, HOST, rows, columns)
        hiccups(work, left, host)
        blame_without_stage(work, left)
        counters = _counters(run, ("samples", "tokens"), rows, columns)
        everyone = np.arange(len(run.ranks))
        joined = _counters(run, tuple(counters), everyone, columns)
        moving_imbalance(work, left, counters, joined if meetings.pipelines else None)
        last_inside(run, work, left, columns)
        if run.device == "cpu":  # else the device may work on while the host waits
            short_of_cores(work, left, host)
        groups.append((work, left))
    return groups


class _Counters(Mapping[str, Matrix]):
    """Counters of some ranks and steps. Each is cut out when it is asked for: many are not, and all
    together they are larger than the run's times."""

    def __init__(self, counters: dict[str, Matrix], rows: Integers, columns: Integers) -> None:
        self._counters = counters
        self._at = np.ix_(rows, columns)

    def __getitem__(self, name: str) -> Matrix:
        return self._counters[name][self._at]

    def __contains__(self, name: object) -> bool:
        return name in self._counters

    def __iter__(self) -> Iterator[str]:
        return iter(self._counters)

    def __len__(self) -> int:
        return len(self._counters)


def _counters(
    run: RunData, names: Sequence[str], rows: Integers, columns: Integers
) -> Mapping[str, Matrix]:
    there = {name: run.counters[name] for name in names if name in run.counters}
    return _Counters(there, rows, columns)


def _count_in_steps(one: Finding, width: int) -> None:
    """What is counted in columns, each the mean of so many steps."""
    if width > 1:
        for name in one.detail.keys() & {"hiccups", "every", "steps", "each_ns"}:
            one.detail[name] *= width


def _explain_input(run: RunData, findings: Sequence[Finding], columns: Integers) -> None:
    """Adds to findings about input who loads, and what keeps the loader."""
    for one in findings:
        if one.kind != "input" or not one.ranks:
            continue
        workers = run.workload.get("num_workers", "")
        if workers.isdecimal():
            one.detail["num_workers"] = int(workers)
        if workers != "0" and "workers_do" not in one.detail:
            rows = np.searchsorted(run.ranks, one.ranks)
            counters = _counters(run, LOADER, rows, columns)
            waited_ns = np.zeros((len(rows), len(columns)))
            if one.stage in run.stages:
                waited_ns = run.totals[np.ix_(rows, columns)][..., run.stages.index(one.stage)]
            one.detail |= describe_worker(counters, waited_ns)


def _explain_clocks(run: RunData, findings: Sequence[Finding], columns: Integers) -> None:
    """Adds to findings about some of the ranks that their GPUs are slower."""
    counters = _counters(run, GPU_COUNTERS, np.arange(len(run.ranks)), columns)
    for one in findings:
        if 0 < len(one.ranks) < len(run.ranks):
            one.detail |= lower_clock(counters, np.searchsorted(run.ranks, one.ranks))


def _of_the_device(view: DeviceView | None, verdict: Verdict, others_ns: float) -> list[Finding]:
    """others_ns: of a step, what other findings cost. Launching costs none of that again."""
    if view is None or not verdict.step_ns:
        return []
    share = view.busy_ns / verdict.step_ns
    if view.is_launch_bound and share >= LEAST_SHARE:
        detail = {"took_ns": view.busy_ns}
        cost = min(view.busy_ns, max(verdict.step_ns - others_ns, 0.0))
        share = cost / verdict.step_ns
        return [Finding("launch", cost_ns_a_step=cost, share=share, detail=detail)]
    if share >= COMPUTES:
        return [Finding("compute", cost_ns_a_step=view.busy_ns, share=share)]
    return []


def _of_memory(run: RunData, columns: Integers, verdict: Verdict) -> list[Finding]:
    growth = find_growth(run.counters, columns)
    if growth is None:
        is_recorded = any(name in run.counters for name in MEMORY_NAMES)
        verdict.memory = "memory steady" if is_recorded else "memory not recorded"
        return []
    more = bytes_text(growth.bytes_a_step)
    verdict.memory = f"{growth.name} +{more} a step since step {verdict.first_step}: suspicious"
    if growth.growth < LEAST_GROWTH:
        return []
    ranks = tuple(run.ranks[growth.rows].tolist())
    detail = {"what": growth.name, "bytes_a_step": growth.bytes_a_step, "growth": growth.growth}
    return [Finding("memory grows", ranks, since_step=verdict.first_step, detail=detail)]


def _of_warmup(run: RunData, columns: Integers) -> list[Finding]:
    """What the steps before the judged ones took longer, as a share of the run."""
    series = median(run.step_ns, 0)
    first = series[: int(columns[0])]
    first = first[np.isfinite(first)]
    usual = float(median(series[columns]))
    lost = float(np.maximum(first - usual, 0).sum())
    whole = float(np.nansum(series))
    share = lost / whole if whole > 0 else 0.0  # on most ranks they may take no time
    if share < WARMUP_SHARE:
        return []
    detail = {"lost_ns": lost, "steps": len(first)}
    return [Finding("warm-up", share=share, cost_ns_a_step=lost / len(run.steps), detail=detail)]


assert LEAST_SHARE == 0.10  # text and docs say 10 %
