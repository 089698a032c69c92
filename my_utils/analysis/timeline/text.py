"""A timeline for a terminal: its parts, a line each."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.ranges import ranks_text
from ...core.units import count_text, ms_text, percent_text, time_text
from ..verdict.text import headline
from .periods import Period
from .timeline import SAME_LEVEL, Part, Timeline

LINES_SHOWN = 4  # below a verdict
PERIOD_SHOWN = 0.02  # of the time, from which on it is shown below a verdict
RANGES_SHOWN = 4


def timeline_lines(timeline: Timeline, most: int | None = LINES_SHOWN) -> list[str]:
    """Nothing where a run has one part and nothing that comes back. most: lines, of which the last
    says how many are left out; None for all."""
    parts = timeline.parts if _is_parted(timeline) else []
    periods = [one for one in timeline.periods if most is None or one.share >= PERIOD_SHOWN]
    lines = [*map(part_line, parts), *map(_of_period, periods)]
    if most is None or len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"and {len(lines) - most + 1} more: my_utils why --timeline"]


def _is_parted(timeline: Timeline) -> bool:
    return len(timeline.parts) > 1 or any(one.drift is not None for one in timeline.parts)


def part_line(part: Part) -> str:
    """Its steps, what one takes, and what held."""
    steps = f"steps {part.first_step:,} to {part.last_step:,}"
    restart = ", after a restart" if part.restarted else ""
    return f"{steps:<26} {ms_text(part.step_ns):>9} a step  {'; '.join(_said(part))}{restart}"


def _said(part: Part) -> Iterator[str]:
    one = part.finding
    if one is not None:
        head = headline(one, part.verdict)
        yield f"{head if one.hosts else head.lower()} {percent_text(one.share, 0)}"
    if part.slow and (one is None or one.ranks != part.slow):
        takes = "takes" if len(part.slow) == 1 else "take"
        where = f" in {part.slow_in}" if part.slow_in else ""
        yield f"{ranks_text(part.slow, most=RANGES_SHOWN)} {takes} longer{where}"
    if part.drift is not None:
        yield f"{percent_text(part.drift, 0, sign=True)} little by little"
    elif abs(part.longer) >= SAME_LEVEL:
        where = f" in {part.stage}" if part.stage else ""
        yield f"{percent_text(part.longer, 0, sign=True)}{where}"
    if one is None and not part.slow and part.drift is None and abs(part.longer) < SAME_LEVEL:
        yield "nothing stands out"


def _of_period(one: Period) -> str:
    steps = f"each {count_text(one.every, 'step')}"
    who = ranks_text(one.ranks, most=RANGES_SHOWN) if one.ranks else "all ranks"
    verb = "takes" if len(one.ranks) == 1 else "take"
    nowhere = "in one stage or another" if one.varies else "in no stage"
    where = f"in {one.stage}" if one.stage else nowhere
    longer = f"{verb} {time_text(one.each_ns * 1e-6)} longer {where}"
    return f"{steps:<26} {who} {longer}: {percent_text(one.share)} of the time"
