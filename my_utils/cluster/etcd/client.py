"""Calls to an etcd cluster, through any of its endpoints that answers.

They go through the client of `etcd-sdk-python` (imported as pyetcd). It could choose among several
endpoints, but would keep its channels, which wait longer after each failure, and its token, which
expires and ends when etcd restarts. So each client has one endpoint: a call that fails because of
it raises `Unreachable`, and the next call goes to the next endpoint with a new client.

One thread makes the calls of a connection; the client has another for the watch, which fills a
queue.
"""

from __future__ import annotations

import functools
import math
import os
import queue
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...core.extras import require
from ...core.trusted_open import open_filled_or_pipe

# Pings find a dead peer. etcd closes connections that ping more often than every 5 s.
_CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_receive_message_length", -1),  # the members of a large job
    ("grpc.use_local_subchannel_pool", 1),  # a new channel connects at once, whatever failed before
)
# A member that is cut off from the others says so, rather than keep its watchers waiting.
_NEEDS_LEADER = (("hasleader", "true"),)
_LEAST_CALL_S = 1.0


class Unreachable(Exception):
    """The endpoint does not answer, or cannot serve now; another or a later call may."""


class Refused(Exception):
    """etcd refuses the request: credentials, permissions, or the server is not etcd."""


class Lost(Exception):
    """A lease has ended, or what was written is gone: begin anew."""


class Interrupted(Exception):
    """The watches have ended, as the token has, or etcd keeps no events before `revision` any
    more: begin them anew."""

    def __init__(self, revision: int = 0) -> None:
        super().__init__(revision)
        self.revision = revision


@dataclass(frozen=True)
class Where:
    """An etcd, and how to speak to it: "host:port" of each endpoint; user and password both or
    none.

    secure: whether to use TLS. ca_cert, cert_cert, cert_key: paths of PEM files, that of the
    authority that signed the server's certificate (None for the system's), and those of this side's
    certificate and key (both or none).
    """

    endpoints: tuple[str, ...]
    secure: bool = False
    ca_cert: str | None = None
    cert_cert: str | None = None
    cert_key: str | None = None
    user: str | None = None
    password: str | None = None


class _Fork:
    """Whether this process is the copy of one in which gRPC was loaded."""

    of_grpc = False


def _note_fork() -> None:
    _Fork.of_grpc = _Fork.of_grpc or "grpc" in sys.modules


os.register_at_fork(after_in_child=_note_fork)


def is_safe_here() -> bool:
    """False in a forked child of a process that had loaded gRPC: calls may hang there forever."""
    return not _Fork.of_grpc


class Connection:
    """A client of an etcd.

    call_s: how long one call may take. deadline: a moment of `time.monotonic()` from which on calls
    are given a second only.
    """

    def __init__(self, where: Where, *, call_s: float) -> None:
        # pyetcd needs grpcio and protobuf, which come with it in the extra.
        self.rpc: Any = require("pyetcd.etcdrpc", "etcd_barrier")
        self._pyetcd: Any = require("pyetcd", "etcd_barrier")
        self._grpc: Any = require("grpc", "etcd_barrier")
        self._where = where
        self._call_s = call_s
        self.deadline = math.inf
        self._credentials: Any = None
        if where.secure:
            self._credentials = self._grpc.ssl_channel_credentials(
                _read(where.ca_cert), _read(where.cert_key), _read(where.cert_cert)
            )
        self._turn = secrets.randbelow(len(where.endpoints))  # clients spread over the cluster
        self._client: Any = None
        self._changes: queue.SimpleQueue[Any] = queue.SimpleQueue()  # of the watches

    @property
    def endpoint(self) -> str:
        """The endpoint of the next call."""
        return self._where.endpoints[self._turn % len(self._where.endpoints)]

    def close(self) -> None:
        """Ends the watches too."""
        client, self._client = self._client, None
        self._changes = queue.SimpleQueue()
        if client is not None:
            client.close()

    # --- calls ---

    def transaction(self, compare: list[Any], success: list[Any]) -> Any:
        """Does all of `success` if all of `compare` hold; the response says `succeeded`."""
        request = self.rpc.TxnRequest(compare=compare, success=success)
        # The transactions of the client cannot count keys.
        return self._call(lambda client: client.kvstub.Txn(
            request, client.timeout, metadata=client.metadata
        ))  # fmt: skip

    def grant(self, ttl_s: int) -> tuple[int, int]:
        """A new lease: its number, and the seconds that etcd gives it."""
        lease = self._call(lambda client: client.lease(ttl_s))
        return int(lease.id), int(lease.ttl)

    def keep_alive(self, lease: int) -> None:
        """Starts the lease's time again; raises Lost when it has ended."""
        response = self._call(lambda client: next(client.refresh_lease(lease), None))
        if response is None:
            raise self.lost("the stream ended without an answer")
        if response.TTL <= 0:
            raise Lost(f"lease {lease} has ended")

    def revoke(self, lease: int) -> None:
        """Ends the lease, and deletes the keys under it."""
        try:
            self._call(lambda client: client.revoke_lease(lease))
        except Interrupted:
            self._call(lambda client: client.revoke_lease(lease))

    def watch(self, **where: Any) -> None:
        """From its return on `events` has what happens there, until `close`. where: arguments of
        pyetcd's `add_watch_callback`. Events of the past come too with a `start_revision`, but
        etcd is slow to bring them."""
        self._call(lambda client: client.add_watch_callback(callback=self._changes.put, **where))

    def events(self, timeout_s: float) -> Any:
        """The next events of the watches; None when there were none in time."""
        try:
            found = self._changes.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None
        if isinstance(found, self._pyetcd.exceptions.RevisionCompactedError):
            self.close()
            raise Interrupted(int(found.compacted_revision))
        if found is None or isinstance(found, Exception):
            details = getattr(found, "details", lambda: "the watch has ended")
            raise self.lost(str(details()))
        return found.events

    def lost(self, why: str) -> Unreachable:
        """Leaves the endpoint for the next one; the error to raise."""
        where = self.endpoint
        self.close()
        self._turn += 1
        return Unreachable(f"{where}: {why}")

    # --- how ---

    def _call(self, function: Callable[[Any], Any]) -> Any:
        """What the function returns for the client."""
        is_new = self._client is None
        if is_new:
            self._client = self._connect()
        self._client.timeout = self._limit()
        try:
            return function(self._client)
        except (self._grpc.RpcError, self._pyetcd.Etcd3Exception) as error:
            # pyetcd's errors hide those of gRPC. A watch that does not begin in time has none.
            cause = error if isinstance(error, self._grpc.RpcError) else error.__context__
            if not isinstance(cause, self._grpc.RpcError):
                raise self.lost("the watch did not begin in time") from error
            if not is_new and self._token_has_ended(cause):
                self.close()
                raise Interrupted from error
            raise self._translated(cause) from error

    def _connect(self) -> Any:
        host, _, port = self.endpoint.rpartition(":")
        endpoint = self._pyetcd.Endpoint(
            host, port, self._where.secure, self._credentials, 0, _CHANNEL_OPTIONS
        )
        make = functools.partial(self._pyetcd.MultiEndpointEtcd3Client, [endpoint], self._limit())
        try:
            client = make(self._where.user, self._where.password)
        except self._grpc.RpcError as error:
            if error.code() is not self._grpc.StatusCode.FAILED_PRECONDITION:
                endpoint.close()
                raise self._translated(error) from error
            client = make()  # etcd does not ask who it is
        client.metadata = (*_NEEDS_LEADER, *(client.metadata or ()))
        client.call_credentials = None  # the token again, which gRPC refuses to send without TLS
        return client

    def _limit(self) -> float:
        return min(self._call_s, max(_LEAST_CALL_S, self.deadline - time.monotonic()))

    def _token_has_ended(self, error: Any) -> bool:
        is_unknown = error.code() is self._grpc.StatusCode.UNAUTHENTICATED
        return self._where.user is not None and (
            is_unknown or "auth store is old" in str(error.details())
        )

    def _translated(self, error: Any) -> Exception:
        codes = self._grpc.StatusCode
        code, details = error.code(), str(error.details())
        if code is codes.NOT_FOUND and "lease" in details:
            return Lost(details)
        refusals = (
            codes.PERMISSION_DENIED,
            codes.UNAUTHENTICATED,
            codes.INVALID_ARGUMENT,
            codes.UNIMPLEMENTED,
        )
        if code in refusals:
            return Refused(f"{self.endpoint}: {details}")
        return self.lost(f"{details} ({code.name})")


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    with open(path, "rb", opener=open_filled_or_pipe) as file:
        return file.read()
