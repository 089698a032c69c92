"""Quantities as text: times, sizes, shares, counts."""

from __future__ import annotations

import math

_SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def time_text(ms: float, digits: int = 3) -> str:
    """A time with so many significant digits, in s, ms or µs; "" for NaN and infinity.

    >>> [time_text(ms) for ms in (92.345, 41_000.0, 1_234_567.0, 0.0123, 0.0, float("nan"))]
    ['92.3 ms', '41 s', '1,230 s', '12.3 µs', '0 µs', '']
    """
    if not math.isfinite(ms):
        return ""
    for factor, unit in ((1e-3, "s"), (1.0, "ms")):
        if abs(ms) * factor >= 1 - 0.5 * 10**-digits:
            return f"{figure_text(ms * factor, digits)} {unit}"
    return f"{figure_text(ms * 1e3, digits)} µs"


def figure_text(value: float, digits: int) -> str:
    """So many significant digits, without an exponent and without zeros at the end.

    >>> figure_text(10_247.3, 4), figure_text(366.97, 4), figure_text(0.5, 4)
    ('10,250', '367', '0.5')
    """
    return f"{float(f'{value:.{digits}g}'):,.15g}"


def ms_text(ns: float) -> str:
    """A time of ns in ms, so that those in one text compare at a glance.

    >>> ms_text(92_340_000.0), ms_text(41_200.0)
    ('92.3 ms', '0.041 ms')
    """
    return f"{ns * 1e-6:.1f} ms" if ns >= 1e5 else f"{ns * 1e-6:.3f} ms"


def age_text(seconds: float) -> str:
    """How long something has lasted, from µs to days.

    >>> [age_text(seconds) for seconds in (1e-6, 0.0123, 3.21, 75, 119.7, 7e4, 1e6)]
    ['1.0 µs', '12.3 ms', '3.2 s', '1 min 15 s', '2 min 0 s', '19 h 26 min', '11 days']
    """
    if seconds < 0.001:
        return f"{seconds * 1e6:.1f} µs"
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} days"


def bytes_text(count: float) -> str:
    """
    >>> bytes_text(3 * 2**30), bytes_text(12)
    ('3.00 GiB', '12 B')
    """
    for size, unit in _SIZES:
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"


def percent_text(share: float, digits: int = 1, *, sign: bool = False) -> str:
    """
    >>> percent_text(0.1234), percent_text(0.0413, sign=True), percent_text(-0.002, 2, sign=True)
    ('12.3 %', '+4.1 %', '−0.20 %')
    """
    return f"{points_text(share, digits) if sign else f'{100 * share:.{digits}f}'} %"


def points_text(share: float, digits: int) -> str:
    """A share in percent with its sign, and no unit.

    >>> points_text(-0.002, 1), points_text(-0.0002, 1)
    ('−0.2', '+0.0')
    """
    return f"{round(100 * share, digits) + 0.0:+.{digits}f}".replace("-", "−")


def count_text(number: int, noun: str) -> str:
    """
    >>> count_text(1, "rank"), count_text(1024, "step")
    ('1 rank', '1,024 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
