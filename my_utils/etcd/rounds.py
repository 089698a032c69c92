"""The keys of a barrier in etcd, and the text of its errors.

Under "<prefix>/<world_size>/":

    barrier/state              the round that gathers, and how the last ones ended (JSON)
    barrier/call               the revision of this key is the number of a call
    members/<round>/<name>     a member, under a separate lease
    answers/<round>/<call>/<name>   a member that answered the call, under the same lease

The name is the rank, or one of its own for a process without a rank. The state is kept until nobody
has used the barrier for KEPT_S; all else goes with the leases.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ..common.checked_json import decoded
from ..common.public import public
from .client import prefix_end

KEPT_S = 7 * 24 * 3600
ROUNDS_KEPT = 8
NAMED_MAX = 256  # members listed in the state
SHOWN_MAX = 20  # members listed in a message


@public("my_utils.etcd_utils")
class EtcdBarrierError(Exception):
    """The barrier was not passed.

    prefix, world_size: as in the call. missing: the ranks that were not there, in order; empty
    where they are not known, at most 256. missing_count: how many were not there.
    """

    def __init__(
        self,
        message: str,
        prefix: str = "",
        world_size: int = 0,
        missing: tuple[int, ...] = (),
        missing_count: int = 0,
    ) -> None:
        super().__init__(message)
        self.prefix = prefix
        self.world_size = world_size
        self.missing = missing
        self.missing_count = missing_count

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.prefix, self.world_size, self.missing, self.missing_count)
        return type(self), (str(self), *fields)


@public("my_utils.etcd_utils")
class EtcdBarrierTimeout(EtcdBarrierError, TimeoutError):
    """Not all came in time, or etcd could not be reached until then."""


@public("my_utils.etcd_utils")
class EtcdBarrierBroken(EtcdBarrierTimeout):
    """A member is gone, so the round cannot complete."""


@dataclass(frozen=True)
class Keys:
    """The keys of one barrier."""

    prefix: str
    world_size: int

    @property
    def all(self) -> bytes:
        return f"{self.prefix}/".encode()

    @property
    def base(self) -> str:
        return f"{self.prefix}/{self.world_size}"

    @property
    def control(self) -> bytes:
        return f"{self.base}/barrier/".encode()

    @property
    def state(self) -> bytes:
        return self.control + b"state"

    @property
    def call(self) -> bytes:
        return self.control + b"call"

    def members(self, round: str) -> bytes:
        return f"{self.base}/members/{round}/".encode()

    def answers(self, round: str, call: int) -> bytes:
        return f"{self.base}/answers/{round}/{call}/".encode()

    @staticmethod
    def whole(prefix: bytes) -> dict[str, bytes]:
        """The range of all keys that start so, as arguments of a request."""
        return {"key": prefix, "range_end": prefix_end(prefix)}

    def other_sizes(self, keys: Iterable[bytes]) -> list[int]:
        """The numbers of ranks that others under the same prefix wait for."""
        sizes = set()
        for key in keys:
            size, _, rest = key[len(self.all) :].partition(b"/")
            if rest.startswith(b"members/") and size.isdigit():
                sizes.add(int(size))
        return sorted(sizes - {self.world_size})


class Holder(msgspec.Struct):
    """What a member's key holds: what no other process writes, and where the member runs."""

    id: str
    who: str

    @classmethod
    def of(cls, value: bytes) -> Holder:
        return decoded(value, cls)


class Opened(msgspec.Struct, tag_field="result", tag="open"):
    """The round ended because all came."""


class _GivenUp(msgspec.Struct):
    """The round ended without all.

    by, waited_s: who gave it up, after how long. missing: the first NAMED_MAX ranks that did not
    respond, as texts. silent, gone: who came and gives no sign of life, or has left. other_sizes:
    the numbers of ranks that others under the same prefix wait for.
    """

    by: str
    waited_s: float
    missing: list[str]
    missing_count: int
    silent: dict[str, str]
    gone: dict[str, str]
    other_sizes: list[int]


class TimedOut(_GivenUp, tag_field="result", tag="timeout"):
    """The time was over."""


class Broken(_GivenUp, tag_field="result", tag="gone"):
    """A member has left."""


Record = Opened | TimedOut | Broken


class _Content(msgspec.Struct):
    """The value of the key `state`."""

    era: str
    round: int
    past: dict[str, Record]


@dataclass(frozen=True)
class State:
    """What the key `state` holds: the round that gathers, and records of those before it.

    When the key is deleted, the count of rounds begins anew. The era identifies the count.
    """

    raw: bytes
    lease: int
    era: str
    number: int
    past: Mapping[str, Record]

    @staticmethod
    def first() -> bytes:
        return msgspec.json.encode(_Content(secrets.token_hex(4), 1, {}))

    @classmethod
    def of(cls, entry: Any) -> State:
        content = decoded(entry.value, _Content)
        return cls(entry.value, entry.lease, content.era, content.round, content.past)

    @property
    def round(self) -> str:
        return f"{self.era}.{self.number}"

    def record(self, round: str) -> Record | None:
        """How the round ended; None while it gathers, and if its record is not kept any more."""
        era, _, number = round.partition(".")
        return self.past.get(number) if era == self.era else None

    def after(self, record: Record) -> bytes:
        """The state once the round that gathers has ended so."""
        past = {**self.past, str(self.number): record}
        kept = dict(list(past.items())[-ROUNDS_KEPT:])
        return msgspec.json.encode(_Content(self.era, self.number + 1, kept))


# --- how a round ends without all ---


def broken(
    kind: type[TimedOut | Broken],
    *,
    by: str,
    waited_s: float,
    world_size: int,
    present: Mapping[str, str],
    answered: Iterable[str],
    gone: Mapping[str, str],
    other_sizes: list[int],
) -> TimedOut | Broken:
    """The record of a round that is given up.

    present: who the members are. answered: those that answered the last call. gone: those
    whose lease ended meanwhile.
    """
    alive = set(answered)
    silent = {name: who for name, who in present.items() if name not in alive}
    ranked = all(name.isdigit() for name in present)
    missing = [str(rank) for rank in range(world_size) if str(rank) not in alive]
    return kind(
        by=by,
        waited_s=round(waited_s, 3),
        missing=missing[:NAMED_MAX] if ranked else [],
        missing_count=max(0, world_size - len(alive)),
        silent=dict(list(silent.items())[:SHOWN_MAX]),
        gone=dict(list(gone.items())[:SHOWN_MAX]),
        other_sizes=other_sizes,
    )


def error_of(record: TimedOut | Broken, prefix: str, world_size: int) -> EtcdBarrierTimeout:
    """What the participants of such a round raise."""
    ranks = tuple(int(rank) for rank in record.missing)
    count = record.missing_count
    text = f"etcd_barrier {prefix!r}: {count} of {world_size} missing{_ranks(ranks, count)}"
    text += f" ({record.by} waited {record.waited_s:g} s)"
    for name, who in record.gone.items():
        text += f"; {_shown(name)} ({who}) joined, and died or left"
    for name, who in record.silent.items():
        text += f"; {_shown(name)} ({who}) joined, but gives no sign of life"
    if record.other_sizes:
        sizes = ", ".join(map(str, record.other_sizes))
        text += f"; others under this prefix wait for a world_size of {sizes}"
    kind = EtcdBarrierBroken if isinstance(record, Broken) else EtcdBarrierTimeout
    return kind(text, prefix, world_size, ranks, count)


def _ranks(ranks: tuple[int, ...], count: int) -> str:
    if not ranks:
        return ""
    shown = ", ".join(map(str, ranks[:SHOWN_MAX]))
    more = f" and {count - SHOWN_MAX} more" if count > SHOWN_MAX else ""
    return f": rank{'s' if count > 1 else ''} {shown}{more}"


def _shown(name: str) -> str:
    return f"rank {name}" if name.isdigit() else name
