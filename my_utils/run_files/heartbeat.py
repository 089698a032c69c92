"""The heartbeat file of a process, as csrc/engine/stages/heartbeat.c writes it."""

from __future__ import annotations

import msgspec

from ..common.checked_json import Damaged, Foreign, decoded

__all__ = ["Heartbeat", "HeartbeatLane", "read_heartbeat"]

HEARTBEAT_VERSION = 1


class HeartbeatStage(msgspec.Struct):
    """A stage that is open. `since`: Unix time in s."""

    name: str
    step: int
    since: float


class HeartbeatLane(msgspec.Struct):
    """One thread. `ended`: when its last stage ended, Unix time in s."""

    tid: int
    thread: str
    tag: str
    step: int
    open: list[HeartbeatStage]
    ended: float | None = None


class Heartbeat(msgspec.Struct):
    """Times are Unix times in s by the clock of the host; `time_offset` is not in them."""

    version: int
    rank: int
    world_size: int
    pid: int
    attempt: int
    dropped: int
    time: float
    lanes: list[HeartbeatLane]
    host: str = ""
    began: float | None = None
    time_offset: float = 0.0
    closed: bool = False


class _Version(msgspec.Struct):
    version: int


def read_heartbeat(data: bytes) -> Heartbeat:
    """The heartbeat, or ValueError with the reason."""
    try:
        version = decoded(data, _Version).version
        if version > HEARTBEAT_VERSION:
            raise ValueError(
                f"heartbeat version {version}; this program reads up to {HEARTBEAT_VERSION}"
            )
        return decoded(data, Heartbeat)
    except Damaged as error:
        raise ValueError(f"damaged or cut short: {error}") from error
    except Foreign as error:
        raise ValueError(f"not a heartbeat of my_utils: {error}") from error
