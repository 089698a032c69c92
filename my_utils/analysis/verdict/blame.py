"""Finds ranks that are slow all the time, or from a step on: the others wait for them.

A rank's own work is the time of a cycle outside the meetings (see `work`). What it has more than
the median of the other ranks, as a level over steps, is its excess. It is named if the others wait
for it, so if it waits least itself, and if the run were 10 % shorter without that excess; several
ranks of a host, or of one stage, are named once with their joint saving.

A stage is named if its excess alone covers 80 % of the rank's, and the rank's excess covers 80 % of
what the others wait; else the rank is named and the stage "not known".

A rank that is slower in all of its stages, by about the same factor, is named without a stage. What
it does inside the meetings is then taken to be slower by that factor, too, which nobody can see
from outside: the finding is "inferred".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .change_points import find_parts
from .kinds import Kind, kind_of_slow_stage
from .loss import LEAST_SHARE, LOW_SHARE, Loss, Remaining
from .quantiles import median, spread_of
from .run_data import Integers, Matrix
from .work import Work, medians_of_others, over_others

COVERED = 0.8
FALSE_CHANGES = 0.001
STEADY_SHARE = 0.75  # of the steps must show half of a level, or it is not a level
WAITED_LEAST = 0.25  # of its excess, that the others must wait for it
SLOW_MAX = 0.6  # of the ranks: were more slow, the others would be the exception
ALIKE = 0.5  # of the factors of two parts, if they are slow alike
STANDS_OUT = 3.0  # times what the next rank waits less
AT_TIMES = 0.25  # of its mean, that the usual loss is below where it comes in some steps only
HOST_RANKS = 2  # slow ones, at least, with which their host is named
HOST_SHARE = 0.75  # of its ranks
IRREGULAR = 0.6  # scatter of an excess, as a share of it, from which on it is not steady work


@dataclass
class _Slow:
    """One slow rank. level_ns: per step. parts_ns: of each part, its excess while it is slow."""

    row: int
    level_ns: Matrix
    parts_ns: Matrix
    since: int | None
    irregular: bool
    factor: float  # by which it is slower in all parts alike; 0.0 if they differ
    inside: list[int]  # parts in a meeting: what of them is its own is no more than a bound

    def part(self) -> int | None:
        """The part that covers enough of the excess, unless it meets or all are slow alike."""
        top = int(self.parts_ns.argmax())
        while_slow = float(self.level_ns[self.level_ns > 0].mean())
        covers = self.parts_ns[top] >= COVERED * while_slow
        return top if covers and not self.factor and top not in self.inside else None

    def is_partly_hidden(self) -> bool:
        """Whether it is slow in a stage of which only the part before the meeting can be seen."""
        return not self.factor and int(self.parts_ns.argmax()) in self.inside


def blame(work: Work, left: Remaining, hosts: list[str]) -> None:
    """Adds the losses to `left`, and takes them off. hosts: of each rank of the group."""
    own = left.own()
    if len(own) < 2:
        return
    slow = _slow_ranks(work, own)
    if slow:
        without = own.copy()
        for one in slow:
            without[one.row] -= one.level_ns
        inside = np.max([_inside(work, one) for one in slow], axis=0)
        saved = work.saved(own, without) + inside
        if float(saved.mean()) >= LEAST_SHARE * work.step_ns:
            left.losses += _by_cause(work, own, slow, hosts)
            for one in slow:
                left.take_off(one.row, one.level_ns, one.part())
            for loss in left.losses:
                if loss.inside_ns is not None:
                    left.take_off_meetings(loss.inside_ns)


def _slow_ranks(work: Work, own: Matrix) -> list[_Slow]:
    least = LOW_SHARE * work.step_ns
    waits = -over_others(work.in_meetings.sum(2)) if work.meets else None
    excess = over_others(own)
    slow = (excess.mean(1) >= least) | (median(excess, 1) >= least)
    if not slow.any():
        return []
    usual = None
    if 1 < slow.sum() <= SLOW_MAX * len(own):  # many slow ranks cannot be compared with each other
        excess = own - np.median(own[~slow], axis=0)
        slow = (excess.mean(1) >= least) | (median(excess, 1) >= least)
        usual = np.median(work.own[~slow], axis=0) if (~slow).any() else None
    if usual is None:
        of_others = medians_of_others(work.own)
    found = []
    bases = work.bases_of_parts()
    for row in np.flatnonzero(slow).tolist():
        level = _level(excess[row], least)
        is_slow = level > 0
        if not is_slow.any():
            continue
        size = float(level[is_slow].mean())
        if waits is not None and float(np.median(waits[row, is_slow])) < WAITED_LEAST * size:
            continue
        others = of_others(row) if usual is None else usual
        parts = np.median((work.own[row] - others)[is_slow], axis=0)
        took = np.median((others + bases)[is_slow], axis=0)
        factor = alike(parts, took, work.parts_inside())
        since = int(np.flatnonzero(is_slow)[0])
        scatter = float(spread_of(excess[row, is_slow][None, :], 1)[0])
        irregular = scatter > IRREGULAR * size
        one = _Slow(row, level, parts, since or None, irregular, factor, work.parts_inside())
        found.append(one)
    return found


def _level(excess: Matrix, least: float) -> Matrix:
    """The excess as levels over steps, 0 if it is small or no steady level."""
    level = np.zeros(len(excess))
    for part in find_parts(excess, FALSE_CHANGES):
        middle = float(np.median(excess[part]))
        if middle >= least and (excess[part] >= middle / 2).mean() >= STEADY_SHARE:
            level[part] = middle
    return level


def alike(excess: Matrix, usual: Matrix, inside: Sequence[int] = ()) -> float:
    """The factor by which all parts are longer alike, 0.0 if they differ. Arrays of parts, ns.

    The part with the largest excess and all others together are compared; both must take a part of
    the work that counts. inside: parts of whose excess some may be hidden in a meeting; there it
    may be less, but not more.

    >>> alike(np.array([40.0, 4.0]), np.array([80.0, 10.0]))
    0.489
    >>> alike(np.array([40.0, 0.0]), np.array([80.0, 10.0]))
    0.0
    >>> alike(np.array([40.0, 4.0, 9.0]), np.array([80.0, 10.0, 80.0]), [2])
    0.489
    """
    least = LOW_SHARE * float(usual.sum())
    seen, seen_usual = np.delete(excess, inside), np.delete(usual, inside)
    top = int(seen.argmax())
    rest, rest_usual = float(np.delete(seen, top).sum()), float(np.delete(seen_usual, top).sum())
    if min(rest_usual, float(seen_usual[top])) <= least:
        return 0.0
    of_top, of_rest = float(seen[top] / seen_usual[top]), rest / rest_usual
    if not ALIKE * of_top <= of_rest <= of_top / ALIKE:
        return 0.0
    factor = float(seen.sum() / seen_usual.sum())
    if any(excess[part] > usual[part] * factor / ALIKE for part in inside):
        return 0.0
    return round(factor, 3)


def _inside(work: Work, one: _Slow) -> Matrix:
    """What the rank takes longer inside the meetings, if it is slow there as elsewhere."""
    if not one.factor or not work.meets:
        return np.zeros(len(one.level_ns))
    inside: Matrix = work.unseen(one.row, one.factor) * (one.level_ns > 0)
    return inside


# --- what slow ranks share ---


def _by_cause(work: Work, own: Matrix, slow: list[_Slow], hosts: list[str]) -> list[Loss]:
    """The slow ranks of a host together, then those of a stage; each with what is saved once those
    before it are gone."""
    groups: list[tuple[tuple[str, ...], list[_Slow]]] = []
    whole = shared_hosts([one.row for one in slow], hosts)
    if whole:
        groups.append((tuple(sorted(whole)), [one for one in slow if hosts[one.row] in whole]))
    by_part: dict[int | None, list[_Slow]] = {}
    for one in slow:
        if hosts[one.row] not in whole:
            by_part.setdefault(one.part(), []).append(one)
    groups += [((), group) for group in by_part.values()]
    groups.sort(key=lambda group: -max(float(one.level_ns.mean()) for one in group[1]))
    losses = []
    for names, group in groups:
        without = own.copy()
        for one in group:
            without[one.row] -= one.level_ns
        saved = work.saved(own, without)
        inside = np.max([_inside(work, one) for one in group], axis=0)
        visible = np.max([one.level_ns for one in group], axis=0)
        inside *= np.clip(saved / np.maximum(visible, 1.0), 0, 1)
        loss = _loss(work, group, names, saved + inside)
        if "waits_in" in loss.detail:  # as long as the step is longer, all others wait
            loss.detail["lost_ns"] = float(saved.mean())
        if float(inside.mean()) > 0:
            loss.detail["inside_ns"] = float(inside.mean())
            loss.inside_ns = inside
        own = without
        losses.append(loss)
    return losses


def shared_hosts(slow: Sequence[int], hosts: Sequence[str]) -> set[str]:
    """The hosts most of whose ranks, at least two, are slow. A run on one host shares that host
    always, so none is named there. slow: places in `hosts`, which has the host of each rank.

    >>> shared_hosts([2, 3], ["a", "a", "b", "b"]), shared_hosts([3], ["a", "a", "b", "b"])
    ({'b'}, set())
    """
    sizes, counts = Counter(hosts), Counter(hosts[row] for row in slow)
    if len(sizes) < 2:
        return set()
    return {
        host
        for host, count in counts.items()
        if count >= HOST_RANKS and count >= HOST_SHARE * sizes[host]
    }


def _loss(work: Work, group: list[_Slow], hosts: tuple[str, ...], saved_ns: Matrix) -> Loss:
    parts = {one.part() for one in group}
    part = parts.pop() if len(parts) == 1 else None
    kind: Kind = "straggler"
    if part is not None:
        kind = kind_of_slow_stage(work.parts[part])
    elif not hosts and all(one.irregular for one in group):
        kind = "host hiccups"
    rows = np.array([one.row for one in group], np.int64)
    sinces = [one.since for one in group]
    since = None if None in sinces else min(one for one in sinces if one is not None)
    loss = Loss(kind, saved_ns, rows, part, since, hosts)
    loss.detail = _figures(work, rows, part, since or 0)
    if part is None:
        shares = np.median([one.parts_ns / one.level_ns.max() for one in group], axis=0)
        order = np.argsort(-shares)[:3]
        loss.detail["parts"] = tuple(
            (work.parts[at], round(float(shares[at]), 3)) for at in order if shares[at] >= 0.1
        )
    if any(one.is_partly_hidden() for one in group):
        loss.detail["at_least"] = True
    return loss


def _figures(work: Work, rows: Integers, part: int | None, first: int) -> dict[str, Any]:
    """What the text says of a slow part: of the ranks themselves and of the others, ns a step."""
    own = work.own.sum(2)
    if part is not None:
        own = work.own[..., part] + work.bases_of_parts()[:, part]
    own = own[:, first:]
    others = np.setdiff1d(np.arange(len(own)), rows)
    whole = work.own[rows, first:].sum(2) + work.in_meetings[rows, first:].sum(2)
    figures: dict[str, Any] = {
        "took_ns": float(own[rows].mean()),
        "step_ns": float(whole.mean()),
    }
    if len(others):
        figures["others_ns"] = float(np.median(own[others].mean(1)))
    if work.meets and len(others):
        waits = work.in_meetings[:, first:]
        by_meeting = (waits[others].mean(0) - waits[rows].min(0)).mean(0)
        figures["losers"] = float(len(others))
        figures["waits_in"] = work.meeting_names[int(by_meeting.argmax())]
    return figures


# --- a rank for which the others wait, and nobody knows why ---


def blame_without_stage(work: Work, left: Remaining) -> None:
    """Where nobody is named yet, the rank that waits least in some meeting while its own work does
    not say why; adds it to the losses. Of two ranks each may be slow in a meeting where the other
    waits; then it counts which came last to the meeting that both leave together. A rank that is
    late at times only, and not every so many steps, has hiccups."""
    if not work.meets or left.losses:
        return
    waits = work.in_meetings
    explained = np.maximum(over_others(work.own.sum(2)), 0)
    less = [-over_others(waits[..., at]) - explained for at in range(waits.shape[2])]
    unknown = np.maximum(np.stack(less, axis=2), 0)
    if len(work.rows) == 2:
        unknown[..., [not together for together in work.together]] = 0
    sizes = unknown.mean(1)
    row, inside = (int(at) for at in np.unravel_index(sizes.argmax(), sizes.shape))
    others = np.delete(sizes[:, inside], row)
    second = np.sort(waits[..., inside], axis=0)[1]
    saved = np.clip(second - waits[row, :, inside], 0, unknown[row, :, inside])
    if float(saved.mean()) < LEAST_SHARE * work.step_ns:
        return
    if sizes[row, inside] < STANDS_OUT * float(others.max()):
        return
    rows = np.array([row], np.int64)
    steps = np.flatnonzero(saved > LOW_SHARE * work.step_ns)
    at_times = float(np.median(saved)) < AT_TIMES * float(saved.mean())
    loss = Loss("host hiccups" if at_times and not is_regular(steps) else "straggler", saved, rows)
    loss.detail = _figures(work, rows, None, 0)
    loss.detail |= {"waits_in": work.meeting_names[inside], "at_least": True}
    if loss.kind == "host hiccups":
        loss.detail |= {"hiccups": len(steps), "hiccup_ns": float(saved.sum()) / len(steps)}
        loss.detail["slow_steps"] = steps
    else:
        loss.detail["lost_ns"] = float(saved.mean())
    left.losses.append(loss)


def is_regular(steps: Integers) -> bool:
    """Whether four steps or more are equally far apart: then the script itself does it.

    >>> is_regular(np.array([4, 9, 14, 19])), is_regular(np.array([4, 9, 15, 19]))
    (True, False)
    """
    gaps = np.diff(steps)
    return len(gaps) >= 3 and bool(gaps.min() == gaps.max())
