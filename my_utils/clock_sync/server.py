"""A server that sends its time to many clients, in a separate thread. `client` describes the
protocol."""

from __future__ import annotations

import contextlib
import hmac
import os
import selectors
import socket
import threading
import time
from collections import deque

from ..common.public import public
from ..common.reprs import short_repr
from ..common.warnings import warn_once
from .client import (
    ANSWER,
    HELLO_BYTES,
    LAST,
    MAC_BYTES,
    MAGIC,
    NONCE_BYTES,
    NUMBER,
    ROUNDS_MAX,
    proof,
)
from .steady import Clock, Reading, read, span

TURNS = 8  # clients that one thread serves during the travel time of a message
SESSIONS_MAX = 512  # descriptors that the process can spare
PENDING_MAX = 1024  # bytes that a client may send without being asked
TURN_S = 2.0  # how long a client whose turn it is may be silent
PAUSE_S = 0.02  # after which it delays nobody: the next one has a turn in parallel
HELLO_S = 10.0  # how long one may take to say who it is


class _Session:
    """One client: its unread bytes, and the state of its session."""

    def __init__(self, connection: socket.socket, now: float) -> None:
        self.connection = connection
        self.pending = bytearray()
        self.nonces = b""
        self.answers = bytearray()
        self.deadline = now + HELLO_S
        self.heard = now
        self.admitted = False

    def take(self, count: int) -> bytes | None:
        """The next `count` bytes, or None while they are not all there."""
        if len(self.pending) < count:
            return None
        taken = bytes(self.pending[:count])
        del self.pending[:count]
        return taken


@public("my_utils.clockSyncUtils")
class ClockServer:
    """Sends its time to clients, in a separate thread.

    host: the address to listen at; loopback by default. port: 0 takes a free one.
    secret: clients must know it; None lets everybody ask.
    clock: the time in ns, CLOCK_REALTIME by default.

    OSError when the address cannot be had. `served` and `refused` count sessions. `close` ends the
    thread; a `with` block calls it. Thread-safe.

    >>> from my_utils.clock_sync.client import measure
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
        self._turns: set[_Session] = set()
        self._slow: set[_Session] = set()  # have a turn, and have been silent for PAUSE_S
        self._accepts = True
        self._next_check = 0.0
        self._thread = threading.Thread(target=self._run, name="my_utils clock", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return short_repr(self, "address", "served", "refused")

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
        """Waits for messages and handles them; False when the server must end."""
        others_wait = self._queue or not self._accepts
        events = self._selector.select(timeout=PAUSE_S if others_wait else TURN_S / 2)
        received = read(self._clock)
        for key, _ in events:
            if key.fileobj is self._woken:
                return False
            if key.fileobj is self._listener:
                self._accept()
            elif (session := self._sessions.get(key.fileobj)) is not None:  # type: ignore[call-overload]
                self._read(session, received)
        self._pass_over_the_slow()
        self._drop_the_late()
        return True

    def _accept(self) -> None:
        """Accepts one client only, so that clients whose turn it is do not wait for many others."""
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it is gone again, or there are no more descriptors
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sessions[connection] = _Session(connection, time.monotonic())
        self._selector.register(connection, selectors.EVENT_READ)
        if len(self._sessions) >= SESSIONS_MAX and not self._make_room():
            self._selector.unregister(self._listener)
            self._accepts = False

    def _make_room(self) -> bool:
        """Drops the client that has said nothing for longest, of those that are asked to speak: a
        flood of them would keep others out until each has had its time."""
        before = time.monotonic() - PAUSE_S
        silent = (
            session
            for session in self._sessions.values()
            if session.heard < before and (session in self._slow or not session.admitted)
        )
        longest = min(silent, key=lambda session: session.heard, default=None)
        if longest is not None:
            self._drop(longest)
        return longest is not None

    def _read(self, session: _Session, received: Reading) -> None:
        try:
            data = session.connection.recv(4096)
            if data:
                session.heard = time.monotonic()
                session.pending += data
                self._go_on(session, received)
                is_there = session.connection in self._sessions
                if is_there and len(session.pending) > PENDING_MAX:
                    self._refuse(session, "sends an unexpected message")
        except OSError:
            data = b""
        if not data:
            self._drop(session)

    def _go_on(self, session: _Session, received: Reading) -> None:
        if not session.nonces:
            self._greet(session)
        if session.nonces and not session.admitted:
            self._admit(session)
        if session in self._turns or session in self._slow:
            self._answer(session, received)

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
        while len(self._turns) < TURNS and self._queue:
            session = self._queue.popleft()
            if session.connection not in self._sessions:
                continue
            self._turns.add(session)
            session.heard = time.monotonic()
            session.deadline = session.heard + TURN_S
            with contextlib.suppress(OSError):
                session.connection.send(b"G")

    def _answer(self, session: _Session, received: Reading) -> None:
        while (message := session.take(NUMBER.size)) is not None:
            (number,) = NUMBER.unpack(message)
            if number == LAST:
                answers = bytes(session.answers)
                key = self._secret or b""
                session.connection.send(proof(key, b"server", session.nonces, answers))
                self.served += 1
                self._drop(session)
                return
            if len(session.answers) >= ROUNDS_MAX * ANSWER.size:
                self._refuse(session, f"wants more than {ROUNDS_MAX} exchanges")
                return
            answered = read(self._clock)
            bounds = span(received, answered)
            answer = ANSWER.pack(number, received.at_ns, answered.at_ns, *bounds)
            session.connection.send(answer)
            session.answers += answer
            session.deadline = time.monotonic() + TURN_S

    def _refuse(self, session: _Session, reason: str) -> None:
        self.refused += 1
        warn_once("clock server", f"the clock server turned a client away: it {reason}")
        self._drop(session)

    def _pass_over_the_slow(self) -> None:
        """Those that say nothing in their turn disturb no measurement, and others wait."""
        before = time.monotonic() - PAUSE_S
        slow = {session for session in self._turns if self._queue and session.heard < before}
        self._turns -= slow
        self._slow |= slow
        if slow:
            self._next_turn()
        if not self._accepts:
            self._make_room()

    def _drop_the_late(self) -> None:
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + TURN_S / 4
        for session in list(self._sessions.values()):
            waits_for_it = session.admitted and session not in self._turns | self._slow
            if now > session.deadline and not waits_for_it:
                self._drop(session)

    def _drop(self, session: _Session) -> None:
        if self._sessions.pop(session.connection, None) is None:
            return
        self._selector.unregister(session.connection)
        session.connection.close()
        self._slow.discard(session)
        if not self._accepts:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._accepts = True
        if session in self._turns:
            self._turns.discard(session)
            self._next_turn()
