"""The times of a rank while the rules of the ledger move them from row to row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..verdict.run_data import CLOSED, Process
from .rank_times import AttemptTimes, Gap, RankTimes
from .rows import (
    CHECKPOINT,
    CLOSING,
    COMMUNICATION,
    COMPILE,
    COMPUTE,
    COPIES,
    GC,
    HANG,
    IN_STEPS,
    IN_VAIN,
    INPUT,
    LAUNCH,
    NO_CORE,
    NOT_RECORDED,
    OTHER_CODE,
    PAUSE,
    PLACES,
    QUOTA,
    RESTART,
    ROWS,
    WARM_UP,
)
from .sweep import Integers

NS_IN_US = 1000
# From which the host's costs and the warm-up are taken: the others come before them.
_TAKEN_FROM = [PLACES[row] for row in (COMPUTE, COMMUNICATION, INPUT, COPIES, OTHER_CODE)]


class Sheet:
    """A rank's times while they are moved to their rows. of_attempts: step × row of each attempt;
    outside: by row."""

    def __init__(self, times: RankTimes) -> None:
        self._times = times
        self.of_attempts = {number: one.ns.copy() for number, one in times.attempts.items()}
        self._outside = np.zeros(len(ROWS), np.int64)

    def take_host_costs(self, counts: Mapping[int, int]) -> None:
        """Moves what the host took from the rows that are above their usual."""
        for number, one in self._times.attempts.items():
            ns = self.of_attempts[number]
            if one.counters and len(ns) > counts[number]:
                above = np.maximum(ns[:, _TAKEN_FROM] - _usual(ns, counts[number], _TAKEN_FROM), 0)
                for row, wanted in _host_costs(one).items():
                    _move(ns, above, wanted, PLACES[row])

    def take_warm_ups(self, counts: Mapping[int, int]) -> None:
        for number, ns in self.of_attempts.items():
            count = counts[number]
            if 0 < count < len(ns):
                first = ns[:count]
                above = np.maximum(first[:, _TAKEN_FROM] - _usual(ns, count, _TAKEN_FROM), 0)
                first[:, _TAKEN_FROM] -= above
                first[:, PLACES[WARM_UP]] += above.sum(1)

    def take_pauses(self, counts: Mapping[int, int]) -> None:
        for number, ns in self.of_attempts.items():
            if len(ns) > counts[number]:
                other = ns[:, PLACES[OTHER_CODE]]
                above = np.maximum(other - _usual(ns, counts[number], [PLACES[OTHER_CODE]]), 0)
                ns[:, PLACES[OTHER_CODE]] -= above
                ns[:, PLACES[PAUSE]] += above

    def take_in_vain(self, vain: Mapping[int, tuple[int, int]]) -> None:
        for number, (first, last) in vain.items():
            if number in self.of_attempts:
                steps = self._times.attempts[number].steps
                those = (steps >= first) & (steps <= last)
                ns = self.of_attempts[number]
                kept = np.zeros(len(ns), np.int64)
                if self._times.is_automatic:  # a checkpoint counts into the step after it
                    kept[steps == first] = ns[steps == first, PLACES[CHECKPOINT]]
                lost = ns[those].sum(1) - kept[those]
                ns[those] = 0
                ns[those, PLACES[IN_VAIN]] = lost
                ns[those, PLACES[CHECKPOINT]] = kept[those]

    def add_begin(self, begin_ns: int, before: str, hung_s: float) -> None:
        """What lies before, between and behind the steps of its attempts. before: the row of the
        time until its first process."""
        times = self._times
        for one in times.attempts.values():
            for row, ns in one.outside.items():
                self._outside[PLACES[row]] += ns
        first, *_ = times.attempts.values()
        began_ns = first.began_ns
        if began_ns is None and before == NOT_RECORDED:
            began_ns = first.set_up_ns
        self._split(begin_ns, times.first_ns, (before, began_ns), (LAUNCH, None))
        for gap in times.gaps:
            self._add_gap(gap, hung_s)

    def _add_gap(self, gap: Gap, hung_s: float) -> None:
        before, after = (self._times.attempts[one] for one in (gap.before, gap.after))
        seen_ns = after.dead_seen_ns
        self._split(
            gap.begin_ns, gap.end_ns,
            (CLOSING, before.ended_ns),
            (CLOSING if seen_ns is None else _row_of_dead(seen_ns - gap.begin_ns, hung_s), seen_ns),
            (RESTART, after.set_up_ns if after.began_ns is None else after.began_ns),
            (LAUNCH, None),
        )  # fmt: skip

    def add_end(self, end_ns: int, process: Process | None, hung_s: float, after: str) -> None:
        """after: the row of the time behind the end of its last process."""
        times = self._times
        *_, last = times.attempts.values()
        if process is None:
            self._split(times.last_ns, end_ns, (CLOSING, last.ended_ns), (NOT_RECORDED, None))
            return
        seen_ns = process.seen_ns - times.moved_ns
        is_closed = process.state == CLOSED
        row = CLOSING if is_closed else _row_of_dead(seen_ns - times.last_ns, hung_s)
        self._split(times.last_ns, end_ns, (row, seen_ns), (after, None))

    def _split(self, from_ns: int, to_ns: int, *until: tuple[str, int | None]) -> None:
        """Gives each row the time until a moment. One that is not known, or out of order, gives its
        row nothing; the last one has the rest."""
        for row, moment in until[:-1]:
            at_ns = from_ns if moment is None else min(max(moment, from_ns), to_ns)
            self._outside[PLACES[row]] += at_ns - from_ns
            from_ns = at_ns
        self._outside[PLACES[until[-1][0]]] += to_ns - from_ns

    def totals(self) -> Integers:
        found = self._outside.copy()
        for ns in self.of_attempts.values():
            found[:IN_STEPS] += ns.sum(0)
        return found


def _row_of_dead(still_ns: int, hung_s: float) -> str:
    """What a process did that made no progress before it was killed."""
    return HANG if still_ns >= hung_s * 1e9 else OTHER_CODE


def _usual(ns: Integers, count: int, rows: Sequence[int]) -> Integers:
    """Of each of these rows the median of the steps behind the warm-up, of which there are some."""
    later = np.sort(ns[count:, rows], axis=0)
    middle = len(later) // 2
    found: Integers = (later[(len(later) - 1) // 2] + later[middle]) // 2
    return found


def _host_costs(one: AttemptTimes) -> dict[str, Integers]:
    """ns of each step by row; a quota is a part of the delay."""
    zero = np.zeros(len(one.steps), np.int64)
    known = {name: values * NS_IN_US for name, values in one.counters.items()}
    delay = known.get("delay_us", zero)
    quota = np.minimum(known.get("quota_us", zero), delay)
    gc = sum((known.get(f"gc{n}_us", zero) for n in range(3)), zero)
    compiled = known.get("compile_us", zero)
    return {GC: gc, QUOTA: quota, NO_CORE: delay - quota, COMPILE: compiled}


def _move(ns: Integers, above: Integers, wanted: Integers, to: int) -> None:
    """Moves what is wanted of each step to a row, as far as others are above their usual: first
    those that are above it most in all. above: of the rows `_TAKEN_FROM`."""
    for at in np.argsort(-above.sum(0), kind="stable").tolist():
        taken = np.minimum(wanted, above[:, at])
        ns[:, _TAKEN_FROM[at]] -= taken
        above[:, at] -= taken
        ns[:, to] += taken
        wanted = wanted - taken
