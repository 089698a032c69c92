"""Compares clocks over TCP: the client of the server in `server`.

A session, all numbers big-endian:

    client   MAGIC (8 bytes), nonce (16)
    server   MAGIC, nonce (16), 1 when it has a secret, else 0 (1)
    client   HMAC-SHA256 of "client" and both nonces under the secret (32); only if it has one
    server   "G" when it is this client's turn
    client   number of the exchange (8)                                  } as often as
    server   the same number, received_ns (8), answered_ns (8), and the } the client likes
             bounds of what its clock was ahead of its monotonic one (8, 8)
    client   LAST (8)
    server   HMAC-SHA256 of "server", both nonces and all its answers (32)

A few clients have their turn at a time, so that they hardly delay one another inside an exchange. A
turn ends with the session, or when the client is silent for too long. The last message proves that
nobody changed the figures on the way. Without a secret it is computed with an empty key, and finds
transmission errors only. A secret keeps strangers out. It does not hide the time.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import time
from collections.abc import Sequence
from socket import create_connection
from typing import Any

from .offset import ClockOffset, ClockSyncError, Exchange, estimate
from .steady import Clock, Reading, read, slacks

MAGIC = b"myclock2"
LAST = 2**64 - 1
NONCE_BYTES = 16
MAC_BYTES = 32
HELLO_BYTES = len(MAGIC) + NONCE_BYTES
ROUNDS_MAX = 4096  # in a session
NUMBER = struct.Struct(">Q")
ANSWER = struct.Struct(">QQQqq")


def proof(secret: bytes, who: bytes, nonces: bytes, answers: bytes = b"") -> bytes:
    """The HMAC of this session, which only a holder of the secret can compute."""
    return hmac.digest(secret, who + nonces + answers, hashlib.sha256)


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

    OSError (such as TimeoutError) when the server does not respond, ClockSyncError when it is
    none of ours, refuses, or was tampered with.
    """
    deadline = time.monotonic() + timeout_s
    with create_connection(address, timeout=timeout_s) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(connection, deadline)
        nonces = _introduce(link, secret)
        if link.receive(1) != b"G":
            raise ClockSyncError(f"{address[0]} port {address[1]} sent an invalid answer")
        messages, answers = _exchange(link, rounds, clock)
        connection.sendall(NUMBER.pack(LAST))
        claimed = link.receive(MAC_BYTES)
    if not hmac.compare_digest(claimed, proof(secret or b"", b"server", nonces, answers)):
        raise ClockSyncError(f"the answers of {address[0]} port {address[1]} were changed")
    return estimate(exchanges_of(messages))


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
                    "the other side ended the session: it is not a clock server, or refuses this "
                    "client (wrong secret?)"
                )
            data += part
        return data


def _introduce(link: _Link, secret: bytes | None) -> bytes:
    """Sends our greeting and checks the server's; returns both nonces."""
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


def _exchange(link: _Link, rounds: int, clock: Clock) -> tuple[list[Message], bytes]:
    messages: list[Message] = []
    answers = bytearray()
    for number in range(rounds):
        sent = read(clock)
        link.connection.sendall(NUMBER.pack(number))
        answer = link.receive(ANSWER.size)
        returned = read(clock)
        echo, *theirs = ANSWER.unpack(answer)
        if echo != number:
            raise ClockSyncError("the clock server answered another exchange")
        messages.append((sent, returned, theirs))
        answers += answer
    return messages, bytes(answers)


# Sent, returned, and what the other side says: received, answered, and its bounds.
Message = tuple[Reading, Reading, list[int]]


def exchanges_of(messages: Sequence[Message]) -> list[Exchange]:
    """Exchanges whose slack covers what their clocks may have been set by. ClockSyncError when one
    was set by more than its readings hide."""
    own = [reading for sent, back, _ in messages for reading in (sent, back)]
    other = [Reading(answered, least, most) for _, _, (_, answered, least, most) in messages]
    here = slacks(own, "this one")
    there = slacks(other, "the other one")
    widths = [max(here[2 * at : 2 * at + 2]) + there[at] for at in range(len(messages))]
    return [
        Exchange(sent.at_ns, theirs[0], theirs[1], back.at_ns, width)
        for (sent, back, theirs), width in zip(messages, widths, strict=True)
    ]


# --- with patience ---


def ask(address: tuple[str, int], retries: int, *, timeout_s: float, **options: Any) -> ClockOffset:
    """The offset of the first attempt that succeeds. Waits for a server that is not up yet."""
    deadline = time.monotonic() + timeout_s
    failed = 0
    while True:
        try:
            return measure(address, timeout_s=timeout_s, **options)
        except ConnectionRefusedError as error:
            if time.monotonic() > deadline:
                raise _unread(address, error) from error
            time.sleep(0.02)
        except (OSError, ClockSyncError) as error:
            failed += 1
            if failed > retries:
                raise _unread(address, error) from error


def _unread(address: tuple[str, int], error: Exception) -> ClockSyncError:
    return ClockSyncError(f"the clock of {address[0]} port {address[1]} could not be read: {error}")
