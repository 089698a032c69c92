"""The file of an offline run of Weights & Biases."""

from __future__ import annotations

import struct
from collections.abc import Iterator


def records(log: bytes) -> Iterator[bytes]:
    """The data of its records. It is a log as LevelDB's: blocks of 32 KiB with records of a
    checksum (4 bytes), a length (2), a kind (1: whole, 2, 3, 4: first, middle, last part) and the
    data, behind seven bytes."""
    at, parts = 7, b""
    while at + 7 <= len(log):
        room = 32768 - at % 32768
        _, length, kind = struct.unpack_from("<IHB", log, at)
        if room < 7 or kind == 0:
            at += room
            continue
        parts += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""
