"""Tells whether a run hangs, and at which lines of Python its ranks are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NotRequired, cast

from ...tensors.replicas.result import ReplicasData
from ..gpu_trace.data import DeviceData
from ..ledger.data import LedgerData
from ..live.collectives import dumps_in
from ..live.poll import (
    Snapshot,
    SnapshotRequest,
    as_data,
    ended_in_order,
    made_others_wait,
    make_usual,
    take_snapshot,
)
from ..live.recorded import Recorded
from ..live.result import CauseData, FlightRecorderData, HangData, SuspectData
from ..live.stacks import (
    StacksData,
    dump_stacks,
    places_by_rank,
    stack_view_lines,
    stacks_as_data,
)
from ..live.view import standstill_lines, visible
from ..process_stacks.request import Stacks
from ..timeline.data import TimelineData
from ..verdict.endings import command_ending, hangs_after_s, run_file_of
from ..verdict.result import Verdict, VerdictData

GONE_AFTER_S = 600.0  # without a sign of life for so long, nobody answers
LINES_MAX = 80  # of stacks; those of equal ranks are one


class HungData(HangData):
    """A run whose ranks make no progress, as `my_utils live --json` shows it.

    suspects: the ranks that hold the run up, the most suspicious first.
    causes: who holds up the others, by all that is known.
    flight_recorder: only if the run has dumps of torch's flight recorder.
    stacks: null if none of its processes is alive.
    """

    suspects: list[SuspectData]
    causes: list[CauseData]
    flight_recorder: NotRequired[FlightRecorderData]
    stacks: StacksData | None


class WhyData(VerdictData):
    """The verdict on a run.

    hang: only if the ranks make no progress.
    ledger: where all time of the job went; not for files of other tools.
    timeline: when what held; only for a run that was judged, and of its steps not few.
    devices: where the time of each went; only of traces that cannot be judged, and with --ledger.
    replicas: whether they differ; only if they were watched.
    """

    hang: NotRequired[HungData]
    ledger: NotRequired[LedgerData]
    timeline: NotRequired[TimelineData]
    devices: NotRequired[list[DeviceData]]
    replicas: NotRequired[ReplicasData]


@dataclass(frozen=True)
class HungRun:
    """A run whose ranks make no progress. stacks: None if none of its processes is alive. note:
    why dumps of torch's flight recorder were not read; empty where they were, or there are none."""

    seen: Snapshot
    stacks: Stacks | None
    note: str = ""

    @property
    def hangs(self) -> bool:
        """Whether it still can: one of its processes is alive."""
        return self.stacks is not None

    def lines(self) -> list[str]:
        """For a terminal, plain: since when and where, who holds the others up, and the stacks."""
        at = {} if self.stacks is None else places_by_rank(self.stacks)
        head, *shown = standstill_lines(self.seen, at)
        shown += [visible(self.note)] if self.note else []
        if self.stacks is None:
            return [
                "ENDED in the middle of its work; none of its processes is alive, so there are no "
                f"Python stacks{self._ending()}",
                *([head] if made_others_wait(self.seen) else []),
                *shown,
            ]
        stacks = stack_view_lines(self.stacks, self.seen)
        if len(stacks) > LINES_MAX:
            logs = " ".join(self.seen.log_dirs)
            more = f"and {len(stacks) - LINES_MAX} more lines: my_utils live {logs} --once --stacks"
            stacks = [*stacks[:LINES_MAX], more]
        return [head.replace("hangs", "HANGS", 1), *shown, *stacks]

    def _ending(self) -> str:
        """How the command of the run ended, where `my_utils run` has written it down."""
        ending = command_ending(run_file_of(self.seen.log_dirs)[0])
        return f"; {ending}" if ending else ""

    def as_data(self) -> HungData:
        """Plain data: `hang`, `suspects`, `causes` and, if the run has dumps, `flight_recorder` as
        `my_utils.analysis.live.snapshot` has them, and `stacks`, None if no process lives."""
        data = as_data(self.seen)
        stacks = None if self.stacks is None else stacks_as_data(self.stacks)
        known = {key: data[key] for key in ("flight_recorder",) if key in data}
        named = {"suspects": data["suspects"], "causes": data["causes"]}
        hang = {**data["hang"], **named, **known, "stacks": stacks}
        return cast(HungData, hang)


def find_hang(
    logs: Sequence[str], ranks: set[int] | None, after_s: float | None, verdict: Verdict
) -> HungRun | None:
    """The hang of the run in the directories among `logs`; None if it makes progress.

    ranks: whose stacks are asked for, beside those of who holds the others up; None for all.
    after_s: how long a rank may make no progress; None for 30 s, and five mean steps of the
    verdict, which gets a note where dumps of torch's flight recorder cannot be listed. A run that
    ended normally does not hang. Asks the ranks for their stacks, which takes up to five seconds
    where one does not answer. OSError when a directory cannot be listed.
    """
    log_dirs = tuple(path for path in logs if os.path.isdir(path))
    if not log_dirs:
        return None
    if after_s is None:
        after_s = hangs_after_s(verdict.step_ns * 1e-9)
    request = SnapshotRequest(log_dirs, None, after_s, after_s, dumps_in(log_dirs))
    note = ""
    usual = make_usual(Recorded(log_dirs))
    try:
        seen = take_snapshot(request, usual)
    except OSError as error:  # of the dumps, or of a directory, and then again
        seen = take_snapshot(replace(request, flight_recorder=None), usual)
        note = f"{request.flight_recorder}: not read: {error.strerror}"
        verdict.notes.append(note)
    if seen.hang is None or not seen.hang.hung or ended_in_order(seen.found.ranks, usual):
        return None
    lives = any(
        rank.alive and (rank.beat_age_s is None or rank.beat_age_s < GONE_AFTER_S)
        for rank in seen.found.ranks
    )
    return HungRun(seen, dump_stacks(seen, ranks) if lives else None, note)
