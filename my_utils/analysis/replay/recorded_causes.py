"""What the host took from the ranks that a replay names."""

from __future__ import annotations

import numpy as np

from ..verdict.causes import causes_of, causes_of_all
from ..verdict.finding_causes import KINDS, host_of, known_part
from ..verdict.run_data import RunData
from .result import ReplayFinding, ReplayVerdict


def add_recorded_causes(run: RunData, verdict: ReplayVerdict) -> None:
    """Adds "causes", and "cause" where one has half of the time, to the findings."""
    first, last = verdict.first_step or 0, verdict.last_step or 0
    columns = np.flatnonzero((run.steps >= first) & (run.steps <= last))
    for one in verdict.findings:
        is_known = one.kind in (*KINDS, "host hiccups") and one.since_step is None
        if not is_known or not isinstance(one, ReplayFinding):
            continue
        host, rows = host_of(run, one.ranks, columns)
        cost_ns = one.saves_ns_a_step
        if one.steps and len(one.steps) < verdict.judged_steps:
            there = np.isin(run.steps[columns], one.steps)
            each_ns = cost_ns * verdict.judged_steps / len(one.steps)
            found = causes_of(host, np.tile(np.where(there, each_ns, 0.0), (len(rows), 1)))
        else:
            found = causes_of_all(host, cost_ns, verdict.step_ns)
        one.detail |= known_part(found)
