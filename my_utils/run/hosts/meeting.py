"""A rank's part: it agrees with the others on a meeting point of their parents, and tells its own.

A rank proposes its parent: it opens a port for it, at the address from which this host reaches the
store, and hands it over. Nobody waits for anybody.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from ipaddress import ip_address
from pathlib import Path

from ...core.environment import read_switch
from ..agreement import run_store
from ..environment import HOSTS, REPORT, passed_on

KEY = "hosts"
SOCKET = "hosts"  # beside the file of reports
BACKLOG = 1024
MESSAGE_MAX = 4096
ANYWHERE = "192.0.2.1"  # an address of no host, to which the default route leads


def socket_path(report: str | os.PathLike[str]) -> str:
    """Where a parent hears of the meeting point. report: the file of reports."""
    return str(Path(report).with_name(SOCKET))


def join_meeting(rank: int, world_size: int) -> None:
    """Called once in one of several ranks that has told its parent where it writes. One round trip
    to the store; nothing where there is no parent, or one host only. Raises RuntimeError where the
    store fails, and OSError where the parent has gone."""
    report = passed_on(REPORT)
    on_one_host = os.environ.get("LOCAL_WORLD_SIZE") == str(world_size)
    if not report or on_one_host or not read_switch(HOSTS, default=True):
        return
    path = socket_path(report)
    if not os.path.exists(path):
        return
    store = run_store()
    if store is None:
        return
    with contextlib.ExitStack() as stack:
        listener = _listener()
        own = ""
        if listener is not None:
            stack.enter_context(listener)
            host, port = listener.getsockname()[:2]
            own = json.dumps({"host": host, "port": port, "token": secrets.token_hex(32)})
        agreed = bytes(store.compare_set(KEY, "", own)).decode()
        if not agreed:
            return
        message = json.dumps({"rank": rank, "world_size": world_size, "meeting": agreed})
        own_port = [listener.fileno()] if listener is not None and agreed == own else []
        _tell(path, message.encode(), own_port)


def _tell(path: str, message: bytes, descriptors: list[int]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as parent:
        parent.setblocking(False)
        parent.connect(path)
        socket.send_fds(parent, [message], descriptors)


def _listener() -> socket.socket | None:
    """At an address of this host that others reach; None where it has none."""
    for target in (os.environ.get("MASTER_ADDR", ""), ANYWHERE):
        with contextlib.suppress(OSError):
            family, *_, address = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)  # sends nothing: it chooses a route
                own = probe.getsockname()[0]
            if not ip_address(own.partition("%")[0]).is_loopback:
                return socket.create_server((own, 0), family=family, backlog=BACKLOG)
    return None
