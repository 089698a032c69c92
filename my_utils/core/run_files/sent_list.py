"""What a host has sent of a run to a place that all hosts reach: one list a host, beside the files.

    ADDRESS/HOST-ID/sent.json                       the list, written after what it names
    ADDRESS/HOST-ID/rank_0.heartbeat.json           a small file, whole
    ADDRESS/HOST-ID/pieces/profile_rank_0.csv.3.0   bytes 0 to 4 MiB of one that only grows
    ADDRESS/HOST-ID/pieces/profile_rank_0.csv.3.1   its next bytes

A piece keeps its name where its file gets another one, as a full CSV does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import msgspec

from ..checked_json import Damaged, Foreign, decoded
from .copied import LIST as LIST
from .files import FLIGHTS_FOLDER, REPLICAS_FOLDER

LIST_BYTES_MAX = 8 << 20
VERSION = 1
PIECE_BYTES = 4 << 20
FILE_BYTES_MAX = 1 << 40  # more than any part of a CSV
EVERY_S = 60.0  # between two sendings

_RANK = r"(-?\d{1,7})(?:\.w\d{1,7})?"
# Files that only grow, and get another name once they are full.
GROWING = re.compile(
    rf"profile_rank_{_RANK}(?:\.part\d{{1,9}})?\.csv|rank_{_RANK}\.\d{{1,9}}(?:\.old)?\.windows"
)
JOURNAL = re.compile(rf"rank_{_RANK}\.\d{{1,20}}\.\d{{1,20}}(?:\.1)?\.journal")
WHOLE = re.compile(
    rf"run\.json|rank_{_RANK}\.heartbeat\.json"
    rf"|{FLIGHTS_FOLDER}/[A-Za-z0-9_-]{{1,100}}_(\d{{1,7}})"
    rf"|{REPLICAS_FOLDER}/rank_(\d{{1,7}})\.\d{{1,9}}(?:\.\d{{1,9}})?\.(?:json|sums)"
)
_PIECES = re.compile(r"[A-Za-z0-9_.-]{1,200}")

_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Time = Annotated[float, msgspec.Meta(ge=-9e9, le=9e9)]


class SentFile(msgspec.Struct, omit_defaults=True):
    """name: as in the run's folder. size: bytes that were sent. written_ns: Unix time of its
    last write, by the clock of its file system. pieces: the name of its pieces before the number;
    "" for a whole file."""

    name: str
    size: Annotated[int, msgspec.Meta(ge=0, le=FILE_BYTES_MAX)]
    written_ns: _Int64
    pieces: str = ""

    def objects(self) -> Iterator[tuple[str, int]]:
        """Below the folder of its host, in order, with the bytes of each that count."""
        if not self.pieces:
            yield self.name, self.size
            return
        for number, begin in enumerate(range(0, self.size, PIECE_BYTES)):
            yield piece_name(self.pieces, number), min(self.size - begin, PIECE_BYTES)


class Sent(msgspec.Struct):
    """run_id: "" where the script has chosen its folder. began, sent: Unix times by the host's
    clock; the first is that of the process that sends. missing: files of which something was not
    sent yet. over: the command has ended, and nothing comes after this."""

    version: int
    host: str
    run_id: str
    began: _Time
    sent: _Time
    over: bool
    missing: Annotated[int, msgspec.Meta(ge=0)]
    files: list[SentFile]


def piece_name(pieces: str, number: int) -> str:
    return f"pieces/{pieces}.{number}"


def rank_of(name: str) -> int | None:
    """The rank whose file it is; None for one of the whole run. ValueError for what is not sent.

    >>> rank_of("profile_rank_3.part0001.csv"), rank_of("run.json")
    (3, None)
    >>> rank_of("replicas/rank_3.1.json"), rank_of("replicas/rank_3.1.2.sums")
    (3, 3)
    >>> rank_of("../profile_rank_3.csv")
    Traceback (most recent call last):
    ValueError: no file of a run: '../profile_rank_3.csv'
    """
    for kind in (GROWING, JOURNAL, WHOLE):
        if match := kind.fullmatch(name):
            number = next(filter(None, match.groups()), None)
            return None if number is None else int(number)
    raise ValueError(f"no file of a run: {name[:100]!r}")


def read_list(data: bytes) -> Sent:
    """ValueError with the reason for anything else than a list, such as one with names that lead
    out of its folder."""
    try:
        found = decoded(data, Sent)
    except Damaged as error:
        raise ValueError(f"damaged or cut short: {error}") from error
    except Foreign as error:
        raise ValueError(f"no list of sent files: {error}") from error
    if found.version > VERSION:
        raise ValueError(f"version {found.version}; this program reads up to {VERSION}")
    names = set()
    for one in found.files:
        rank_of(one.name)
        if bool(GROWING.fullmatch(one.name)) != bool(one.pieces):
            raise ValueError(f"{one.name} should be in pieces, or whole")
        if one.pieces and not _PIECES.fullmatch(one.pieces):
            raise ValueError(f"no name of pieces: {one.pieces[:100]!r}")
        names.add(one.name)
    if len(names) < len(found.files):
        raise ValueError("a file is in it twice")
    return found
