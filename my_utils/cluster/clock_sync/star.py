"""Aligns all ranks of a job with rank 0: one rank a host asks, the others use its result.

The rendezvous of the ranks is the store of torch.distributed, under one name for each call:

    server               where rank 0 listens, the secret of the call, and its host
    host/<host>/<n>      how many ranks of a host offered to be the n-th one that asks: the first is
    offset/<host>        the last answer, `ClockOffset.fields`
    done                 the number of ranks that have their answer, or know that they get none

A rank that asks and dies is followed by another of its host. A rank that has no answer by its
deadline continues without. What a call left in the store goes with the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from ...core.store import wait_for_keys
from ...core.warnings import warn_once
from ...record.log.logger import GlobalLogger
from .client import ask
from .offset import ClockHistory, ClockOffset, ClockSyncError
from .server import ClockServer
from .steady import Clock

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


UNKNOWN = ClockOffset(0, float("inf"))
LEADS_MAX = 3  # ranks of a host that try within one call's time
STALE_MAX = 3  # intervals without a new answer, after which another rank of the host asks


class Refresher:
    """This rank's part in the alignment of the clocks: once, or at an interval.

    store: where the ranks of one call meet, for its keys only. size: how many ranks there are.
    """

    def __init__(
        self, store: Store, rank: int, size: int, machine: str, rounds: int, clock: Clock
    ) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._machine, self._rounds, self._clock = machine, rounds, clock
        self._history = ClockHistory()
        self._server: ClockServer | None = None
        self._serving: dict[str, Any] = {}
        self._leads = False
        self._lead = 0  # which of the ranks of this host asks: the first, the second, ...
        self._left_behind = {"server", "done"} if self._rank == 0 else set[str]()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, host: str | None, timeout_s: float) -> ClockOffset:
        """The first measurement; on rank 0 it waits until all have theirs."""
        try:
            offset = self.line_up(host, time.monotonic() + timeout_s)
        except (OSError, RuntimeError) as error:
            warn_once("clock sync", f"the clock of rank {self._rank} is not lined up: {error}")
            return UNKNOWN
        _pass_to_logger(offset)
        return offset

    def line_up(self, host: str | None, deadline: float) -> ClockOffset:
        """Like `begin`, with a deadline of `time.monotonic()`; raises. The logger is not
        changed."""
        if self._rank == 0:
            self._serve(host)
            self._wait_for_all(deadline)
            return ClockOffset(0, 0.0, measured_ns=self._clock())
        try:
            if not wait_for_keys(self._store, ["server"], deadline, self._size):
                raise ClockSyncError("rank 0 did not come")
            self._serving = json.loads(self._store.get("server"))
            return self._measure(deadline)
        finally:
            self._store.add("done", 1)

    def _serve(self, host: str | None) -> None:
        secret = os.urandom(16)
        self._server = ClockServer(host or _own_address(), secret=secret, clock=self._clock)
        address, port = self._server.address
        serving = {
            "host": address, "port": port, "secret": secret.hex(), "machine": self._machine
        }  # fmt: skip
        self._store.set("server", json.dumps(serving))

    def _wait_for_all(self, deadline: float) -> None:
        while self._store.add("done", 0) < self._size - 1:
            if time.monotonic() > deadline:
                warn_once("clock sync ranks", "not all ranks lined up their clocks in time")
                return
            time.sleep(0.002)

    def _measure(self, deadline: float) -> ClockOffset:
        """The offset of rank 0's clock: measured, or by the rank of this host that measures."""
        if self._machine == self._serving["machine"]:
            return ClockOffset(0, 0.0, measured_ns=self._clock())
        key = f"offset/{self._machine}"
        for left in range(LEADS_MAX, 0, -1):
            if self._is_lead():
                return self._ask(key, deadline)
            now = time.monotonic()
            if wait_for_keys(self._store, [key], now + (deadline - now) / left, self._size):
                return ClockOffset(*json.loads(self._store.get(key)))
            self._lead += 1
        raise ClockSyncError("the rank that asks for this host has no answer")

    def _is_lead(self) -> bool:
        if not self._leads:
            key = f"host/{self._machine}/{self._lead}"
            self._leads = self._store.add(key, 1) == 1
            if self._leads:
                self._left_behind |= {key, f"offset/{self._machine}"}
        return self._leads

    def _ask(self, key: str, deadline: float) -> ClockOffset:
        offset = ask(
            (self._serving["host"], self._serving["port"]),
            retries=3,
            secret=bytes.fromhex(self._serving["secret"]),
            rounds=self._rounds,
            timeout_s=max(deadline - time.monotonic(), 0.1),
            clock=self._clock,
        )
        offset = self._history.add(offset)
        self._store.set(key, json.dumps(offset.fields()))
        return offset

    def go_on(self, every_s: float) -> None:
        """Measures again and again, in a thread, on the ranks that have something to measure."""
        if self._rank == 0 or self._machine == self._serving.get("machine"):
            return
        self._thread = threading.Thread(
            target=self._run, args=(every_s,), name="my_utils clock", daemon=True
        )
        self._thread.start()

    def _run(self, every_s: float) -> None:
        last_ns = stale = 0
        while not self._over.wait(every_s):
            try:
                offset = self._measure(time.monotonic() + every_s)
            except (OSError, RuntimeError) as error:
                warn_once("clock sync again", f"the clock could not be measured again: {error}")
                continue
            if offset.measured_ns != last_ns:
                _pass_to_logger(offset)
                last_ns, stale = offset.measured_ns, 0
                continue
            stale += 1
            if stale == STALE_MAX:  # the rank that asked for this host is gone
                self._lead, stale = self._lead + 1, 0

    def end(self) -> None:
        """Measures no more. May be called again."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._server is not None:
            self._server.close()

    def forget(self) -> None:
        """Removes this rank's keys from the store, once all ranks have ended this call."""
        with contextlib.suppress(RuntimeError):  # the store is gone, and all with it
            for key in self._left_behind:
                self._store.delete_key(key)


def _pass_to_logger(offset: ClockOffset) -> None:
    logger = GlobalLogger()
    logger.set_time_offset(offset.exact_s())
    metadata = {
        "offset_ns": offset.offset_ns,
        "error_ns": round(offset.error_s * 1e9),
        "drift_ppm": f"{offset.drift_ppm:.4f}",
    }
    logger.log_profile_event(None, None, "my_utils.clock_sync", "INSTANT", metadata=metadata)


def _own_address() -> str:
    """The address of this host towards the store's server, which other hosts reach too."""
    target = os.environ.get("MASTER_ADDR", "")
    with contextlib.suppress(OSError):
        family, *_, address = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing: it chooses a route
            return str(probe.getsockname()[0])
    return "127.0.0.1"
