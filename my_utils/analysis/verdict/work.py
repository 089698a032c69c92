"""The work of each rank between two meetings, and its time in the meetings.

A cycle of a rank goes from the end of its last meeting in a step to the end of the last one in the
next step. What comes after that meeting (the optimizer, say) delays the arrival of the step after,
so its time counts there, unless the step before is not judged. Only durations count: each rank may
have a separate clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .kinds import UNTIMED, kind_of_stage
from .quantiles import median
from .rank_files import SEPARATOR
from .run_data import Integers, Matrix, RunData, cut, in_layers
from .sync import Meetings, leave_together

SAMPLE_RANKS = 16
AROUND = 0.8  # of a step, from which on a stage with others inside is around the step
ONE_RUN = 0.01  # of a step: a stage that ran once in it takes as long as from its begin to its end
FEW_RANKS = 8  # up to so many, the median of the others is taken without the rank itself


@dataclass
class Work:
    """A group of ranks in the judged steps.

    rows: of the run. parts: names of the outer stages, those inside counted into them, and
    "untimed" last; own: rank × step × part, ns, without the meetings. meetings: numbers of the
    stages in which they meet, and their names; meeting_parts: the part of each; pipelines: those of
    a pipeline; together: whether the ranks leave a meeting at the same moment; in_meetings: rank ×
    step × meeting. inside: of these, what is known to be a rank's own work; it counts into `own`
    and not into `in_meetings`. step_ns: the mean of a step. tail: numbers of the stages that come
    after the last meeting of a step.
    """

    rows: Integers
    parts: list[str]
    own: Matrix
    meetings: Integers
    meeting_names: list[str]
    meeting_parts: list[int]
    pipelines: list[str]
    together: list[bool]
    in_meetings: Matrix
    inside: Matrix
    step_ns: float
    tail: list[int] = field(default_factory=list)

    @property
    def meets(self) -> bool:
        return len(self.meetings) > 0 and len(self.rows) > 1

    def bases(self) -> Matrix:
        """step × meeting: what a meeting takes the rank that waits least."""
        least: Matrix = self.in_meetings.min(0)
        return least

    def bases_of_parts(self) -> Matrix:
        """step × part: of a part in a meeting, of which it is known what is a rank's own, what is
        the same on all of them."""
        same = np.zeros(self.own.shape[1:])
        for place, part in enumerate(self.meeting_parts):
            if part in self.parts_inside():
                same[:, part] += self.in_meetings[..., place].min(0)
        return same

    def parts_inside(self) -> list[int]:
        """Parts in a meeting of which it is known what of it is a rank's own."""
        return [
            part for place, part in enumerate(self.meeting_parts) if self.inside[..., place].any()
        ]

    def unseen(self, row: int, factor: float) -> Matrix:
        """Per step, what a rank takes longer inside the meetings without that it can be seen, if
        it is slower there by that factor."""
        whole = self.in_meetings[row] + self.inside[row]
        longer: Matrix = np.maximum(whole * factor / (1 + factor) - self.inside[row], 0).sum(1)
        return longer

    def critical(self, own_ns: Matrix) -> Matrix:
        """Of each step the time of the rank that all wait for; own_ns: rank × step. Ranks that do
        not meet wait for nobody: the run takes as long as its slowest rank."""
        if self.meets:
            longest: Matrix = own_ns.max(0)
            return longest
        slowest: Matrix = own_ns[own_ns.mean(1).argmax()]
        return slowest

    def step_times(self, own_ns: Matrix, bases_ns: Matrix) -> Matrix:
        """Of each step what it takes: the work of the rank that all wait for, or the median of
        ranks that do not meet, and the meetings. own_ns: rank × step; bases_ns: step × meeting.
        What comes after the last meeting of a step counts in the next one."""
        longest = self.critical(own_ns) if self.meets else median(own_ns, 0)
        whole: Matrix = longest + bases_ns.sum(1)
        return whole

    def saved(self, before: Matrix, after: Matrix) -> Matrix:
        """How much shorter each step is, if ranks take `after` instead of `before`."""
        if self.meets:
            shorter: Matrix = np.maximum(self.critical(before) - self.critical(after), 0)
            return shorter
        gain = max(float(before.mean(1).max() - after.mean(1).max()), 0.0)
        return np.full(before.shape[1], gain)

    def saved_alone(self, own_ns: Matrix, less_ns: Matrix) -> Matrix:
        """Of each rank, how much shorter a step is in the mean, if that rank alone takes so much
        less. Both arrays rank × step."""
        saved = np.zeros(len(own_ns))
        rows = np.flatnonzero(less_ns.any(1))
        if not self.meets:
            means = own_ns.mean(1)
            first, second = means.argmax(), _second(means)
            for row in rows:
                others = second if row == first else means[first]
                after = max(float((own_ns[row] - less_ns[row]).mean()), float(others))
                gain = max(float(means[first]) - after, 0.0)
                saved[row] = np.full(own_ns.shape[1], gain).mean()
            return saved
        last, longest, second = own_ns.argmax(0), own_ns.max(0), _second(own_ns)
        for row in rows:
            others = np.where(last == row, second, longest)
            after = np.maximum(others, own_ns[row] - less_ns[row])
            saved[row] = np.maximum(longest - after, 0).mean()
        return saved


def _second(values: Matrix) -> Any:
    """The second largest along the first axis; -inf where there is only one."""
    if len(values) < 2:
        return np.full(values.shape[1:], -np.inf)
    return np.partition(values, -2, axis=0)[-2]


def medians_of_others(values: Matrix) -> Callable[[int], Matrix]:
    """Of a row (axis 0) the median of the other rows, each a function's call, sorted only once.

    >>> of = medians_of_others(np.array([[1.0], [5.0], [2.0], [9.0]]))
    >>> of(0).tolist(), of(3).tolist()
    ([5.0], [2.0])
    """
    ordered = np.sort(values, axis=0)
    others = len(values) - 1
    places = {(others - 1) // 2, others // 2}

    def median_of(row: int) -> Matrix:
        middle = [
            np.where(ordered[at] < values[row], ordered[at], ordered[at + 1]) for at in places
        ]
        found: Matrix = np.mean(middle, axis=0)
        return found

    return median_of


def over_others(values: Matrix) -> Matrix:
    """The values less the median of the other ranks (axis 0) in the same step.

    >>> over_others(np.array([[1.0], [5.0], [2.0]])).ravel().tolist()
    [-2.5, 3.5, -1.0]
    """
    if len(values) > FEW_RANKS:
        above: Matrix = values - median(values, 0)
        return above
    others = medians_of_others(values)
    result: Matrix = values - np.stack([others(row) for row in range(len(values))])
    return result


def measure_work(run: RunData, meetings: Meetings, rows: Integers, columns: Integers) -> Work:
    """columns: the judged steps, all of which these ranks have."""
    meets = meetings.meets[rows]
    meeting_stages: Integers = np.flatnonzero(meets.any(0))
    tail = _after_the_last_meeting(run, rows, meeting_stages)
    before = np.where(np.isin(columns - 1, columns), columns - 1, columns)
    parts, part_of = _parts(run, rows, columns)
    shape = len(rows), len(columns)
    in_meetings = in_layers((*shape, len(meeting_stages)))
    own = in_layers((*shape, len(parts)))
    timed = np.zeros(shape)
    for stage, part in enumerate(part_of):
        took = cut(run.totals[..., stage], rows, columns)
        timed += took
        if meets[:, stage].any():
            place = int(np.searchsorted(meeting_stages, stage))
            in_meetings[..., place] = np.where(meets[:, None, stage], took, 0.0)
        if stage in tail:
            took = run.totals[..., stage][np.ix_(rows, before)]
        if not meets[:, stage].all():
            own[..., part] += np.where(meets[:, None, stage], 0.0, took)
    untimed = np.maximum(cut(run.step_ns, rows, columns) - timed, 0)
    if len(meeting_stages):
        late = _at_the_end(run, rows)
        untimed += late[:, before] - late[:, columns]
    own[..., -1] += np.maximum(untimed, 0)
    names = [run.stages[at] for at in meeting_stages.tolist()]
    together = [leave_together(run, rows, columns, at) for at in meeting_stages.tolist()]
    meeting_parts = [part_of[at] for at in meeting_stages.tolist()]
    inside = np.zeros_like(in_meetings)
    if meets[:, meeting_stages].all() and not meetings.pipelines:
        inside = _own_inside(run, rows, columns, meeting_stages, together)
    for place, part in enumerate(meeting_parts):
        own[..., part] += inside[..., place]
    return Work(
        rows, parts, own, meeting_stages, names, meeting_parts, meetings.pipelines, together,
        in_meetings - inside, inside,
        _step_ns(cut(run.step_ns, rows, columns), bool(len(meeting_stages))), tail,
    )  # fmt: skip


def _step_ns(step_ns: Matrix, meets: bool) -> float:
    """The mean of a step. Of ranks that do not meet it is that of the slowest."""
    means = np.nanmean(step_ns, axis=1)
    return float(means.mean() if meets else means.max())


def _parts(run: RunData, rows: Integers, columns: Integers) -> tuple[list[str], list[int]]:
    """The names of the parts, and of each stage its part. A stage that is around nearly all of a
    step ("iter") is not one itself: what is in no stage inside it is untimed."""
    around = _wrappers(run, rows, columns)
    names: list[str] = []
    part_of = []
    for stage in run.stages:
        name = _outer(stage, around)
        if name is not None and name not in names:
            names.append(name)
        part_of.append(-1 if name is None else names.index(name))
    return [*names, UNTIMED], part_of


def _wrappers(run: RunData, rows: Integers, columns: Integers) -> set[str]:
    step_ns = float(np.nanmean(cut(run.step_ns, rows, columns)))
    found = set()
    for number, stage in enumerate(run.stages):
        inside = any(other.startswith(stage + SEPARATOR) for other in run.stages)
        parent = stage.rpartition(SEPARATOR)[0]
        if inside and (not parent or parent in found):
            begins, ends = (
                cut(moments[..., number], rows, columns) for moments in (run.begins, run.ends)
            )
            lengths = ends - begins
            if float(np.nan_to_num(lengths).mean()) >= AROUND * step_ns:
                found.add(stage)
    return found


def _outer(stage: str, around: set[str]) -> str | None:
    """The outermost stage around it that is not around all of a step; None for such a one."""
    if stage in around:
        return None
    while (parent := stage.rpartition(SEPARATOR)[0]) and parent not in around:
        stage = parent
    return stage


def _after_the_last_meeting(run: RunData, rows: Integers, meetings: Integers) -> list[int]:
    places = [place_of(run, rows, stage) for stage in range(len(run.stages))]
    known = [places[stage] for stage in meetings.tolist() if np.isfinite(places[stage])]
    if not known:
        return []
    last = max(known)
    return [stage for stage, place in enumerate(places) if place > last and stage not in meetings]


def place_of(run: RunData, rows: Integers, stage: int) -> float:
    """How long after the begin of a step it usually begins; NaN where no rank has it."""
    having = rows[:SAMPLE_RANKS]
    if not np.isfinite(run.begins[having, :, stage]).any(1).all():
        having = rows[np.isfinite(run.begins[rows, :, stage]).any(1)][:SAMPLE_RANKS]
    return float(median(run.begins[having, :, stage] - run.step_begins[having]))


def _at_the_end(run: RunData, rows: Integers) -> Matrix:
    """Rank × step: the time from the last end of a stage to the next step."""
    every = np.arange(len(run.steps))
    ends = np.full((len(rows), len(every)), -np.inf)
    for stage in range(len(run.stages)):
        np.fmax(ends, cut(run.ends[..., stage], rows, every), out=ends)
    rest = cut(run.step_begins, rows, every) + cut(run.step_ns, rows, every) - ends
    result: Matrix = np.maximum(np.nan_to_num(rest, nan=0.0, neginf=0.0, posinf=0.0), 0)
    return result


# --- inside meetings ---


def _own_inside(
    run: RunData, rows: Integers, columns: Integers, meetings: Integers, together: list[bool]
) -> Matrix:
    """The work of a rank inside meetings that ranks leave one by one: rank × step × meeting, ns; 0
    if it is not known.

    Under DDP that broadcasts buffers, and under FSDP, ranks meet in `forward` and again in
    `backward`. A rank that is slow in forward leaves it late, and the others wait for it in
    backward: over the sum of both its own work and their wait cancel. So each meeting is looked at
    by itself. A rank waits in it no longer than until the last one enters, counted on its own clock
    from the end of the last meeting of the step before, which all leave together. What is longer
    than that, and than the shortest stay of a rank in that step, is the rank's own.

    It is known of a meeting before the last one of a step, in which these ranks compute, which runs
    once in a step, and which they do not leave together; and only if they leave the last one
    together. columns: the judged steps. meetings: the stages in which all of these ranks meet.
    """
    found = np.zeros((len(rows), len(columns), len(meetings)))
    if len(rows) < 2 or len(meetings) < 2:
        return found
    here = np.ix_(rows, columns)
    entered = run.begins[here][..., meetings] - run.step_begins[here][..., None]
    places = np.nanmedian(entered, axis=(0, 1)) if np.isfinite(entered).any((0, 1)).all() else None
    if places is None or not together[int(places.argmax())]:
        return found
    left = run.ends[..., meetings[int(places.argmax())]][np.ix_(rows, np.maximum(columns - 1, 0))]
    left[:, columns == 0] = np.nan
    step_ns = float(np.nanmean(run.step_ns[here]))
    for at, stage in enumerate(meetings.tolist()):
        stay = run.totals[..., stage][here]
        lengths = run.ends[..., stage][here] - run.begins[..., stage][here]
        once = float(np.nan_to_num(np.abs(lengths - stay)).mean()) <= ONE_RUN * step_ns
        computes = kind_of_stage(run.stages[stage]) != "communication"
        if at != int(places.argmax()) and not together[at] and computes and once:
            found[..., at] = _longer_than_its_wait(run.begins[..., stage][here] - left, stay)
    return found


def _longer_than_its_wait(entered: Matrix, stay: Matrix) -> Matrix:
    """Both rank × step, ns. entered: since the meeting before.

    The second of these ranks waits for the first, the third one takes longer itself:

    >>> entered, stay = np.array([[5.0], [1.0], [5.0]]), np.array([[6.0], [10.0], [9.0]])
    >>> _longer_than_its_wait(entered, stay).ravel().tolist()
    [0.0, 0.0, 3.0]
    """
    own = np.maximum(stay - (entered.max(0) - entered), stay.min(0))
    result: Matrix = np.nan_to_num(own - own.min(0), nan=0.0)
    return result
