"""What a process says of its run and of itself, from its profile CSV.

Rows that are written once, such as the stages in which ranks meet, are at the beginning of the
file: each part repeats those of the parts before it. How the process ended, and the last values of
its counters, are at the end. So the cost does not depend on the length of a run.
"""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import dataclass, field

from ... import _core
from ..trusted_open import open_filled
from .row_metadata import metadata_pairs


@dataclass(frozen=True)
class Note:
    """A row about the run: name ("my_utils.sync") and its pairs, decoded; not to be changed. at_ns:
    Unix time, 0 where the reader does not need it."""

    attempt: int
    name: str
    pairs: dict[str, str]
    at_ns: int = 0


@dataclass
class RunMetadata:
    """is_there: whether there is such a file. attempt: of the last process, 0 where none is known.
    notes: of all processes, in the order of the file; from first_note on they are of the last one.
    last_values: of counters ("memory.rss_bytes")."""

    is_there: bool = False
    attempt: int = 0
    notes: list[Note] = field(default_factory=list)
    first_note: int = 0
    last_values: dict[str, float] = field(default_factory=dict)

    def named(self, *names: str) -> list[dict[str, str]]:
        """The pairs of the rows of these names."""
        return [note.pairs for note in self.notes if note.name in names]


def read_run_metadata(csv: str) -> RunMetadata:
    """Of the process that writes `csv`, as far as the file can be read. Recordings of older
    versions do not repeat rows: their first part is read, too. Thread-safe."""
    with contextlib.ExitStack() as stack:
        parts: list[_core._TracePart] = []
        for path in (f"{csv.removesuffix('.csv')}.part0001.csv", csv):
            with contextlib.suppress(OSError):
                file = open(path, "rb", buffering=0, opener=open_filled)  # noqa: SIM115
                descriptor = stack.enter_context(file).fileno()
                begins_with_rows = os.pread(descriptor, 1, 0).isdigit()
                parts.append((path, descriptor, -1, None, not begins_with_rows))
        found = _core.read_run_metadata(parts)
    notes = [parse_note(attempt, text) for attempt, _, _, text in found["notes"]]
    return RunMetadata(
        bool(parts), found["attempt"], notes, found["first_note"], found["last_values"]
    )


def parse_note(attempt: int, text: str, at_ns: int = 0) -> Note:
    """text: the row's name, a space, and its pairs as they are in the row."""
    return Note(attempt, *_name_and_pairs(text), at_ns)


@functools.lru_cache(maxsize=256)  # ranks say the same of their run
def _name_and_pairs(text: str) -> tuple[str, dict[str, str]]:
    name, _, rest = text.partition(" ")
    return name, metadata_pairs(rest)
