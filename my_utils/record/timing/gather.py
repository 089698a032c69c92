"""Sends messages of all ranks to one rank, through the store of torch's rendezvous.

There is no collective, so a rank that is dead, slow or in other code cannot hang the others. Every
rank puts its message under its own key and continues. The destination waits for the messages until
the deadline, takes those that have come, and removes their keys. A rank that puts its message there
after the deadline removes it again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ...core.store import wait_for_keys

# Called with a rank, and its message or the reason why there is none.
_Take = Callable[[int, bytes | str], None]

# TCPStore takes 8 MiB a value.
_CHUNK_BYTES = 4 * 1024 * 1024
_CHUNKS_MAX = 4096
_TOGETHER = 64  # ranks whose messages are asked for at a time
_POLL_S = 0.01

# How long after the deadline a call to the store may take before it counts as hung: the host of its
# server may have died without closing the connection.
_GRACE_S = 5.0


class Exchange:
    """One gather. The ranks' gathers with the same tag belong together in their order."""

    def __init__(
        self, store: Any, *, rank: int, world_size: int, tag: str, timeout_s: float
    ) -> None:
        self._turn = 0
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._root = f"my_utils/timing/{tag}"
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def _key(self, rank: int, chunk: int | None = None) -> str:
        key = f"{self._root}/{self._turn}/{rank}"
        return key if chunk is None else f"{key}/{chunk}"

    @property
    def _closed_key(self) -> str:
        """The key of the newest gather that the destination has closed."""
        return f"{self._root}/closed"

    def _in_time(self, action: Callable[[], None]) -> None:
        """Runs `action` in a separate thread, and abandons the thread when it hangs. Raises
        TimeoutError and what `action` raises."""
        raised: list[BaseException] = []

        def run() -> None:
            try:
                action()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run, name="my_utils gather", daemon=True)
        thread.start()
        thread.join(max(0.0, self._deadline - time.monotonic()) + _GRACE_S)
        if thread.is_alive():
            raise TimeoutError("the store does not answer")
        if raised:
            raise raised[0]

    # --- a rank that sends ---

    def send(self, message: bytes, *, wait: bool) -> None:
        """Puts the message into the store. With `wait` it returns when the destination has closed
        the gather, for a rank whose exit would end the store. Raises TimeoutError and what the
        store raises."""
        self._in_time(lambda: self._send(message, wait))

    def _begin(self) -> None:
        """Gives this gather its number among those of this rank and tag. The store counts them:
        it may live longer than this process, and remembers which gathers were closed."""
        self._turn = int(self._store.add(f"{self._root}/turn/{self._rank}", 1))

    def _send(self, message: bytes, wait: bool) -> None:
        self._begin()
        chunks = [message[at : at + _CHUNK_BYTES] for at in range(0, len(message), _CHUNK_BYTES)]
        for number, chunk in enumerate(chunks[1:], 1):
            self._store.set(self._key(self._rank, number), chunk)
        # Last: its presence says that the message is complete.
        first = len(chunks).to_bytes(4, "little") + chunks[0]
        self._store.set(self._key(self._rank), first)
        if self._is_closed():
            self._remove(self._rank, len(chunks))
        if wait:
            self.wait_until_closed()

    def wait_until_closed(self) -> None:
        """Returns when the destination has closed the gather, or at the deadline."""
        while not self._is_closed() and time.monotonic() < self._deadline:
            time.sleep(_POLL_S)

    def _is_closed(self) -> bool:
        key = self._closed_key
        return bool(self._store.check([key])) and int(self._store.get(key)) >= self._turn

    # --- the rank that receives ---

    def receive(self, take: _Take) -> None:
        """Calls `take` once for each other rank, one call at a time, as messages come. So they
        are never all in memory at once."""
        waiting = {rank for rank in range(self._world_size) if rank != self._rank}
        lock = threading.Lock()

        def hand_over(rank: int, found: bytes | str) -> None:
            with lock:
                if rank in waiting:  # an abandoned thread may still deliver one
                    waiting.discard(rank)
                    take(rank, found)

        try:
            self._in_time(lambda: self._receive(hand_over))
        except Exception as error:
            for rank in sorted(waiting):
                hand_over(rank, f"the store failed: {_first_line(error)}")

    def _receive(self, hand_over: _Take) -> None:
        self._begin()
        others = [rank for rank in range(self._world_size) if rank != self._rank]
        silent = []
        for start in range(0, len(others), _TOGETHER):
            batch = others[start : start + _TOGETHER]
            firsts = self._firsts(batch)
            for rank in batch:
                if rank in firsts:
                    hand_over(rank, self._make_message(rank, firsts.pop(rank)))
                else:
                    hand_over(rank, f"no answer within {self._timeout_s:g} s")
                    silent.append(rank)
        # A rank that puts its message there from now on removes it.
        self._store.set(self._closed_key, str(self._turn))
        for rank in silent:
            self._remove(rank, _CHUNKS_MAX)

    def _firsts(self, ranks: list[int]) -> dict[int, bytes]:
        """The first parts of the messages that are there by the deadline."""
        if not wait_for_keys(self._store, [self._key(rank) for rank in ranks], self._deadline):
            ranks = [rank for rank in ranks if self._store.check([self._key(rank)])]
        keys = [self._key(rank) for rank in ranks]
        if keys and self._store.has_extended_api():
            values = self._store.multi_get(keys)
        else:
            values = [self._store.get(key) for key in keys]
        return {rank: bytes(value) for rank, value in zip(ranks, values, strict=True)}

    def _make_message(self, rank: int, first: bytes) -> bytes | str:
        count = int.from_bytes(first[:4], "little")
        if not 1 <= count <= _CHUNKS_MAX:
            self._remove(rank, 1)
            return f"its message is damaged: it has {count} parts"
        chunks = [first[4:]]
        for number in range(1, count):
            if not wait_for_keys(self._store, [self._key(rank, number)], self._deadline):
                return f"part {number} of {count} of its message did not arrive"
            chunks.append(bytes(self._store.get(self._key(rank, number))))
        self._remove(rank, count)
        return b"".join(chunks)

    def _remove(self, rank: int, chunks: int) -> None:
        """Deletes the first `chunks` parts of the message, up to the first that is missing."""
        self._store.delete_key(self._key(rank))
        for number in range(1, chunks):
            if not self._store.delete_key(self._key(rank, number)):
                return


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
