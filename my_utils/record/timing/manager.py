"""Times of functions and blocks by name, on one rank or gathered from all.

>>> @timer_wrap()
... def load():
...     return 3
>>> tm = TimeManager()
>>> with tm.enable_timer():
...     for _ in range(4):
...         _ = load()
>>> len(tm.records["load"])
4
>>> gathered = tm.gather()  # of all ranks where torch.distributed is in use
>>> gathered["load"].count(), gathered["load"].rank_count()
(4, 1)

`timer_wrap` and `timer` record into every `TimeManager` that is enabled where they run, and cost a
call of a C function where none is. Each thread and each asyncio task has its own stack of enabled
ones; a task begins with that of its maker, a thread with an empty one.
"""

from __future__ import annotations

import functools
import numbers
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Self, TypeVar, overload

from ... import _core
from ...core.arguments import check_int, check_seconds, check_str
from ...core.public import public
from ...core.ranks import (
    check_rank,
    current_rank,
    distributed,
    known_rank,
    known_world_size,
)
from ...core.reprs import short_repr
from ...core.store import default_store
from ...core.warnings import warn_once
from .gathered import GatheredTime
from .timed import timed

_SECONDS_MAX = 9e9  # in ns it fits in 63 bits

_F = TypeVar("_F", bound=Callable[..., Any])


@overload
def timer_wrap(name: str | None = None) -> Callable[[_F], _F]: ...
@overload
def timer_wrap(name: _F, /) -> _F: ...
def timer_wrap(name: Any = None) -> Any:
    """A decorator, `@timer_wrap`, `@timer_wrap()` or `@timer_wrap("a name")`: each call of the
    function is timed by every `TimeManager` that is enabled at the call.

    name: what the times are recorded under; None: the function's `__name__`.

    A call that raises is timed, too. A coroutine's time is from its start to its end, waiting
    included; a generator's is that of its own code, without its consumer's, as one time for the
    whole iteration. That of a `contextlib.contextmanager` is of its entry and its exit, without the
    block between.

    What it returns is a Python function with the name, the parameters and the annotations of the
    function, and `functools.wraps` has copied the rest. It is pickled by reference, and by
    cloudpickle where that does so; for Ray, put it below `@ray.remote`, on functions and on methods
    of actors. torch.jit.script and torch.export take the function itself; what they make of it
    is not timed.

    Takes functions and methods (below `@staticmethod` and `@classmethod` or above), coroutine and
    generator functions, asynchronous ones, and callable objects. TypeError for a class, for what
    cannot be called, and for a name that is not a str.
    """
    if isinstance(name, (staticmethod, classmethod)) or callable(name):
        return timed(name, _name_of(name))
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name must be a str or None, not {name!r:.100}")

    def decorate(function: _F) -> _F:
        wrapped: _F = timed(function, _name_of(function) if name is None else name)
        return wrapped

    return decorate


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


@public("my_utils.timing")
class TimeManager(_core.TimeRecorder):
    """Records the times of functions and blocks by name.

    records: times in seconds to begin with, as `TimeManager.records` gives them.
    max_samples: how many durations a name keeps one by one (8 bytes each); later ones go into a
        histogram that is accurate to 1 %. At most 4,096 names are kept apart; further ones count as
        `(other)`.

    TypeError and ValueError for records that are no times.

    Thread-safe. Several can be enabled at a time, by the same thread or task or by different ones.
    """

    def __init__(
        self, records: Mapping[str, Iterable[float]] | None = None, *, max_samples: int = 1_048_576
    ) -> None:
        super().__init__(max_samples)
        for name, ns in _checked_records({} if records is None else records):
            self.add(name, ns)

    def __repr__(self) -> str:
        return short_repr(self, "max_samples")

    # --- pickles ---

    def __getstate__(self) -> dict[str, Any]:
        """All times, those beyond `max_samples`, too, as plain values. A copy is not enabled."""
        times = {name: self.state(name) for name in self.names()}
        return {"attributes": self.__dict__, "max_samples": self.max_samples, "times": times}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        _core.TimeRecorder.__init__(self, state["max_samples"])
        self.__dict__.update(state["attributes"])
        for name, times in state["times"].items():
            self.restore(name, times)

    # --- recording ---

    # `timer(name)` is inherited: a block whose time is recorded here, whatever is enabled.

    @contextmanager
    def enable_timer(self) -> Iterator[Self]:
        """Within the block, `timer_wrap` and `timer` record here, and in those that are enabled
        already. One that is enabled twice records once.

        Holds for the calling thread or task and for tasks that it makes meanwhile. A thread that
        works for this one enables it for itself, or runs in `contextvars.copy_context()`. Where
        threads inherit the context (`sys.flags.thread_inherit_context`, which is on by default in a
        free-threaded CPython from 3.14 on), it also holds for those that start meanwhile.
        """
        first = self.enable()
        try:
            yield self
        finally:
            if first:
                self.disable()

    @property
    def records(self) -> dict[str, list[float]]:
        """The times so far in seconds, by name, each name's in their order: a copy. Of a name with
        more than `max_samples`, the first ones."""
        return {
            name: [ns / 1e9 for ns in memoryview(self.samples(name)).cast("Q")]
            for name in self.names()
        }

    # --- all ranks together ---

    def gather(
        self,
        dst: int | None = 0,
        *,
        summary: bool = False,
        timeout_s: float = 60.0,
        tag: str = "",
        store: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> GatheredTime | None:
        """The times of all ranks, on rank `dst`; None on the others. With `dst=None` all ranks get
        them, at a cost that grows with the square of their number.

        It uses no collective, but the key-value store of torch's rendezvous. So ranks may hold
        different names and counts, or nothing, it works with any backend, and a dead rank does
        not hang the others. `dst` waits for all until the deadline. The others put their times
        into the store and continue; rank 0, if its process serves the store, stays until they are
        taken. `GatheredTime.missing` has the ranks whose times did not come or cannot be read,
        with the reason, and one warning names them. Times are kept until `clear()`.

        summary: send, for each name, count, sum, min, max, spread and a histogram good to 1 %,
            instead of the times: 1 KiB a name, however many times there are.
        timeout_s: how long `dst` waits, for all ranks together.
        tag: gathers of the ranks are matched by tag and order. Ranks whose gathers differ in number
            or order need different tags.
        store: a torch store that all ranks share; None: the one of torch.distributed.
        rank, world_size: who this process is, and of how many; None: as torch.distributed,
            `GlobalLogger().setup` or the launcher's environment say.

        Without torch.distributed a store needs both, as arguments or from the logger or launcher.
        If nothing says them, there is one warning, and the result has the times of this process
        alone, as without a store. `TimeManager.merge` combines managers that came in other ways,
        such as through Ray. TypeError and ValueError for wrong arguments; trouble with the store is
        a warning, never an exception.
        """
        if dst is not None:
            check_rank("dst", dst)
        check_seconds("timeout_s", timeout_s, 0)
        check_str("tag", tag)
        place = _place(rank, world_size, store)
        if place is None:
            return self.merge({current_rank() if rank is None else rank: self}, summary=summary)
        from . import gather as times_gather
        from .packed import pack

        rank, world_size = place
        if dst is not None and dst >= world_size:
            raise ValueError(f"dst must be below the number of ranks, {world_size}, not {dst}")
        exchange_of = functools.partial(
            times_gather.Exchange,
            default_store() if store is None else store,
            rank=rank, world_size=world_size, timeout_s=timeout_s,
        )  # fmt: skip
        message = pack(self, rank, summary)
        # Rank 0 waits where the store lives in its process, not in that of torchrun.
        in_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        waits = rank == 0 and store is None and not in_torchrun
        if dst is None:
            exchanges = [exchange_of(tag=f"{tag}/to/{each}") for each in range(world_size)]
            return _gathered_by_all(rank, message, exchanges, waits=waits)
        exchange = exchange_of(tag=tag)
        if rank != dst:
            _send(exchange, message, dst, waits=waits)
            return None
        return _merged(rank, message, exchange, world_size)

    @staticmethod
    def merge(
        managers: Mapping[int, _core.TimeRecorder] | Iterable[_core.TimeRecorder],
        *,
        summary: bool = False,
    ) -> GatheredTime:
        """The times of several managers together, as `gather` gives those of ranks. For processes
        that have no torch.distributed: a TimeManager pickles, so an actor of Ray returns its own.

        managers: by rank, or one after the other, the ranks 0, 1 and so on.
        summary: as that of `gather`.

        TypeError if it is not a TimeManager, TypeError and ValueError if it is not a rank.

        >>> first, second = TimeManager({"load": [0.5]}), TimeManager({"load": [0.25, 0.75]})
        >>> TimeManager.merge([first, second])["load"].get_rank(1).sum()
        1.0
        """
        from .packed import Merger, pack

        found = _by_rank(managers)
        merger = Merger()
        for rank, manager in found.items():
            merger.add(rank, pack(manager, rank, summary))
        return GatheredTime(merger.tables(), world_size=len(found), missing={})


def _checked_records(records: Any) -> list[tuple[str, int]]:
    """Each name with a time in ns."""
    if not isinstance(records, Mapping):
        raise TypeError(f"records must map names to times, not {records!r:.100}")
    found = []
    for name, seconds in records.items():
        where = f"records[{name!r:.100}]"
        if not isinstance(name, str):
            raise TypeError(f"each name of records must be a str, not {name!r:.100}")
        if isinstance(seconds, (str, bytes)) or not isinstance(seconds, Iterable):
            raise TypeError(f"{where} must be an iterable of seconds, not {seconds!r:.100}")
        found += [(name, _checked_ns(f"each of {where}", each)) for each in seconds]
    return found


def _checked_ns(what: str, seconds: Any) -> int:
    number = float(seconds) if isinstance(seconds, numbers.Real) else seconds
    return round(check_seconds(what, number, 0, _SECONDS_MAX) * 1e9)


def _by_rank(managers: Any) -> dict[int, _core.TimeRecorder]:
    if isinstance(managers, _core.TimeRecorder) or not isinstance(managers, Iterable):
        raise TypeError(f"managers must map ranks to TimeManager, or list them: {managers!r:.100}")
    pairs = managers.items() if isinstance(managers, Mapping) else enumerate(managers)
    found = {check_rank("each rank of managers", rank): manager for rank, manager in pairs}
    for manager in found.values():
        if not isinstance(manager, _core.TimeRecorder):
            raise TypeError(f"each of managers must be a TimeManager, not {manager!r:.100}")
    return found


def _place(rank: int | None, world_size: int | None, store: Any) -> tuple[int, int] | None:
    """The rank and the number of ranks of a gather that uses a store; None: it uses none."""
    for name, value, least in (("rank", rank, 0), ("world_size", world_size, 1)):
        if value is not None:
            check_int(name, value, least)
    group = distributed()
    if group is not None:
        rank = group.get_rank() if rank is None else rank
        world_size = group.get_world_size() if world_size is None else world_size
    elif store is None:
        return None
    else:
        rank = known_rank() if rank is None else rank
        world_size = known_world_size() if world_size is None else world_size
    if rank is None or world_size is None:
        warn_once(
            "gather_place",
            "gather(store=...) does not use the store: torch.distributed is not in use, and "
            "neither rank=, world_size=, GlobalLogger().setup nor RANK and WORLD_SIZE in the "
            "environment say which rank this is; the result has the times of this process alone",
        )
        return None
    if rank >= world_size:
        raise ValueError(f"rank must be below world_size, {world_size}, not {rank}")
    return rank, world_size


def _send(exchange: Any, message: bytes, dst: int, *, waits: bool) -> None:
    try:
        exchange.send(message, wait=waits)
    except Exception as error:
        warn_once("gather_send", f"the times of this rank did not get to rank {dst}: {error}")


def _gathered_by_all(
    rank: int, message: bytes, exchanges: list[Any], *, waits: bool
) -> GatheredTime:
    """exchanges: by their destination. All messages are sent before this rank waits for any."""
    others = [each for each in range(len(exchanges)) if each != rank]
    for each in others:
        _send(exchanges[each], message, each, waits=False)
    found = _merged(rank, message, exchanges[rank], len(exchanges))
    if waits:
        # A rank that gets nothing from the store warns of it itself.
        with suppress(Exception):
            for each in others:
                exchanges[each].wait_until_closed()
    return found


def _merged(rank: int, own: bytes, exchange: Any, world_size: int) -> GatheredTime:
    from .packed import BadMessage, Merger

    merger = Merger()
    missing: dict[int, str] = {}

    def take(sender: int, found: bytes | str) -> None:
        try:
            if isinstance(found, str):
                raise BadMessage(found)
            merger.add(sender, found)
        except BadMessage as error:
            missing[sender] = str(error)

    take(rank, own)
    exchange.receive(take)
    if missing:
        _warn_missing(missing, world_size)
    return GatheredTime(merger.tables(), world_size=world_size, missing=missing)


def _warn_missing(missing: Mapping[int, str], world_size: int) -> None:
    shown = ", ".join(map(str, sorted(missing)[:20])) + (", …" if len(missing) > 20 else "")
    why = next(iter(missing.values()))
    warn_once(
        "gather_missing",
        f"times of {len(missing)} of {world_size} ranks are missing: rank {shown} ({why})",
    )
