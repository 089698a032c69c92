"""A server that sends its time to many clients, in separate threads. `client` describes the
protocol."""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import threading
import time

from ...core.arguments import check_integer, check_str
from ...core.public import public
from ...core.reprs import short_repr
from ...core.warnings import warn_once
from .client import ANSWER, LAST, MAC_BYTES, MAGIC, NONCE_BYTES, NUMBER, ROUNDS_MAX, proof
from .steady import Clock, make_answer, read

PORT_MAX = 65535
TURNS = 8  # clients that are served during the travel time of a message
SESSIONS_MAX = 512  # descriptors and threads that the process can spare
TURN_S = 2.0  # how long a client whose turn it is may be silent
PAUSE_S = 0.02  # after which it delays nobody: the next one has a turn in parallel
HELLO_S = 10.0  # how long one may take to say who it is


class _Refused(Exception):
    """A client that is turned away, and why."""


@public("my_utils.clockSyncUtils")
class ClockServer:
    """Sends its time to clients, in separate threads.

    host: the address to listen at; loopback by default. port: 0 takes a free one.
    secret: clients must know it; None lets everybody ask.
    clock: the time in ns, CLOCK_REALTIME by default.

    TypeError and ValueError for a wrong port, and OSError when it cannot listen at the address.
    `served` and `refused` count sessions. `close`
    ends the threads; a `with` block calls it. Thread-safe.

    >>> from my_utils.cluster.clock_sync.client import measure
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
        check_str("host", host)
        check_integer("port", port, 0, PORT_MAX)
        self.served = 0
        self.refused = 0
        self._secret = secret
        self._clock = clock
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._listener = socket.create_server(address[:2], family=family, backlog=4096)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._turns = threading.Semaphore(TURNS)
        self._sessions: set[_Session] = set()
        self._changed = threading.Condition()  # guards the sessions and the counts
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="my_utils clock", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return short_repr(self, "address", "served", "refused")

    def __enter__(self) -> ClockServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the threads, and the sessions with them. May be called again."""
        self._closed = True
        if self._thread.is_alive():  # not in a forked child, which shares the listener
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # which ends `accept`
            self._thread.join()

    def _run(self) -> None:
        with self._listener:
            while True:
                try:
                    connection, _ = self._listener.accept()
                    self._begin(_Session(connection))
                except (OSError, RuntimeError):
                    if self._closed:
                        break
                    self._drop_the_silent()  # there are no more descriptors or threads
                    time.sleep(PAUSE_S)
        with self._changed:
            for session in self._sessions:
                session.end()
            self._changed.wait_for(lambda: not self._sessions)

    def _begin(self, session: _Session) -> None:
        with self._changed:
            while len(self._sessions) >= SESSIONS_MAX and not self._closed:
                self._drop_the_silent()
                self._changed.wait(PAUSE_S)
            threading.Thread(
                target=self._serve, args=(session,), name="my_utils clock", daemon=True
            ).start()
            self._sessions.add(session)

    def _drop_the_silent(self) -> None:
        """Drops the client that has said nothing for longest, of those that are asked to speak: a
        flood of them would keep others out until each has had its time."""
        before = time.monotonic() - PAUSE_S
        with self._changed:
            silent = [one for one in self._sessions if not one.waits and one.heard < before]
        if silent:
            min(silent, key=lambda session: session.heard).end()

    # --- one client ---

    def _serve(self, session: _Session) -> None:
        try:
            nonces = self._introduce(session)
            session.wait_for_turn(self._turns)
            self._answer(session, nonces)
        except _Refused as reason:
            warn_once("clock server", f"the clock server turned a client away: it {reason}")
            with self._changed:
                self.refused += 1
        except OSError:
            pass  # it has left, or was silent for too long
        finally:
            session.end_turn()
            with self._changed:
                session.connection.close()
                self._sessions.discard(session)
                self._changed.notify_all()

    def _introduce(self, session: _Session) -> bytes:
        """Both nonces, once the client has said who it is."""
        if session.receive(len(MAGIC)) != MAGIC:
            raise _Refused("speaks another protocol")
        own = os.urandom(NONCE_BYTES)
        nonces = session.receive(NONCE_BYTES) + own
        session.connection.sendall(MAGIC + own + bytes([self._secret is not None]))
        if self._secret is not None:
            claimed = session.receive(MAC_BYTES)
            if not hmac.compare_digest(claimed, proof(self._secret, b"client", nonces)):
                raise _Refused("does not know the secret")
        return nonces

    def _answer(self, session: _Session, nonces: bytes) -> None:
        answers = bytearray()
        while True:
            session.deadline = time.monotonic() + TURN_S
            (number,) = NUMBER.unpack(session.receive(NUMBER.size))
            received = read(self._clock)
            if number == LAST:
                break
            if len(answers) >= ROUNDS_MAX * ANSWER.size:
                raise _Refused(f"wants more than {ROUNDS_MAX} exchanges")
            answer = ANSWER.pack(*make_answer(number, received, self._clock))
            session.connection.sendall(answer)
            answers += answer
        session.connection.sendall(proof(self._secret or b"", b"server", nonces, bytes(answers)))
        with self._changed:
            self.served += 1


class _Session:
    """One client.

    heard: when it last sent something. deadline: how long it may be silent. waits: whether it waits
    for its turn.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.heard = time.monotonic()
        self.deadline = self.heard + HELLO_S
        self.waits = False
        self._turns: threading.Semaphore | None = None  # while it has a turn that counts

    def wait_for_turn(self, turns: threading.Semaphore) -> None:
        self.waits = True
        turns.acquire()
        self._turns = turns
        self.waits = False
        self.heard = time.monotonic()
        self.connection.settimeout(PAUSE_S)
        self.connection.sendall(b"G")

    def end_turn(self) -> None:
        """Lets the next client begin, as this one has ended, or says nothing."""
        turns, self._turns = self._turns, None
        if turns is not None:
            turns.release()

    def receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._receive_some(count - len(data))
            if not part:
                raise ConnectionError("the client has left")
            data += part
            self.heard = time.monotonic()
        return data

    def _receive_some(self, most: int) -> bytes:
        if self._turns is not None:
            try:
                return self.connection.recv(most)
            except TimeoutError:
                self.end_turn()
        self.connection.settimeout(max(0.0, self.deadline - time.monotonic()))
        return self.connection.recv(most)

    def end(self) -> None:
        """Makes its thread end, which may wait for it."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
