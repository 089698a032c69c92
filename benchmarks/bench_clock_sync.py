"""The clocks of 10,000 simulated ranks on 1,250 hosts lined up by `ClockSynchronizer`, and what the
out-of-memory flag costs to read.

The ranks are threads of a few processes; each goes through what a rank goes through: torch's store,
then the star around rank 0. The hosts' clocks are wrong by known times, and every message takes a
tenth of a millisecond each way, so that a round trip takes 0.2 ms at least. The time is from the
moment at which all ranks are ready until rank 0 knows that the last one has its answer.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import random
import socket
import statistics
import threading
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Any

from benchmarks.harness import Claim, take_turns
from my_utils.cluster.clock_sync import client as clock_socket
from my_utils.cluster.clock_sync.star import Refresher
from my_utils.cluster.clock_sync.synchronizer import ROUNDS

ONE_WAY_S = 1e-4
RANKS_A_HOST = 8
PROCESSES = 4
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Job:
    """The ranks that the processes play, and where their store is."""

    hosts: int
    port: int

    @property
    def ranks(self) -> int:
        return self.hosts * RANKS_A_HOST

    def host_of(self, rank: int) -> int:
        return rank // RANKS_A_HOST

    def late_ns(self, host: int) -> int:
        """How far the clock of a host is behind that of host 0."""
        return random.Random(host).randrange(-(10**10), 10**10) if host else 0


class FarSocket(socket.socket):
    """A connection on which everything takes `ONE_WAY_S` to arrive."""

    def sendall(self, data: Any, flags: int = 0) -> None:
        time.sleep(ONE_WAY_S)
        super().sendall(data, flags)

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        time.sleep(ONE_WAY_S)
        return data


def far_connection(address: tuple[str, int], timeout: float) -> socket.socket:
    connection = FarSocket(socket.AF_INET, socket.SOCK_STREAM)
    connection.settimeout(timeout)
    connection.connect(address)
    return connection


def line_up(job: Job, store: Any, rank: int) -> tuple[int, float, float]:
    """What one rank does; how wrong it is in ns, the bound of that and the round trip in s."""
    late_ns = job.late_ns(job.host_of(rank))
    refresher = Refresher(
        store,
        rank,
        job.ranks,
        f"host{job.host_of(rank)}",
        ROUNDS,
        lambda: time.time_ns() - late_ns,
    )
    offset = refresher.line_up("127.0.0.1", time.monotonic() + TIMEOUT_S)
    refresher.end()
    return abs(offset.offset_ns - late_ns), offset.error_s, offset.round_trip_s


def play(job: Job, part: int, ready: Barrier, results: Any) -> None:
    """A process with every `PROCESSES`th host, but for rank 0."""
    from torch._C._distributed_c10d import TCPStore

    # PR_SET_TIMERSLACK, 50 us by default: sleeps as long as asked
    ctypes.CDLL(None).prctl(29, 1)
    vars(clock_socket)["create_connection"] = far_connection
    store = TCPStore("127.0.0.1", job.port, is_master=False)
    found: list[tuple[int, float, float]] = []
    begin = threading.Event()

    def play_host(host: int) -> None:
        begin.wait()
        for rank in range(host * RANKS_A_HOST, (host + 1) * RANKS_A_HOST):
            if rank > 0:
                found.append(line_up(job, store, rank))

    threading.stack_size(256 * 1024)
    threads = [
        threading.Thread(target=play_host, args=(host,))
        for host in range(part, job.hosts, PROCESSES)
    ]
    for thread in threads:
        thread.start()
    ready.wait()
    begin.set()
    for thread in threads:
        thread.join()
    results.put(found)


def seconds_to_line_up(hosts: int) -> tuple[float, list[tuple[int, float, float]]]:
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = Job(hosts, store.port)
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(PROCESSES + 1)
    results = context.Queue()
    processes = [
        context.Process(target=play, args=(job, part, ready, results), daemon=True)
        for part in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    ready.wait()
    began = time.perf_counter()
    line_up(job, store, 0)
    took = time.perf_counter() - began
    found = [result for _ in processes for result in results.get(timeout=TIMEOUT_S)]
    for process in processes:
        process.join()
    return took, found


# --- the out-of-memory flag ---


def serve_store(port: Any, over: Any) -> None:
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port.put(store.port)
    over.wait()


def reads_of_the_flag(calls: int, rounds: int) -> dict[str, float]:
    """Median ns of a look at the flag, and of the bare question to a store in another process."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    from my_utils.oom_restore import check_oom_flag

    context = multiprocessing.get_context("spawn")
    port, over = context.Queue(), context.Event()
    server = context.Process(target=serve_store, args=(port, over), daemon=True)
    server.start()
    store = TCPStore("127.0.0.1", port.get(timeout=TIMEOUT_S), is_master=False)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)

    def ours() -> None:
        for _ in range(calls):
            check_oom_flag(agree=False)

    def bare() -> None:
        for _ in range(calls):
            store.check(["x"])

    times = take_turns({"ours": ours, "bare": bare}, calls=calls, rounds=rounds)
    dist.destroy_process_group()
    over.set()
    server.join()
    return times


def run(smoke: bool) -> list[Claim]:
    hosts, turns = (20, 1) if smoke else (1250, 3)
    times, worst = [], 0.0
    for _ in range(turns):
        took, found = seconds_to_line_up(hosts)
        times.append(took)
        worst = max(worst, *(wrong_ns / (error_s * 1e9 + 1) for wrong_ns, error_s, _ in found))
        assert len(found) == hosts * RANKS_A_HOST - 1
    reads = reads_of_the_flag(100, 3) if smoke else reads_of_the_flag(2000, 15)
    ours_us, bare_us = reads["ours"] / 1e3, reads["bare"] / 1e3
    ranks = hosts * RANKS_A_HOST
    return [
        Claim(f"clocks of {ranks} ranks, 0.2 ms there and back", statistics.median(times),
              "ten seconds", 10, "s", 1),
        Claim("their largest error, of its stated bound", worst, "the bound", 1, "", 1),
        Claim("check_oom_flag(agree=False)", ours_us, "100 us", 100, "us", 1),
        Claim("the same", ours_us, "the store's check alone", bare_us, "us", 3),
    ]  # fmt: skip
