"""What NCCL says of the processes of a job: which do not answer it, and which are dead.

A thread of each process of NCCL answers on a local port (`NCCL_RAS_ADDR`), from 2.28.7 on in JSON:
"RAS" in NCCL's user guide, `src/ras/client.cc` and `client_support.cc`. Nothing else of the answer
is used, as counts of calls differ from rank to rank in healthy jobs, too.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from ...core.checked_json import decoded
from ...core.run_files.state import Rank

ADDRESS = "NCCL_RAS_ADDR"
DEFAULT_ADDRESS = "localhost:28028"
TIMEOUT_S = 4.0  # for all of it
COLLECT_S = 1  # in which NCCL hears of other processes
BYTES_MAX = 64 << 20
LINE_MAX = 1024
UNKNOWN_PID = -1
DEAD = "NCCL considers its process dead"
SILENT = "its process does not answer NCCL"

_COMMANDS = (b"CLIENT PROTOCOL 2", b"TIMEOUT %d" % COLLECT_S, b"SET FORMAT json")
_ANSWERS = (b"SERVER PROTOCOL ", b"OK", b"OK")


class _Status(msgspec.Struct):
    unresponsive: bool = False
    considered_dead: bool = False


class _Missing(msgspec.Struct):
    """rank: within the communicator."""

    rank: int
    pid: int
    status: _Status


class _Communicator(msgspec.Struct):
    size: int
    missing_ranks: list[_Missing] = []


class _Report(msgspec.Struct):
    communicators: list[_Communicator] = []


def ask_ras(ranks: Sequence[Rank]) -> dict[int, str]:
    """`DEAD` or `SILENT` by rank; empty where NCCL does not answer in time, or with anything else.

    ranks: of the run. A missing rank is found by its process number, as no other rank's is the
    same; in a communicator of all ranks, by its rank there as well.
    """
    try:
        report = decoded(_status(), _Report)
    except (OSError, ValueError, OverflowError):  # the last one for an invalid port
        return {}
    main = [rank for rank in ranks if rank.worker == 0]
    pids = Counter(rank.pid for rank in main)
    by_pid = {rank.pid: rank.rank for rank in main if pids[rank.pid] == 1}
    pid_of = {rank.rank: rank.pid for rank in main}
    found: dict[int, str] = {}
    for communicator in report.communicators:
        for one in communicator.missing_ranks:
            rank = by_pid.get(one.pid)
            is_of_all = communicator.size == len(main) and one.rank in pid_of
            if rank is None and is_of_all and one.pid in (pid_of[one.rank], UNKNOWN_PID):
                rank = one.rank
            if rank is not None and one.status.considered_dead:
                found[rank] = DEAD
            elif rank is not None and one.status.unresponsive:
                found.setdefault(rank, SILENT)
    return found


def _status() -> bytes:
    """The report as JSON. OSError and ValueError where there is none."""
    host, _, port = os.environ.get(ADDRESS, DEFAULT_ADDRESS).rpartition(":")
    end_s = time.monotonic() + TIMEOUT_S
    with socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S) as connection:
        for command, answer in zip(_COMMANDS, _ANSWERS, strict=True):
            connection.sendall(command + b"\n")
            line = _read(connection, end_s, LINE_MAX, until_line=True)
            if not line.startswith(answer):
                raise ValueError(f"NCCL answered {line!r} to {command!r}")
        connection.sendall(b"STATUS\n")
        return _read(connection, end_s, BYTES_MAX, until_line=False)


def _read(connection: socket.socket, end_s: float, most: int, *, until_line: bool) -> bytes:
    """A line, or all until the other side ends."""
    data = bytearray()
    while not (until_line and data.endswith(b"\n")):
        left_s = end_s - time.monotonic()
        if left_s <= 0 or len(data) > most:
            raise TimeoutError("NCCL answers too slowly, or too much")
        connection.settimeout(left_s)
        part = connection.recv(1 << 16)
        if not part:
            break
        data += part
    return bytes(data)
