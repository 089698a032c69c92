"""Detects whether a clock was set while it was read, with the host's monotonic clock.

A step of 3 ms in an exchange whose messages take longer fits into every interval that the exchange
gives. The monotonic clock is never set. So each reading is between two readings of that clock,
which bounds "this clock minus the monotonic one". That difference may drift, and is otherwise the
same for all readings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .offset import DRIFT_PPM_MAX, ClockSyncError, Exchange

Clock = Callable[[], int]


class Reading(NamedTuple):
    """A moment of a clock, and the bounds of what it is ahead of the monotonic clock; ns."""

    at_ns: int
    least_ahead_ns: int
    most_ahead_ns: int


def read(clock: Clock) -> Reading:
    """The clock, between two readings of the monotonic one."""
    before_ns = time.monotonic_ns()
    at_ns = clock()
    return Reading(at_ns, at_ns - time.monotonic_ns(), at_ns - before_ns)


def make_answer(number: int, received: Reading, clock: Clock) -> list[int]:
    """What one side tells the other about an exchange: its number, the moments at which the request
    was received and answered, and the bounds of what the clock was ahead of the monotonic one."""
    answered = read(clock)
    return [
        number,
        received.at_ns,
        answered.at_ns,
        min(received.least_ahead_ns, answered.least_ahead_ns),
        max(received.most_ahead_ns, answered.most_ahead_ns),
    ]


def exchange(rounds: int, clock: Clock, ask: Callable[[int], Sequence[int]]) -> list[Exchange]:
    """Exchanges whose slack covers what their clocks may have been set by.

    ask: sends the number of an exchange, and returns the other side's `make_answer`.

    ClockSyncError when a clock was set by more than its readings hide.
    """
    own, theirs, moments = [], [], []
    for number in range(rounds):
        own.append(read(clock))
        echo, received, answered, least, most = ask(number)
        own.append(read(clock))
        if echo != number:
            raise ClockSyncError("the other side answered another exchange")
        theirs.append(Reading(answered, least, most))
        moments.append((own[-2].at_ns, received, answered, own[-1].at_ns))
    here = _slacks(own, "this one")
    there = _slacks(theirs, "the other one")
    return [
        Exchange(*moments[at], max(here[2 * at : 2 * at + 2]) + there[at]) for at in range(rounds)
    ]


def _slacks(readings: Sequence[Reading], whose: str) -> list[int]:
    """How far each reading may be off by drift, or by a step that its bounds hide; ns.

    ClockSyncError when the bounds have nothing in common: the clock was set.
    """
    began = readings[0].at_ns - readings[0].least_ahead_ns
    drifts = [
        abs(one.at_ns - one.least_ahead_ns - began) * DRIFT_PPM_MAX // 10**6 for one in readings
    ]
    pairs = list(zip(readings, drifts, strict=True))
    least = max(one.least_ahead_ns - drift for one, drift in pairs)
    most = min(one.most_ahead_ns + drift for one, drift in pairs)
    if least > most:
        raise ClockSyncError(f"a clock was set during the exchange: {whose}")
    return [max(one.most_ahead_ns - least, most - one.least_ahead_ns) for one in readings]
