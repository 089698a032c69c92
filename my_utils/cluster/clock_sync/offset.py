"""Computes the offset of two clocks from messages in both directions.

A request leaves at `sent_ns` (our clock) and arrives at `received_ns` (the other clock). The
response leaves there at `answered_ns` and arrives here at `returned_ns`. Nothing arrives before it
was sent. So the offset "its clock minus ours" is at most `received - sent` and at least `answered -
returned`, however the travel time is shared between the directions. Each exchange gives such an
interval, and the offset is in all of them. The clocks may drift between two exchanges, so older
intervals are widened. The stated error is half of the interval that is left. It is a bound and no
statistic.

This is the clock filter of NTP (RFC 5905, section 10) taken as an interval.

>>> exchanges = [Exchange(0, 1_000_300, 1_000_310, 600), Exchange(900, 1_001_000, 1_001_010, 1_200)]
>>> offset = estimate(exchanges)
>>> offset.offset_ns, round(offset.error_s * 1e9)
(999955, 145)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from ...core.public import public

# A daemon that corrects a clock by slewing it changes its rate by 500 ppm at most (ntpd and the
# kernel's adjtime); crystals are within 100.
DRIFT_PPM_MAX = 500


@public("my_utils.clockSyncUtils")
class ClockSyncError(RuntimeError):
    """Clocks could not be compared. The message says with whom, and why."""


class Exchange(NamedTuple):
    """Four moments in ns: the first and the last by our clock, the others by the other one.
    slack_ns: how far they may be off because a clock was set by so little that nobody noticed."""

    sent_ns: int
    received_ns: int
    answered_ns: int
    returned_ns: int
    slack_ns: int = 0

    @property
    def round_trip_ns(self) -> int:
        """The time that the messages were on their way."""
        return (self.returned_ns - self.sent_ns) - (self.answered_ns - self.received_ns)


@public("my_utils.clockSyncUtils")
class ClockOffset(float):
    """Seconds to add to this clock to get the other one's time: a float with its error and drift.

    error_s: the true offset was within `error_s` of this at `measured_ns`.
    drift_ppm: how much faster the other clock runs, in microseconds a second, by regression over
        the measurements so far; NaN after the first.
    round_trip_s: the shortest way there and back.
    offset_ns: the offset as an exact int. measured_ns: the moment, by this clock.

    >>> offset = ClockOffset(1_500_000_000, error_s=1e-5)
    >>> offset, offset.error_s
    (1.5, 1e-05)
    """

    __slots__ = ("drift_ppm", "error_s", "measured_ns", "offset_ns", "round_trip_s")

    offset_ns: int
    error_s: float
    drift_ppm: float
    round_trip_s: float
    measured_ns: int

    def __new__(
        cls,
        offset_ns: int,
        error_s: float,
        drift_ppm: float = math.nan,
        round_trip_s: float = 0.0,
        measured_ns: int = 0,
    ) -> ClockOffset:
        self = super().__new__(cls, offset_ns / 1e9)
        self.offset_ns = offset_ns
        self.error_s = error_s
        self.drift_ppm = drift_ppm
        self.round_trip_s = round_trip_s
        self.measured_ns = measured_ns
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return ClockOffset, self.fields()

    def fields(self) -> tuple[int, float, float, float, int]:
        """The arguments that make this object."""
        return (
            self.offset_ns, self.error_s, self.drift_ppm, self.round_trip_s, self.measured_ns
        )  # fmt: skip

    def error_at(self, moment_ns: int, drift_ppm_max: float = DRIFT_PPM_MAX) -> float:
        """The bound of the error in seconds at another moment of this clock."""
        return self.error_s + abs(moment_ns - self.measured_ns) * drift_ppm_max * 1e-15

    def exact_s(self) -> Fraction:
        """The offset without the rounding of a float."""
        return Fraction(self.offset_ns, 10**9)


def estimate(exchanges: Sequence[Exchange]) -> ClockOffset:
    """The offset at the time of the quickest exchange, estimated from all exchanges. `error_s` is
    at most half of its round trip and its slack. `ClockOffset.error_at` adds the possible drift
    since then.

    ClockSyncError when no offset fits them all: a clock was set meanwhile.
    """
    if not exchanges:
        raise ClockSyncError("no answer arrived")
    quickest = min(exchanges, key=lambda exchange: exchange.round_trip_ns)
    least, most = -math.inf, math.inf
    for sent, received, answered, returned, slack in exchanges:
        if returned < sent or answered < received:
            raise ClockSyncError("a clock was set back during the exchange")
        drift = math.ceil(abs(quickest.returned_ns - returned) * DRIFT_PPM_MAX * 1e-6)
        least = max(least, answered - returned - drift - slack)
        most = min(most, received - sent + drift + slack)
    if least > most:
        raise ClockSyncError("a clock was set during the exchange")
    width = int(most) - int(least)
    return ClockOffset(
        int(least) + width // 2,
        (width - width // 2) * 1e-9,
        round_trip_s=quickest.round_trip_ns * 1e-9,
        measured_ns=quickest.returned_ns,
    )


class ClockHistory:
    """The last measurements against one clock, and the drift that they show.

    kept: measurements that are remembered. Not thread-safe.
    """

    def __init__(self, kept: int = 64) -> None:
        self._offsets: deque[ClockOffset] = deque(maxlen=kept)

    def add(self, offset: ClockOffset) -> ClockOffset:
        """Takes a measurement; returns it with the drift by all so far."""
        if self._offsets:
            last = self._offsets[-1]
            explained_s = last.error_at(offset.measured_ns) + offset.error_s  # by drift alone
            if abs(offset.offset_ns - last.offset_ns) * 1e-9 > explained_s:
                self._offsets.clear()  # a clock was set, which says nothing about its rate
        self._offsets.append(offset)
        values = offset.fields()
        return ClockOffset(values[0], values[1], self.drift_ppm(), *values[3:])

    def drift_ppm(self) -> float:
        """The slope of the offsets over time, each weighted by 1/error²; NaN below two."""
        first, last = self._offsets[0], self._offsets[-1]
        if first.measured_ns == last.measured_ns:
            return math.nan
        import numpy as np

        slope, _ = np.polyfit(
            [(offset.measured_ns - first.measured_ns) * 1e-9 for offset in self._offsets],
            [(offset.offset_ns - first.offset_ns) * 1e-3 for offset in self._offsets],
            deg=1,
            w=[1 / max(offset.error_s, 1e-9) for offset in self._offsets],
        )
        return float(slope)
