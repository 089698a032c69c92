"""Moments of a run as people write them: a step, a time of day or of a date, or how long before
its end.

>>> parse_moment("15,000").step, parse_moment("1h30m").ago_s
(15000, 5400.0)
>>> moment = parse_moment("14:05")
>>> from datetime import datetime
>>> begin, end = datetime(2026, 11, 23, 9, 0), datetime(2026, 11, 24, 20, 0)
>>> str(datetime.fromtimestamp(moment.unix_s(begin.timestamp(), end.timestamp())))
'2026-11-24 14:05:00'
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime, timedelta

ALLOWED = (
    "a step such as 15000, a time such as 14:05, Tue 24 Nov 14:05 or 2026-11-24T14:05, or how long "
    "before the end of the run: 3h, 20m, 2d"
)
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MONTHS = (
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
)  # fmt: skip
UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
STEP_DIGITS_MAX = 18

_STEP = re.compile(r"\d{1,3}(?:,\d{3})+|\d+", re.ASCII)
_AGO = re.compile(r"(?:\d{1,6}(?:\.\d{1,3})?[dhms])+", re.ASCII)
_LENGTH = re.compile(r"([\d.]+)([dhms])", re.ASCII)
_TIME = re.compile(
    r"(?:(?P<weekday>[a-z]{3})[a-z]*,? +)?"
    r"(?:(?P<day>\d{1,2}) +(?P<month>[a-z]{3})[a-z]*,? +(?:(?P<year>\d{4}),? +)?)?"
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True)
class Moment:
    """One of: step, a number; ago_s, seconds before the end of the run; at, a date with its time;
    of_day, a time of any day that fits `weekday`, 0 for Monday, `day`, `month` and `year`, each
    None for any. text: as it was written. Times without an offset are those of this machine."""

    text: str
    step: int | None = None
    ago_s: float | None = None
    at: datetime | None = None
    of_day: tuple[int, int, int] | None = None
    weekday: int | None = None
    day: int | None = None
    month: int | None = None
    year: int | None = None

    def unix_s(self, begin_s: float, end_s: float) -> float | None:
        """When it was in a run that lasted from `begin_s` to `end_s`, Unix time: of a time of day
        the last in the run. None where the run has no such time, and for a step. A moment that is
        before the run, or after it, is returned as it is; one in the second of its begin, which
        `moment_text` says, as its begin. Of a time that comes twice, where a clock is set back in
        autumn, the last in the run; a time that is left out in spring is none."""
        if self.ago_s is not None:
            return end_s - self.ago_s
        if self.at is not None:
            return _from_begin(self.at.timestamp(), begin_s)
        if self.of_day is None:
            return None
        hour, minute, second = self.of_day
        date = datetime.fromtimestamp(end_s)
        first = datetime.fromtimestamp(begin_s).date()
        while date.date() >= first:
            found = date.replace(hour=hour, minute=minute, second=second, microsecond=0)
            for at_s in (found.replace(fold=fold).timestamp() for fold in (1, 0)):
                is_real = datetime.fromtimestamp(at_s) == found
                at_s = _from_begin(at_s, begin_s)
                if is_real and self._fits(found) and begin_s <= at_s <= end_s:
                    return at_s
            date -= timedelta(days=1)
        return None

    def _fits(self, date: datetime) -> bool:
        wanted = (self.weekday, self.day, self.month, self.year)
        those = (date.weekday(), date.day, date.month, date.year)
        return all(want in (None, own) for want, own in zip(wanted, those, strict=True))


def _from_begin(at_s: float, begin_s: float) -> float:
    return begin_s if math.floor(begin_s) <= at_s < begin_s else at_s


def parse_moment(text: str) -> Moment:
    """ValueError says what is allowed.

    >>> parse_moment("noon")
    Traceback (most recent call last):
        ...
    ValueError: must be a step such as 15000, a time such as 14:05, Tue 24 Nov 14:05 or \
2026-11-24T14:05, or how long before the end of the run: 3h, 20m, 2d; not 'noon'
    """
    given = text.strip()
    found = _step(given) or _ago(given) or _time_of_day(given) or _date(given)
    if found is None:
        raise ValueError(f"must be {ALLOWED}; not {text!r:.200}")
    return found


def _step(text: str) -> Moment | None:
    digits = text.replace(",", "")
    if not _STEP.fullmatch(text) or len(digits) > STEP_DIGITS_MAX:
        return None
    return Moment(text, step=int(digits))


def _ago(text: str) -> Moment | None:
    if not _AGO.fullmatch(text):
        return None
    return Moment(text, ago_s=sum(float(n) * UNITS[unit] for n, unit in _LENGTH.findall(text)))


def _time_of_day(text: str) -> Moment | None:
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    hour, minute, second = (int(match[name] or 0) for name in ("hour", "minute", "second"))
    weekday, month = (match[name] and match[name].lower() for name in ("weekday", "month"))
    if hour > 23 or minute > 59 or second > 59:
        return None
    if (weekday and weekday not in DAYS) or (month and month not in MONTHS):
        return None
    return Moment(
        text, of_day=(hour, minute, second),
        weekday=DAYS.index(weekday) if weekday else None,
        day=int(match["day"]) if match["day"] else None,
        month=MONTHS.index(month) + 1 if month else None,
        year=int(match["year"]) if match["year"] else None,
    )  # fmt: skip


def _date(text: str) -> Moment | None:
    try:
        at = datetime.fromisoformat(text)
        at.timestamp()  # which no year outside of the system's has
    except (ValueError, OverflowError, OSError):
        return None
    return Moment(text, at=at)


def moment_text(unix_s: float) -> str:
    """A moment as it may be given, with seconds, by the clock of this machine.

    >>> moment_text(datetime(2026, 11, 24, 14, 5).timestamp())
    'Tue 24 Nov 2026 14:05:00'
    """
    date = datetime.fromtimestamp(unix_s)
    weekday, month = DAYS[date.weekday()].capitalize(), MONTHS[date.month - 1].capitalize()
    return f"{weekday} {date.day} {month} {date.year} {date:%H:%M:%S}"
