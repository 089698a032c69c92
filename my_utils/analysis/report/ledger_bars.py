"""The picture of a ledger: of each rank a bar with all its time, by rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..ledger.ledger import Ledger
from ..ledger.rows import (
    CHECKPOINT,
    CLOSING,
    COMMUNICATION,
    COMPILE,
    COMPUTE,
    COPIES,
    EVALUATION,
    EXIT,
    GC,
    GOODPUT,
    HANG,
    IN_VAIN,
    INPUT,
    LAUNCH,
    LAUNCHER,
    NO_CORE,
    NOT_RECORDED,
    NOT_TRAINING,
    OTHER_CODE,
    PAUSE,
    PLACES,
    QUOTA,
    RESTART,
    RESTORE,
    ROWS,
    WAITING,
    WARM_UP,
)
from ..pages.tables import Cell, Column, Table, as_table, percent, time_of
from .bars import Part, least_and_most

LEAST_SHARE = 0.0005  # of a bar: what is less is not seen

# Where a row is a stage of its own, the stage's colour; each row has another one.
_COLOURS = {
    COMPUTE: "#009e73", COMMUNICATION: "#cc79a7", WAITING: "#b5bac2", INPUT: "#d55e00",
    COPIES: "#f0e442", EVALUATION: "#8c6bb1", CHECKPOINT: "#e69f00", GC: "#a6761d",
    QUOTA: "#6b4c2a", NO_CORE: "#b09c3f", PAUSE: "#5f6670", OTHER_CODE: "#7fc8a9",
    COMPILE: "#c2923a", WARM_UP: "#d9bf77", IN_VAIN: "#8f1d14", LAUNCHER: "#a9d3ef",
    LAUNCH: "#56b4e9", RESTORE: "#0072b2", HANG: "#24292f", RESTART: "#f08a6b",
    CLOSING: "#c5b3e6", EXIT: "#9a93c9", NOT_RECORDED: "#8a8f98", NOT_TRAINING: "#e8c3d9",
}  # fmt: skip


@dataclass(frozen=True)
class LedgerPart(Part):
    """A row of a rank's bar, or of the legend."""

    @property
    def colour(self) -> str:
        return _COLOURS[self.name]


@dataclass(frozen=True)
class LedgerBar:
    """All time of a rank. goodput: its share."""

    rank: int
    goodput: float
    parts: list[LedgerPart]


def ledger_bars(ledger: Ledger) -> list[LedgerBar]:
    """The ranks with the least goodput first; of more than BARS_MAX, those with the least and the
    most."""
    longest = max(float(ledger.wall_ns.max()), 1.0)
    goodput = ledger.ns[:, [PLACES[row] for row in GOODPUT]].sum(1)
    return [
        LedgerBar(
            ledger.ranks[at],
            float(goodput[at]) / max(float(ledger.wall_ns[at]), 1.0),
            _parts(ledger.ns[at].astype(float), longest),
        )
        for at in least_and_most(goodput)
    ]


def ledger_legend(ledger: Ledger) -> list[LedgerPart]:
    """The rows that any rank has, with their mean over the ranks and their share."""
    means = ledger.ns.mean(0)
    return [
        LedgerPart(row, float(ns) * 1e-6, 0.0, ledger.share(row))
        for row, ns in zip(ROWS, means, strict=True)
        if ns > 0
    ]


def _parts(ns: npt.NDArray[np.float64], longest: float) -> list[LedgerPart]:
    begins = np.cumsum(ns) - ns
    return [
        LedgerPart(row, float(took) * 1e-6, float(begin) / longest, float(took) / longest)
        for row, took, begin in zip(ROWS, ns, begins, strict=True)
        if took / longest >= LEAST_SHARE
    ]


def ledger_table(ledger: Ledger) -> Table:
    """Of each row the share of all time, and the mean, the least and the most of the ranks."""
    columns = [
        Column("row", left=True), *map(Column, ("share", "mean", "least", "most")),
        Column("is", left=True),
    ]  # fmt: skip
    rows = [
        [
            Cell(row, left=True), percent(ledger.share(row)),
            *(time_of(float(one) * 1e-6) for one in (ns.mean(), ns.min(), ns.max())),
            Cell(ROWS[row], left=True),
        ]
        for row, ns in zip(ROWS, ledger.ns.T, strict=True)
        if ns.any()
    ]  # fmt: skip
    return as_table("ledger", "Where all time of the job went", columns, rows)
