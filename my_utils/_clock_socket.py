"""Clocks compared over TCP: a server that tells the time, and who asks it.

A session, all numbers big-endian:

    client   MAGIC (8 bytes), nonce (16)
    server   MAGIC, nonce (16), 1 when it has a secret, else 0 (1)
    client   HMAC-SHA256 of "client" and both nonces under the secret (32); only if it has one
    server   "G" when it is this client's turn
    client   number of the exchange (8)                                  } as often as
    server   the same number, received_ns (8), answered_ns (8)           } the client likes
    client   LAST (8)
    server   HMAC-SHA256 of "server", both nonces and all its answers (32)

One client has its turn at a time, so that none waits behind another inside an exchange; a turn ends
with the session, or when the client is silent for TURN_S. The last message says that nobody in
between changed the figures; without a secret it is computed with an empty key, and finds errors
only. A secret keeps strangers out. It does not hide the time.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable

from ._clock_offset import ClockOffset, ClockSyncError, Exchange, estimate
from ._warnings import warn_once

__all__ = ["Clock", "ClockServer", "measure"]

Clock = Callable[[], int]

MAGIC = b"myclock1"
LAST = 2**64 - 1
NONCE_BYTES = 16
MAC_BYTES = 32
HELLO_BYTES = len(MAGIC) + NONCE_BYTES
SESSIONS_MAX = 8192
TURN_S = 0.5  # how long the client whose turn it is may be silent
HELLO_S = 10.0  # how long one may take to say who it is
_NUMBER = struct.Struct(">Q")
_ANSWER = struct.Struct(">QQQ")

_logger = logging.getLogger("my_utils")


def proof(secret: bytes, who: bytes, nonces: bytes, answers: bytes = b"") -> bytes:
    """What only one who knows the secret can say in this session."""
    return hmac.digest(secret, who + nonces + answers, hashlib.sha256)


# --- the server ---


class _Session:
    """One client: what it sent and was not used yet, and where it stands."""

    def __init__(self, connection: socket.socket, now: float) -> None:
        self.connection = connection
        self.pending = bytearray()
        self.nonces = b""
        self.answers = bytearray()
        self.deadline = now + HELLO_S
        self.admitted = False

    def take(self, count: int) -> bytes | None:
        """The next `count` bytes, or None while they are not all there."""
        if len(self.pending) < count:
            return None
        taken = bytes(self.pending[:count])
        del self.pending[:count]
        return taken


class ClockServer:
    """Tells the time to those who ask, in a thread of its own.

    host: the address to listen at; loopback unless told otherwise. port: 0 takes a free one.
    secret: clients must know it; None lets everybody ask.
    clock: the time in ns, CLOCK_REALTIME by default.

    OSError when the address cannot be had. `served` and `refused` count sessions. `close` ends the
    thread; a `with` block calls it. Thread-safe.

    >>> with ClockServer() as server:
    ...     offset = measure(server.address)
    >>> abs(offset) <= offset.error_s
    True
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        secret: bytes | None = None,
        clock: Clock = time.time_ns,
    ) -> None:
        self.served = 0
        self.refused = 0
        self._secret = secret
        self._clock = clock
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._listener = socket.create_server(address[:2], family=family, backlog=4096)
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._waker, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._sessions: dict[socket.socket, _Session] = {}
        self._queue: deque[_Session] = deque()
        self._turn: _Session | None = None
        self._thread = threading.Thread(target=self._run, name="my_utils clock", daemon=True)
        self._thread.start()

    def __enter__(self) -> ClockServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the thread, and the sessions with it. May be called again."""
        with contextlib.suppress(OSError):
            self._waker.close()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._serve_once():
                pass
        finally:
            for session in list(self._sessions.values()):
                self._drop(session)
            for open_socket in (self._listener, self._woken):
                open_socket.close()
            self._selector.close()

    def _serve_once(self) -> bool:
        """Deals with what came, or waits for it; False when the server is to end."""
        events = self._selector.select(timeout=TURN_S / 2)
        received_ns = self._clock()
        for key, _ in events:
            if key.fileobj is self._woken:
                return False
            if key.fileobj is self._listener:
                self._accept()
            else:
                self._read(self._sessions[key.fileobj], received_ns)  # type: ignore[index]
        self._drop_the_late()
        return True

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it is gone again, or there are no more descriptors
        if len(self._sessions) >= SESSIONS_MAX:
            connection.close()
            self.refused += 1
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sessions[connection] = _Session(connection, time.monotonic())
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, session: _Session, received_ns: int) -> None:
        try:
            data = session.connection.recv(4096)
            if data:
                session.pending += data
                self._go_on(session, received_ns)
        except OSError:
            data = b""
        if not data:
            self._drop(session)

    def _go_on(self, session: _Session, received_ns: int) -> None:
        if not session.nonces:
            self._greet(session)
        if session.nonces and not session.admitted:
            self._admit(session)
        if session is self._turn:
            self._answer(session, received_ns)

    def _greet(self, session: _Session) -> None:
        if not MAGIC.startswith(session.pending[: len(MAGIC)]):
            self._refuse(session, "speaks another protocol")
            return
        hello = session.take(HELLO_BYTES)
        if hello is None:
            return
        own = os.urandom(NONCE_BYTES)
        session.nonces = hello[len(MAGIC) :] + own
        session.connection.send(MAGIC + own + bytes([self._secret is not None]))

    def _admit(self, session: _Session) -> None:
        if self._secret is not None:
            claimed = session.take(MAC_BYTES)
            if claimed is None:
                return
            if not hmac.compare_digest(claimed, proof(self._secret, b"client", session.nonces)):
                self._refuse(session, "does not know the secret")
                return
        session.admitted = True
        self._queue.append(session)
        self._next_turn()

    def _next_turn(self) -> None:
        while self._turn is None and self._queue:
            session = self._queue.popleft()
            if session.connection not in self._sessions:
                continue
            self._turn = session
            session.deadline = time.monotonic() + TURN_S
            with contextlib.suppress(OSError):
                session.connection.send(b"G")

    def _answer(self, session: _Session, received_ns: int) -> None:
        while (message := session.take(_NUMBER.size)) is not None:
            (number,) = _NUMBER.unpack(message)
            if number == LAST:
                answers = bytes(session.answers)
                key = self._secret or b""
                session.connection.send(proof(key, b"server", session.nonces, answers))
                self.served += 1
                self._drop(session)
                return
            answer = _ANSWER.pack(number, received_ns, self._clock())
            session.connection.send(answer)
            session.answers += answer
            session.deadline = time.monotonic() + TURN_S

    def _refuse(self, session: _Session, reason: str) -> None:
        self.refused += 1
        warn_once("clock server", f"the clock server turned a client away: it {reason}")
        self._drop(session)

    def _drop_the_late(self) -> None:
        now = time.monotonic()
        if self._turn is not None and now > self._turn.deadline:
            self._drop(self._turn)
        for session in list(self._sessions.values()):
            if not session.admitted and now > session.deadline:
                self._drop(session)

    def _drop(self, session: _Session) -> None:
        if self._sessions.pop(session.connection, None) is None:
            return
        self._selector.unregister(session.connection)
        session.connection.close()
        if session is self._turn:
            self._turn = None
            self._next_turn()


# --- who asks ---


def measure(
    address: tuple[str, int],
    *,
    secret: bytes | None = None,
    rounds: int = 16,
    timeout_s: float = 10.0,
    clock: Clock = time.time_ns,
) -> ClockOffset:
    """The offset of the server's clock against `clock`, by `rounds` exchanges in one session.

    timeout_s: for all of it, the wait for a turn included.

    OSError (TimeoutError among them) when the server does not answer, ClockSyncError when it is
    none of ours, refuses, or was tampered with.
    """
    deadline = time.monotonic() + timeout_s
    with socket.create_connection(address, timeout=timeout_s) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(connection, deadline)
        nonces = _introduce(link, secret)
        if link.receive(1) != b"G":
            raise ClockSyncError(f"{address[0]} port {address[1]} answered what it should not")
        exchanges, answers = _exchange(link, rounds, clock)
        connection.sendall(_NUMBER.pack(LAST))
        claimed = link.receive(MAC_BYTES)
    if not hmac.compare_digest(claimed, proof(secret or b"", b"server", nonces, answers)):
        raise ClockSyncError(f"the answers of {address[0]} port {address[1]} were changed")
    return estimate(exchanges)


class _Link:
    """A connection that is read to a deadline."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection = connection
        self.deadline = deadline

    def receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the clock server did not answer in time")
            self.connection.settimeout(left)
            part = self.connection.recv(count - len(data))
            if not part:
                raise ClockSyncError(
                    "the other side ended the session: it is no clock server, or refuses this "
                    "client (wrong secret?)"
                )
            data += part
        return data


def _introduce(link: _Link, secret: bytes | None) -> bytes:
    """Says who we are and looks who is there; both nonces."""
    own = os.urandom(NONCE_BYTES)
    link.connection.sendall(MAGIC + own)
    greeting = link.receive(HELLO_BYTES + 1)
    if not greeting.startswith(MAGIC):
        raise ClockSyncError(f"no clock server: it answered {greeting[:16]!r}")
    wants_secret = bool(greeting[-1])
    if wants_secret != (secret is not None):
        raise ClockSyncError(
            "the clock server wants a secret" if wants_secret else "the clock server has no secret"
        )
    nonces = own + greeting[len(MAGIC) : -1]
    if secret is not None:
        link.connection.sendall(proof(secret, b"client", nonces))
    return nonces


def _exchange(link: _Link, rounds: int, clock: Clock) -> tuple[list[Exchange], bytes]:
    exchanges = []
    answers = bytearray()
    for number in range(rounds):
        sent_ns = clock()
        link.connection.sendall(_NUMBER.pack(number))
        answer = link.receive(_ANSWER.size)
        returned_ns = clock()
        echo, received_ns, answered_ns = _ANSWER.unpack(answer)
        if echo != number:
            raise ClockSyncError("the clock server answered another exchange")
        exchanges.append(Exchange(sent_ns, received_ns, answered_ns, returned_ns))
        answers += answer
    return exchanges, bytes(answers)
