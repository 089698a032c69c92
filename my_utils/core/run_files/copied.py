"""Folders that are copies of what hosts sent, and the moment at which each was as it is.

A heartbeat in such a folder is as old as it was then: its age tells of the run, and not of how
often a host sends.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

LIST = "sent.json"  # of what a host has sent; see sent_list.py

_moments: dict[str, float] = {}  # Unix time by the clock of the folder's host
_addresses: dict[str, str] = {}


def note_copy(folder: str, address: str, moment_s: float) -> None:
    """folder: as it is named when it is read. Thread-safe."""
    _moments[folder] = moment_s
    _addresses[folder] = address


def now_in(folder: str) -> float:
    """Unix time for files in a folder: now, or the moment of a copy. Thread-safe."""
    moment_s = _moments.get(folder)
    return time.time() if moment_s is None else moment_s


def as_named(paths: Sequence[str]) -> tuple[str, ...]:
    """The paths, with the address of each copy in its place, once."""
    return tuple(dict.fromkeys(_addresses.get(path, path) for path in paths))
