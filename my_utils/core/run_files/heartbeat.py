"""The heartbeat file of a process, as csrc/engine/stages/heartbeat.c writes it."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec

from ..bounded_read import read_whole
from ..checked_json import Damaged, Foreign, decoded
from .state import WORLD_SIZE_MAX

HEARTBEAT_VERSION = 1
HEARTBEAT_BYTES_MAX = 1 << 20
HEARTBEAT_TRIES = 5  # a file that is being written over is whole a moment later
FARTHEST_S = 9_000_000_000.0  # a time in ns has 64 bits

_Time = Annotated[float, msgspec.Meta(ge=-FARTHEST_S, le=FARTHEST_S)]
_Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class HeartbeatStage(msgspec.Struct):
    """A stage that is open. `since`: Unix time in s."""

    name: str
    step: _Int64
    since: _Time


class HeartbeatThread(msgspec.Struct):
    """One thread. `ended`: when its last stage ended, Unix time in s."""

    tid: _Count
    thread: str
    tag: str
    step: _Int64
    open: list[HeartbeatStage]
    ended: _Time | None = None


class Heartbeat(msgspec.Struct):
    """Times are Unix times in s by the clock of the host; `time_offset` is not in them.

    dropped: records that were lost. lost_rows: those of them that were rows already and could not
    be written; lost_steps: the first and the last step of them, where no row of the CSV says so.
    sequence, end: differ in a file that is being written over.
    """

    version: int
    rank: _Int32
    world_size: Annotated[int, msgspec.Meta(ge=0, le=WORLD_SIZE_MAX)]
    pid: _Int32
    attempt: _Count
    dropped: _Count
    time: _Time
    threads: list[HeartbeatThread] = msgspec.field(name="lanes")
    host: str = ""
    began: _Time | None = None
    time_offset: _Time = 0.0
    closed: bool = False
    lost_rows: _Count = 0
    lost_steps: list[tuple[_Count, _Count]] = msgspec.field(default_factory=list)
    sequence: _Count = 0
    end: _Count = 0


class _Version(msgspec.Struct):
    version: int


def read_heartbeat_file(path: str | os.PathLike[str]) -> tuple[Heartbeat, float]:
    """The heartbeat, and when the file was written by the file server's clock, in s. One that is
    being written over is read again. OSError, or ValueError with the reason."""
    tries = HEARTBEAT_TRIES
    while True:
        data, written_s = read_whole(path, HEARTBEAT_BYTES_MAX, "a heartbeat")
        try:
            return read_heartbeat(data), written_s
        except ValueError:
            tries -= 1
            if not tries or not data.startswith(b'{"sequence":'):
                raise


def read_heartbeat(data: bytes) -> Heartbeat:
    """The heartbeat, or ValueError with the reason."""
    try:
        version = decoded(data, _Version).version
        if version > HEARTBEAT_VERSION:
            raise ValueError(
                f"heartbeat version {version}; this program reads up to {HEARTBEAT_VERSION}"
            )
        found = decoded(data, Heartbeat)
        if found.sequence != found.end:
            raise Damaged("it is being written over")
        return found
    except Damaged as error:
        raise ValueError(f"damaged or cut short: {error}") from error
    except Foreign as error:
        raise ValueError(f"not a heartbeat of my_utils: {error}") from error


def is_whole(data: bytes) -> bool:
    """Whether it is a heartbeat, and none that is being written over."""
    try:
        read_heartbeat(data)
    except ValueError:
        return False
    return True
