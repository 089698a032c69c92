"""A ledger as plain data, for JSON."""

from __future__ import annotations

from typing import TypedDict

from .ledger import Ledger
from .rows import ROWS


class LedgerRowData(TypedDict):
    """A row of the ledger.

    row: its name.
    share: of the time of all ranks.
    ns: of each rank, in the order of `ranks`.
    """

    row: str
    share: float
    ns: list[int]


class CulpritData(TypedDict):
    """A rank that others wait for.

    wait_ns: what all of them together wait.
    row: the row in which it takes longer than they do, empty where none shows it.
    """

    rank: int
    wait_ns: int
    row: str


class AttemptData(TypedDict):
    """One start of the job's processes.

    first_step: null where it did no step.
    last_step: null where it did no step.
    in_vain: the first and the last of its steps that a later attempt did again, or null.
    ranks: so many were in it, of those that have files.
    """

    number: int
    first_step: int | None
    last_step: int | None
    in_vain: tuple[int, int] | None
    ranks: int


class LaunchPartData(TypedDict):
    """A part of the row `launch`.

    part: "imports", until torch was imported; "process group"; "rest".
    ns: of all ranks and attempts.
    """

    part: str
    ns: int


class LedgerData(TypedDict):
    """Where all time of a job went. The rows of a rank add up to its wall clock.

    begin: of the job, Unix time in seconds.
    goodput: the share of the steps that were kept.
    ranks: their numbers.
    wall_ns: of each rank, from the begin to the end of the job.
    rows: those in which a rank has any time.
    attempts: all starts of the job.
    culprits: the ranks that others wait for most, at most eight.
    launch: its parts, which add up to it; empty where they were not recorded.
    notes: sentences on what is not known.
    """

    begin: float
    goodput: float
    ranks: list[int]
    wall_ns: list[int]
    rows: list[LedgerRowData]
    attempts: list[AttemptData]
    culprits: list[CulpritData]
    launch: list[LaunchPartData]
    notes: list[str]


def figures_of(ledger: Ledger) -> dict[str, float]:
    """The shares of goodput and of each row that a rank has, by name: "goodput",
    "ledger/other_code"."""
    shares = {row: ledger.share(row) for row in ROWS}
    rows = {f"ledger/{row.replace(' ', '_')}": share for row, share in shares.items() if share}
    return {"goodput": ledger.goodput, **rows}


def as_data(ledger: Ledger) -> LedgerData:
    return {
        "begin": ledger.begin_ns / 1e9,
        "goodput": round(ledger.goodput, 6),
        "ranks": ledger.ranks,
        "wall_ns": ledger.wall_ns.tolist(),
        "rows": [
            {"row": row, "share": round(ledger.share(row), 6), "ns": ns.tolist()}
            for row, ns in zip(ROWS, ledger.ns.T, strict=True)
            if ns.any()
        ],
        "attempts": [
            {
                "number": one.number, "first_step": one.first_step, "last_step": one.last_step,
                "in_vain": one.in_vain, "ranks": one.ranks,
            }
            for one in ledger.attempts
        ],
        "culprits": [
            {"rank": one.rank, "wait_ns": one.wait_ns, "row": one.row} for one in ledger.culprits
        ],
        "launch": [{"part": part, "ns": ns} for part, ns in ledger.launch.items()],
        "notes": ledger.notes,
    }  # fmt: skip
