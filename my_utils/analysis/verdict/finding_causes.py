"""The causes of findings that are not hiccups: what the host took from the ranks in that time.

Where some steps have the time and others do not, the two are compared, as for hiccups. Where all
steps have it, what the host took from whole steps counts as far as it does not fit into the rest of
the step, so that each share is the least that it can be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .causes import causes_of_all, find_causes
from .kinds import UNTIMED, Kind, is_of_the_host
from .result import Finding
from .run_data import HOST_COUNTERS, HOST_STATES, Integers, Matrix, RunData
from .stage_costs import NOT_AT_ALL

KINDS: tuple[Kind, ...] = (
    "input", "h2d", "straggler", "optimizer", "checkpoint", "eval", "untimed", "slower since",
    "throughput falls",
)  # fmt: skip
RANKS_READ = 64  # of those of a finding
ENDS = 8  # that part of the steps at each end shows what has changed


def add_causes(run: RunData, findings: Sequence[Finding], columns: Integers) -> None:
    """Adds "causes", and "cause" where one has half of the time, to findings that have none.
    columns: the judged steps."""
    for one in findings:
        if one.kind not in KINDS or "causes" in one.detail:
            continue
        if run.device != "cpu" and not (one.stage and is_of_the_host(one.stage)):
            continue  # the host's time is not the device's
        host, rows = sum_host(run, one.ranks, columns)
        found = _causes(run, one, host, rows, columns)
        one.detail |= known_part(found)


def known_part(found: Mapping[str, object]) -> dict[str, object]:
    """What is worth saying of a finding without a cause: nothing about one that is unknown."""
    if not found.get("causes"):
        return {}
    return {name: value for name, value in found.items() if value != "unknown"}


def sum_host(
    run: RunData, ranks: Sequence[int], columns: Integers
) -> tuple[dict[str, Matrix], Integers]:
    """What the host took in these steps from these ranks, () for all, by counter; and the rows of
    the ranks: of many only some, spread evenly."""
    rows = np.searchsorted(run.ranks, ranks) if len(ranks) else np.arange(len(run.ranks))
    rows = rows[:: max(len(rows) // RANKS_READ, 1)]
    there = (name for name in (*HOST_COUNTERS, *HOST_STATES) if name in run.counters)
    return {name: run.counters[name][np.ix_(rows, columns)] for name in there}, rows


def _causes(
    run: RunData, one: Finding, host: Mapping[str, Matrix], rows: Integers, columns: Integers
) -> dict[str, object]:
    detail = one.detail
    if one.kind == "throughput falls":
        length = max(len(columns) // ENDS, 2)
        host = {name: np.hstack([v[:, :length], v[:, -length:]]) for name, v in host.items()}
        return find_causes(host, _later(len(rows), 2 * length, length, one))
    if one.kind == "slower since":
        at = int(np.searchsorted(run.steps[columns], one.since_step or 0))
        return find_causes(host, _later(len(rows), len(columns), at, one))
    if "times" in detail:
        took = _stage_ns(run, one.stage, rows, columns)
        return find_causes(host, np.where(took > NOT_AT_ALL * took.max(initial=0.0), took, 0.0))
    if one.since_step is not None:
        since = run.steps[columns] >= one.since_step
        columns, host = columns[since], {name: v[:, since] for name, v in host.items()}
    took_ns, step_ns = detail.get("took_ns", 0.0), detail.get("step_ns", 0.0)
    if not step_ns:
        step_ns = float(run.step_ns[np.ix_(rows, columns)].mean())
    return causes_of_all(host, took_ns, step_ns)


def _later(ranks: int, steps: int, at: int, one: Finding) -> Matrix:
    """Rank × step: what the steps from `at` on take longer."""
    longer = np.zeros((ranks, steps))
    longer[:, at:] = max(one.detail["after_ns"] - one.detail["before_ns"], 0.0)
    return longer


def _stage_ns(run: RunData, stage: str | None, rows: Integers, columns: Integers) -> Matrix:
    at = np.ix_(rows, columns)
    if stage in run.stages:
        took: Matrix = run.totals[at][..., run.stages.index(stage)]
        return took
    if stage != UNTIMED:
        return np.zeros((len(rows), len(columns)))
    untimed: Matrix = np.maximum(run.step_ns[at] - run.totals[at].sum(2), 0)
    return untimed
