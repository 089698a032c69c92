"""The parts of a run as a strip above its curves."""

from __future__ import annotations

from dataclasses import dataclass

from ..timeline.text import part_line
from ..timeline.timeline import Timeline
from ..verdict.run_data import Integers

NOTHING_COLOUR, FOUND_COLOUR = "#009e73", "#d55e00"


@dataclass(frozen=True)
class PartBar:
    """begin, share: of the run's steps, 0 to 1. text: what held in it."""

    begin: float
    share: float
    colour: str
    text: str


def part_bars(timeline: Timeline | None, steps: Integers) -> list[PartBar]:
    """Of a run that changes, its parts in their order."""
    if timeline is None or len(timeline.parts) < 2:
        return []
    whole = int(steps[-1]) - int(steps[0]) + 1
    return [
        PartBar(
            (one.first_step - int(steps[0])) / whole,
            (one.last_step + 1 - one.first_step) / whole,
            NOTHING_COLOUR if one.finding is None and not one.slow else FOUND_COLOUR,
            part_line(one),
        )
        for one in timeline.parts
    ]
