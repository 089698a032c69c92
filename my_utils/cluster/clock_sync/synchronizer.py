"""One clock for all hosts of a job: the offset of each clock to the first, and its error bound.

>>> from my_utils.logger import GlobalLogger
>>> with SocketClockSynchronizer.serve() as server:
...     offset = SocketClockSynchronizer.sync(False, *server.address)
>>> GlobalLogger().set_time_offset(offset.exact_s())
>>> abs(offset) <= offset.error_s
True
>>> GlobalLogger().set_time_offset(0)
"""

from __future__ import annotations

import functools
import math
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from ...core.aliases import renamed_parameters
from ...core.arguments import check_int, check_seconds, check_str, check_switch
from ...core.lazy_modules import lazy_module
from ...core.public import public
from ...core.ranks import boot_id, check_rank, host_name
from ...core.reprs import short_repr
from ...core.store import default_store
from .client import ROUNDS_MAX, ask
from .offset import ClockHistory, ClockOffset, ClockSyncError, estimate
from .server import PORT_MAX, ClockServer
from .star import Refresher
from .steady import Clock, exchange, make_answer, read

if TYPE_CHECKING:
    import torch.distributed
else:
    torch = lazy_module("torch")


ROUNDS = 16
NUMBERS = 5  # in a message between two ranks


@public("my_utils.clockSyncUtils")
class SocketClockSynchronizer:
    """Compares two clocks over TCP. It needs no torch.

    port: None, or the one that `sync` of this object uses.
    """

    def __init__(self, port: int | None = None) -> None:
        if port is not None:
            _check_port(port)
            with_port = functools.partial(SocketClockSynchronizer.sync, port=port)
            self.sync = with_port  # type: ignore[method-assign]

    @staticmethod
    def serve(
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        secret: bytes | str | None = None,
        clock: Clock = time.time_ns,
    ) -> ClockServer:
        """A server for any number of clients, in separate threads; see `ClockServer`.

        host: the address to listen at; loopback by default, "::" or "0.0.0.0" for all.
        port: 0 takes a free one, which `address` says.
        secret: what clients must know; a server that others can reach should have one.
        """
        return ClockServer(host, port, secret=_bytes(secret), clock=clock)

    @staticmethod
    @renamed_parameters(peer_ip="host")
    def sync(
        is_server: bool,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        secret: bytes | str | None = None,
        rounds: int = ROUNDS,
        timeout_s: float = 30.0,
        retries: int = 3,
        clock: Clock = time.time_ns,
    ) -> ClockOffset:
        """Compares the clocks of two processes that both call this; returns the offset of the
        server's.

        is_server: True answers one client and returns an offset of 0. False asks the server.
        port: the same on both sides, from 1 to 65535; there is no default.
        rounds: messages there and back. timeout_s: for one attempt, the wait for the other side
            included. retries: further attempts where one fails.

        ClockSyncError when no attempt succeeds, or another program listens at that port. TypeError
        and ValueError name the argument.
        """
        is_server = check_switch("is_server", is_server)
        check_str("host", host)
        _check(rounds, timeout_s)
        check_int("retries", retries, 0)
        _check_port(port)
        key = _bytes(secret)
        if is_server:
            _answer_one(host, port, key, timeout_s, clock)
            return ClockOffset(0, 0.0, measured_ns=clock())
        return ask(
            (host, port), retries, secret=key, rounds=rounds, timeout_s=timeout_s, clock=clock
        )

    def __repr__(self) -> str:
        return short_repr(self)


def _answer_one(host: str, port: int, secret: bytes | None, timeout_s: float, clock: Clock) -> None:
    deadline = time.monotonic() + timeout_s
    with ClockServer(host, port, secret=secret, clock=clock) as server:
        while server.served == 0:
            if time.monotonic() > deadline:
                raise ClockSyncError(f"no client connected to port {port} within {timeout_s:g} s")
            time.sleep(0.005)


@public("my_utils.clockSyncUtils")
class ClockSynchronizer:
    """Compares the clocks of the ranks of a job."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _histories: ClassVar[dict[int, ClockHistory]] = {}  # by the rank of the other one
    _refresher: ClassVar[Refresher | None] = None
    _calls: ClassVar[dict[str, int]] = {}
    _before: ClassVar[dict[str, Refresher]] = {}

    @classmethod
    def sync(
        cls,
        is_server: bool,
        peer_rank: int,
        group: torch.distributed.ProcessGroup | None = None,
        *,
        rounds: int = ROUNDS,
        timeout_s: float = 30.0,
        clock: Clock = time.time_ns,
    ) -> ClockOffset:
        """Compares the clocks of two ranks by torch.distributed's send and recv; both call it.
        Returns the offset of the server's clock on the other rank, 0 on the server.

        peer_rank: the other rank, by its number in the whole job. group: by default all ranks.
            rounds: messages there and back, the same on both.
        timeout_s: for each message; gloo does not use the connection again after one is missed.

        ClockSyncError when the other rank does not answer, or a clock was set meanwhile.
        """
        is_server = check_switch("is_server", is_server)
        _check(rounds, timeout_s)
        check_rank("peer_rank", peer_rank)
        pair = _Pair(peer_rank, group, timeout_s)
        if is_server:
            pair.answer(rounds, clock)
            return ClockOffset(0, 0.0, measured_ns=clock())
        offset = estimate(exchange(rounds, clock, pair.ask))
        with cls._lock:
            return cls._histories.setdefault(peer_rank, ClockHistory()).add(offset)

    @classmethod
    def sync_all(
        cls,
        group: torch.distributed.ProcessGroup | None = None,
        *,
        host: str | None = None,
        rounds: int = ROUNDS,
        timeout_s: float = 60.0,
        every_s: float | None = None,
        machine: str | None = None,
        clock: Clock = time.time_ns,
    ) -> ClockOffset:
        """Aligns the clocks of all ranks with that of rank 0; the logger gets the offset.
        All ranks of the group call it, equally often.

        Ranks of one host share a clock, so one of each host asks rank 0, over TCP and under a
        secret of this call, and the others use its result; addresses and results go through the
        store of torch.distributed. `GlobalLogger().set_time_offset` gets the offset, and a row
        `my_utils.clock_sync` with the error goes into the profile CSV.

        host: the address at which rank 0 listens; by default the one from which it reaches the
            store's server, loopback when that is on its own host.
        timeout_s: for all of it. A rank that has no result by then warns, and keeps its offset: the
            result then is the offset 0 with an infinite `error_s`.
        every_s: measure again at this interval, in a thread, until `stop`; the drift comes from
            all measurements by regression.
        machine: identifies ranks that share a clock; by default the kernel's boot id, else the name
            of the host.

        Without torch.distributed the result is 0, with an error of 0. ValueError for a group that
        this rank does not belong to.
        """
        _check(rounds, timeout_s)
        if every_s is not None:
            check_seconds("every_s", every_s, most=math.inf)
        cls.stop()
        name = "world" if group is None else str(getattr(group, "group_name", "none"))
        with cls._lock:  # the calls of a group have the same numbers on all its ranks
            call = cls._calls[name] = cls._calls.get(name, 0) + 1
        store = default_store(f"my_utils/clock/{name}/{call}")
        if store is None:
            return ClockOffset(0, 0.0, measured_ns=clock())
        import torch.distributed as dist

        rank = dist.get_rank(group)
        if rank < 0:
            raise ValueError("group must be one that this rank belongs to")
        if machine is None:
            machine = boot_id() or host_name()
        refresher = Refresher(store, rank, dist.get_world_size(group), machine, rounds, clock)
        offset = refresher.begin(host, timeout_s)
        with cls._lock:
            before, cls._before[name] = cls._before.get(name), refresher
        if before is not None:
            before.forget()
        if every_s is None:
            refresher.end()
        else:
            refresher.go_on(every_s)
            with cls._lock:
                cls._refresher = refresher
        return offset

    @classmethod
    def stop(cls) -> None:
        """Ends what `sync_all(every_s=…)` began; the last offset stays."""
        with cls._lock:
            refresher, cls._refresher = cls._refresher, None
        if refresher is not None:
            refresher.end()

    def __repr__(self) -> str:
        return short_repr(self)


# --- two ranks, by messages ---


class _Pair:
    """This rank and another, and tensors on the device that their backend needs."""

    def __init__(
        self, peer: int, group: torch.distributed.ProcessGroup | None, timeout_s: float
    ) -> None:
        import torch.distributed as dist

        self._dist = dist
        backend = dist.get_backend(group)
        self._device = torch.accelerator.current_accelerator() if "ccl" in backend else None
        self._peer, self._group, self._timeout_s = peer, group, timeout_s

    def ask(self, number: int) -> list[int]:
        self._send([number, 0, 0, 0, 0])
        return self._receive()

    def answer(self, rounds: int, clock: Clock) -> None:
        for _ in range(rounds):
            number, *_ = self._receive()
            self._send(make_answer(number, read(clock), clock))

    def _send(self, numbers: list[int]) -> None:
        tensor = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        self._wait(self._dist.isend(tensor, self._peer, self._group))

    def _receive(self) -> list[int]:
        tensor = torch.zeros(NUMBERS, dtype=torch.int64, device=self._device)
        self._wait(self._dist.irecv(tensor, self._peer, self._group))
        numbers: list[int] = tensor.tolist()  # which waits for an accelerator
        return numbers

    def _wait(self, work: Any) -> None:
        try:
            work.wait(timedelta(seconds=self._timeout_s))
        except RuntimeError as error:
            raise ClockSyncError(f"rank {self._peer} does not answer: {error}") from error


# --- arguments ---


def _bytes(secret: bytes | str | None) -> bytes | None:
    if secret is None or isinstance(secret, bytes):
        return secret
    if not isinstance(secret, str):
        raise TypeError(f"secret must be bytes, a str or None, not {type(secret).__name__}")
    return secret.encode()


def _check_port(port: int) -> None:
    if not 1 <= check_int("port", port) <= PORT_MAX:
        raise ValueError(
            f"port must be from 1 to {PORT_MAX}, and the same on both sides, not {port}"
        )


def _check(rounds: int, timeout_s: float) -> None:
    if check_int("rounds", rounds, 1) > ROUNDS_MAX:
        raise ValueError(f"rounds must be at most {ROUNDS_MAX}, not {rounds}")
    check_seconds("timeout_s", timeout_s, most=math.inf)
