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
from socket import create_connection
from typing import Any

from .offset import ClockOffset, ClockSyncError, estimate
from .steady import Clock, exchange

MAGIC = b"myclock2"
LAST = 2**64 - 1
NONCE_BYTES = 16
MAC_BYTES = 32
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
        nonces = _introduce(connection, deadline, secret)
        if _receive(connection, deadline, 1) != b"G":
            raise ClockSyncError(f"{address[0]} port {address[1]} sent an invalid answer")
        answers = bytearray()

        def one(number: int) -> tuple[int, ...]:
            connection.sendall(NUMBER.pack(number))
            answer = _receive(connection, deadline, ANSWER.size)
            answers.extend(answer)
            return ANSWER.unpack(answer)

        found = exchange(rounds, clock, one)
        connection.sendall(NUMBER.pack(LAST))
        claimed = _receive(connection, deadline, MAC_BYTES)
    if not hmac.compare_digest(claimed, proof(secret or b"", b"server", nonces, bytes(answers))):
        raise ClockSyncError(f"the answers of {address[0]} port {address[1]} were changed")
    return estimate(found)


def _introduce(connection: socket.socket, deadline: float, secret: bytes | None) -> bytes:
    """Sends our greeting and checks the server's; returns both nonces."""
    own = os.urandom(NONCE_BYTES)
    connection.sendall(MAGIC + own)
    greeting = _receive(connection, deadline, len(MAGIC) + NONCE_BYTES + 1)
    if not greeting.startswith(MAGIC):
        raise ClockSyncError(f"no clock server: it answered {greeting[:16]!r}")
    wants_secret = bool(greeting[-1])
    if wants_secret != (secret is not None):
        raise ClockSyncError(
            "the clock server wants a secret" if wants_secret else "the clock server has no secret"
        )
    nonces = own + greeting[len(MAGIC) : -1]
    if secret is not None:
        connection.sendall(proof(secret, b"client", nonces))
    return nonces


def _receive(connection: socket.socket, deadline: float, count: int) -> bytes:
    data = b""
    while len(data) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the clock server did not answer in time")
        connection.settimeout(left)
        part = connection.recv(count - len(data))
        if not part:
            raise ClockSyncError(
                "the other side ended the session: it is not a clock server, or refuses this "
                "client (wrong secret?)"
            )
        data += part
    return data


# --- with patience ---


def ask(address: tuple[str, int], retries: int, *, timeout_s: float, **options: Any) -> ClockOffset:
    """The offset of the first attempt that succeeds. Waits for a server that is not up yet."""
    deadline = time.monotonic() + timeout_s
    failed = 0
    while True:
        try:
            return measure(address, timeout_s=timeout_s, **options)
        except (OSError, ClockSyncError) as error:
            is_down = isinstance(error, ConnectionRefusedError)
            failed += not is_down
            if failed > retries or (is_down and time.monotonic() > deadline):
                raise ClockSyncError(
                    f"the clock of {address[0]} port {address[1]} could not be read: {error}"
                ) from error
            if is_down:
                time.sleep(0.02)
