"""Rows that a process could not write: what rows `my_utils.dropped` say of them, and its heartbeat.

A row says it once writing works again. Until then, and where it never does, the heartbeat file
alone knows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from ..bounded_read import read_whole
from .row_metadata import whole_number
from .run_metadata import Note

LOST_ROW = "my_utils.dropped"
NOT_WRITTEN = "not_written"
BYTES_MAX = 1 << 20


class LostRows(NamedTuple):
    """first, last: the steps of the rows; None where they are of no step, or not known."""

    attempt: int
    rows: int
    first: int | None = None
    last: int | None = None


def lost_in_notes(notes: Iterable[Note]) -> list[LostRows]:
    """What rows `my_utils.dropped` say; not of records that were lost for another reason."""
    return [
        _lost_in(note)
        for note in notes
        if note.name == LOST_ROW and note.pairs.get("reason") == NOT_WRITTEN
    ]


def _lost_in(note: Note) -> LostRows:
    first, last = (whole_number(note.pairs.get(key)) for key in ("first_step", "last_step"))
    return LostRows(note.attempt, whole_number(note.pairs.get("count")) or 0, first, last)


def lost_in_heartbeat(path: str | os.PathLike[str], reported: Iterable[LostRows]) -> list[LostRows]:
    """What the heartbeat at `path` says beyond what rows have `reported`; nothing where there is no
    such file. OSError or ValueError where there is one that cannot be read."""
    try:
        data, _ = read_whole(path, BYTES_MAX, "a heartbeat")
        if not data or b'"lost_rows":0,' in data:  # a new one is empty at first
            return []
        from .heartbeat import read_heartbeat_file  # rarely needed, and slow to import

        beat, _ = read_heartbeat_file(path)
    except FileNotFoundError:
        return []
    known = sum(one.rows for one in reported if one.attempt == beat.attempt)
    missing = beat.lost_rows - known
    if missing <= 0:
        return []
    steps = [LostRows(beat.attempt, 0, *one) for one in beat.lost_steps]
    return [LostRows(beat.attempt, missing), *steps]
