"""The keys of a barrier in etcd, and the text of its errors.

Under "<prefix>/<world_size>/":

    barrier/state              the round that gathers, and how the last ones ended (JSON)
    barrier/call               the revision of this key is the number of a call
    members/<round>/<name>     a member, under a separate lease
    answers/<round>/<call>/<name>   a member that answered the call, under the same lease

The name is the rank, or a unique one for a process without a rank. The state is kept until nobody
has used the barrier for KEPT_S; all else goes with the leases.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import msgspec

from ...core.checked_json import decoded
from ...core.public import public

KEPT_S = 7 * 24 * 3600
ROUNDS_KEPT = 8
NAMED_MAX = 256  # ranks listed in the state
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
    """Not all joined in time, or etcd could not be reached until then."""


@public("my_utils.etcd_utils")
class EtcdBarrierBroken(EtcdBarrierTimeout):
    """A member is gone, so the round cannot complete."""


ERRORS = {"error": EtcdBarrierError, "timeout": EtcdBarrierTimeout, "gone": EtcdBarrierBroken}


class Outcome(msgspec.Struct, omit_defaults=True):
    """How a round ended, the same for all participants. text, ranks, missing_count: of the error,
    if there is one; the ranks are its `missing`."""

    result: Literal["open", "error", "timeout", "gone"]
    text: str = ""
    ranks: tuple[int, ...] = ()
    missing_count: int = 0

    @classmethod
    def of(cls, error: EtcdBarrierError) -> Outcome:
        (result,) = [name for name, kind in ERRORS.items() if kind is type(error)]
        return cls(result, str(error), error.missing, error.missing_count)  # type: ignore[arg-type]

    def raise_error(self, keys: Keys) -> None:
        """Raises the error; does nothing if all have come."""
        if self.result != "open":
            raise ERRORS[self.result](
                self.text, keys.prefix, keys.world_size, self.ranks, self.missing_count
            )


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
        """The range of all keys that start so, as arguments of a request. prefix: ends with a
        slash, behind which comes a 0."""
        return {"key": prefix, "range_end": prefix[:-1] + b"0"}

    def error(self, text: str, kind: type[EtcdBarrierError] = EtcdBarrierError) -> EtcdBarrierError:
        return kind(f"etcd_barrier {self.prefix!r}: {text}", self.prefix, self.world_size)

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


class _Content(msgspec.Struct):
    """The value of the key `state`."""

    era: str
    round: int
    past: dict[str, Outcome]


@dataclass(frozen=True)
class State:
    """What the key `state` holds: the round that gathers, and the outcomes of those before it.

    When the key is deleted, the count of rounds begins anew. The era identifies the count.
    """

    raw: bytes
    lease: int
    content: _Content

    @staticmethod
    def first() -> bytes:
        return msgspec.json.encode(_Content(secrets.token_hex(4), 1, {}))

    @classmethod
    def of(cls, entry: Any) -> State:
        return cls(entry.value, entry.lease, decoded(entry.value, _Content))

    @property
    def round(self) -> str:
        return f"{self.content.era}.{self.content.round}"

    def outcome(self, round: str) -> Outcome | None:
        """None while the round gathers, and if its outcome is not kept any more."""
        era, _, number = round.partition(".")
        return self.content.past.get(number) if era == self.content.era else None

    def after(self, outcome: Outcome) -> bytes:
        """The state once the round that gathers has ended so."""
        era, number = self.content.era, self.content.round
        past = [*self.content.past.items(), (str(number), outcome)]
        return msgspec.json.encode(_Content(era, number + 1, dict(past[-ROUNDS_KEPT:])))


def given_up(
    keys: Keys,
    result: Literal["timeout", "gone"],
    *,
    by: str,
    waited_s: float,
    present: Mapping[str, str],
    answered: Iterable[str],
    gone: Mapping[str, str],
    other_sizes: Iterable[int],
) -> Outcome:
    """The outcome of a round that ends without all.

    by, waited_s: who gave it up, after how long. present: who the members are. answered: those
    that answered the last call. gone: those whose lease ended meanwhile.
    """
    alive = set(answered)
    count = max(0, keys.world_size - len(alive))
    missing: tuple[int, ...] = ()
    if all(name.isdigit() for name in present):
        ranks = (rank for rank in range(keys.world_size) if str(rank) not in alive)
        missing = tuple(islice(ranks, NAMED_MAX))
    text = f"etcd_barrier {keys.prefix!r}: {count} of {keys.world_size} missing"
    if missing:
        shown = ", ".join(map(str, missing[:SHOWN_MAX]))
        more = f" and {count - SHOWN_MAX} more" if count > SHOWN_MAX else ""
        text += f": rank{'s' if count > 1 else ''} {shown}{more}"
    text += f" ({_shown(by)} waited {round(waited_s, 3):g} s)"
    silent = {name: who for name, who in present.items() if name not in alive}
    for names, what in (
        (gone, "joined, and died or left"),
        (silent, "joined, but gives no sign of life"),
    ):
        for name, who in islice(names.items(), SHOWN_MAX):
            text += f"; {_shown(name)} ({who}) {what}"
    sizes = ", ".join(map(str, other_sizes))
    if sizes:
        text += f"; others under this prefix wait for a world_size of {sizes}"
    return Outcome(result, text, missing, count)


def _shown(name: str) -> str:
    return f"rank {name}" if name.isdigit() else name
