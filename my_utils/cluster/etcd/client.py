"""Calls to an etcd cluster, through any of its endpoints that answers.

The messages and stubs are those of `etcd-sdk-python` (imported as pyetcd). The channels are made
here, because a barrier must survive the loss of an endpoint. A call that fails because of its
endpoint raises `Unreachable`, and the next call goes to the next endpoint over a new channel.
Tokens are requested again when they expire, as they do when etcd restarts.

One thread makes the calls of a connection; a watch is read by a separate thread.
"""

from __future__ import annotations

import math
import os
import queue
import secrets
import sys
import threading
import time
from collections.abc import Iterator
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
        self._channel: Any = None
        self._token: str | None = None

    @property
    def endpoint(self) -> str:
        """The endpoint of the next call."""
        return self._where.endpoints[self._turn % len(self._where.endpoints)]

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    # --- calls ---

    def transaction(self, compare: list[Any], success: list[Any]) -> Any:
        """Does all of `success` if all of `compare` hold; the response says `succeeded`."""
        request = self.rpc.TxnRequest(compare=compare, success=success)
        return self._call("KV", "Txn", request)

    def grant(self, ttl_s: int) -> tuple[int, int]:
        """A new lease: its number, and the seconds that etcd gives it."""
        response = self._call("Lease", "LeaseGrant", self.rpc.LeaseGrantRequest(TTL=ttl_s))
        return int(response.ID), int(response.TTL)

    def keep_alive(self, lease: int) -> None:
        """Starts the lease's time again; raises Lost when it has ended."""
        request = self.rpc.LeaseKeepAliveRequest(ID=lease)
        if self._call("Lease", "LeaseKeepAlive", request, stream=True).TTL <= 0:
            raise Lost(f"lease {lease} has ended")

    def revoke(self, lease: int) -> None:
        """Ends the lease, and deletes the keys under it."""
        self._call("Lease", "LeaseRevoke", self.rpc.LeaseRevokeRequest(ID=lease))

    def watch(self, ranges: list[Any], revision: int) -> Watch:
        """What happens in the ranges, `WatchCreateRequest`s, from `revision` on."""
        for create in ranges:
            create.start_revision = revision
        requests = [self.rpc.WatchRequest(create_request=create) for create in ranges]
        stub = self.rpc.WatchStub(self._open())
        return Watch(stub.Watch, requests, self._metadata())

    def lost(self, why: str) -> Unreachable:
        """Leaves the endpoint for the next one; the error to raise."""
        where = self.endpoint
        self.close()
        self._turn += 1
        self._token = None
        return Unreachable(f"{where}: {why}")

    # --- how ---

    def _open(self) -> Any:
        if self._channel is None:
            options = list(_CHANNEL_OPTIONS)
            if self._credentials is None:
                self._channel = self._grpc.insecure_channel(self.endpoint, options)
            else:
                self._channel = self._grpc.secure_channel(self.endpoint, self._credentials, options)
        return self._channel

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        if self._where.user is None:
            return _NEEDS_LEADER
        if self._token is None:
            self._token = self._authenticate()
        return (*_NEEDS_LEADER, ("token", self._token)) if self._token else _NEEDS_LEADER

    def _authenticate(self) -> str:
        """A token for the user; empty where etcd does not ask for one."""
        request = self.rpc.AuthenticateRequest(name=self._where.user, password=self._where.password)
        stub = self.rpc.AuthStub(self._open())
        try:
            return str(stub.Authenticate(request, self._limit(), metadata=_NEEDS_LEADER).token)
        except self._grpc.RpcError as error:
            if error.code() is self._grpc.StatusCode.FAILED_PRECONDITION:
                return ""
            raise self._translated(error) from error

    def _limit(self) -> float:
        return min(self._call_s, max(_LEAST_CALL_S, self.deadline - time.monotonic()))

    def _call(self, service: str, method: str, request: Any, stream: bool = False) -> Any:
        try:
            return self._call_once(service, method, request, stream)
        except self._grpc.RpcError as error:
            if not self._token or not self._token_has_ended(error):
                raise self._translated(error) from error
        self._token = None
        try:
            return self._call_once(service, method, request, stream)
        except self._grpc.RpcError as error:
            raise self._translated(error) from error

    def _call_once(self, service: str, method: str, request: Any, stream: bool) -> Any:
        metadata = self._metadata()
        stub = getattr(self.rpc, f"{service}Stub")(self._open())
        call = getattr(stub, method)
        if not stream:
            return call(request, self._limit(), metadata=metadata)
        responses = call(iter([request]), self._limit(), metadata=metadata)
        try:
            for response in responses:
                return response
        finally:
            responses.cancel()
        raise self.lost("the stream ended without an answer")

    def _token_has_ended(self, error: Any) -> bool:
        codes = self._grpc.StatusCode
        details = str(error.details())
        return error.code() is codes.UNAUTHENTICATED or (
            error.code() is codes.INVALID_ARGUMENT and "auth store is old" in details
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


class Watch:
    """Responses of a watch, in the order of their coming, read by a thread. A `with` block ends it.

    `get` gives the next response, None when there was none in time, and EOFError says that the
    stream has ended.
    """

    def __init__(self, method: Any, requests: list[Any], metadata: Any) -> None:
        self._responses: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._stream = method(self._send(requests), metadata=metadata)
        self._thread = threading.Thread(target=self._read, name="my_utils etcd watch", daemon=True)
        self._thread.start()

    def _send(self, requests: list[Any]) -> Iterator[Any]:
        yield from requests
        self._closed.wait()  # the stream stays open in both directions

    def _read(self) -> None:
        why = "the watch has ended"
        try:
            for response in self._stream:
                self._responses.put(response)
        except Exception as error:  # grpc's, or of a channel that was closed meanwhile
            why = str(error.details() if hasattr(error, "details") else error)
        self._responses.put(EOFError(why))

    def get(self, timeout_s: float) -> Any:
        try:
            response = self._responses.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None
        if isinstance(response, EOFError):
            raise response
        return response

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._stream.cancel()
        self._thread.join()


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    with open(path, "rb", opener=open_filled_or_pipe) as file:
        return file.read()
