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

from .offset import DRIFT_PPM_MAX, ClockSyncError

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


def span(first: Reading, second: Reading) -> tuple[int, int]:
    """The bounds of two readings together."""
    return (
        min(first.least_ahead_ns, second.least_ahead_ns),
        max(first.most_ahead_ns, second.most_ahead_ns),
    )


def slacks(readings: Sequence[Reading], whose: str) -> list[int]:
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
