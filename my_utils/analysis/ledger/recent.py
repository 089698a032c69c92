"""What became of the newest minutes of a run that goes on, out of its newest rows alone.

The rows are those of the ledger, of the steps of each rank that end in these minutes. What is known
only in the whole run is left out: warm-up, and steps that a restart did again. The time between two
attempts counts as "restart".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...core.units import percent_text
from .meetings import split_waits
from .rank_times import RankTimes, attempt_numbers
from .rows import GOODPUT, IN_STEPS, PLACES, RESTART, ROWS
from .sheet import Sheet
from .sweep import Integers

LISTED = 0.005  # what is less is not shown
LISTED_MAX = 4  # rows


@dataclass(frozen=True)
class Recent:
    """seconds: the mean of the ranks, less than was asked for where the rows do not go so far back.
    shares: of all ranks' time, by row of the ledger; they add up to 1."""

    seconds: float
    shares: dict[str, float]

    @property
    def goodput(self) -> float:
        return sum(self.shares.get(row, 0.0) for row in GOODPUT)

    def line(self) -> str:
        """
        >>> Recent(300.2, {"compute": 0.9, "waiting": 0.06, "restart": 0.04}).line()
        'last 5 min: goodput 96 %: compute 90 %, waiting 6 %, restart 4 %'
        """
        many = self.seconds >= 60
        span = f"{self.seconds / 60:.0f} min" if many else f"{self.seconds:.0f} s"
        order = sorted(self.shares, key=lambda row: -self.shares[row])
        listed = [row for row in order if self.shares[row] >= LISTED][:LISTED_MAX]
        rows = ", ".join(f"{row} {percent_text(self.shares[row], 0)}" for row in listed)
        return f"last {span}: goodput {percent_text(self.goodput, 0)}: {rows}"


def make_recent(
    ranks: Sequence[RankTimes],
    seconds: float,
    inferred: Iterable[tuple[str, Collection[int]]] = (),
) -> Recent | None:
    """None where no rank has a step. inferred: stages in which ranks meet, and these, where that
    was not recorded."""
    if not ranks:
        return None
    sheets = [Sheet(one) for one in ranks]
    split_waits(ranks, [sheet.of_attempts for sheet in sheets], inferred)
    no_warm_up = dict.fromkeys(attempt_numbers(ranks), 0)
    for sheet in sheets:
        sheet.take_host_costs(no_warm_up)
        sheet.take_pauses(no_warm_up)
    sums = sum(
        (
            _newest(one, sheet, round(seconds * 1e9))
            for one, sheet in zip(ranks, sheets, strict=True)
        ),
        np.zeros(len(ROWS), np.int64),
    )
    whole = int(sums.sum())
    if whole <= 0:
        return None
    shares = {row: ns / whole for row, ns in zip(ROWS, sums.tolist(), strict=True) if ns}
    return Recent(whole / len(ranks) / 1e9, shares)


def _newest(times: RankTimes, sheet: Sheet, most_ns: int) -> Integers:
    """By row, back from the last step until so much time is found."""
    found = np.zeros(len(ROWS), np.int64)
    gaps = {gap.after: gap.end_ns - gap.begin_ns for gap in times.gaps}
    for number in reversed(sheet.of_attempts):
        steps = sheet.of_attempts[number][::-1]
        before = int(found.sum()) + np.cumsum(steps.sum(1)) - steps.sum(1)
        kept = before < most_ns
        found[:IN_STEPS] += steps[kept].sum(0)
        if not kept.all() or found.sum() >= most_ns:
            break
        found[PLACES[RESTART]] += min(gaps.get(number, 0), most_ns - int(found.sum()))
    return found
