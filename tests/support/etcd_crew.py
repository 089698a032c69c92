"""Processes that wait at barriers when they are told to, and say what came of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .ranks import ROOT

# Runs before a program's barriers: on a busy machine etcd may take long to answer, which must not
# count as an etcd that is not there, and ranks that live may take long to answer a call.
PATIENCE = """
from my_utils.cluster.etcd import barrier, client
client.Connection._limit = lambda self: 60.0
barrier.RESPONSE_S = 20.0
"""
PROGRAM = f"""
import ctypes, json, random, sys, time
ctypes.CDLL(None).prctl(1, 9)  # die with the parent
{PATIENCE}
from my_utils.etcd_utils import EtcdBarrierError, etcd_barrier
print("ready", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    barrier.RESPONSE_S = order.pop("response_s", 20.0)
    times = []
    try:
        for pause_s in order.pop("pauses", [0]):
            time.sleep(pause_s)
            times.append([time.monotonic(), None])
            etcd_barrier(**order)
            times[-1][1] = time.monotonic()
        found = dict(result="passed")
    except EtcdBarrierError as error:
        found = dict(result=type(error).__name__, text=str(error), missing=error.missing)
        found["count"] = error.missing_count
    print(json.dumps(dict(**found, times=times)), flush=True)
"""
WAIT_S = 90.0


class Worker:
    """One process; `order` makes it wait at a barrier, `answer` is what it says then."""

    def __init__(self, folder: Path) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONPATH": path},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.answers: list[dict[str, Any]] = []
        self.ready = threading.Event()
        self.orders = 0  # not answered yet
        self.came = threading.Condition()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.readline()
        self.ready.set()
        for line in self.process.stdout:
            with self.came:
                self.answers.append(json.loads(line))
                self.came.notify_all()

    def order(self, **arguments: Any) -> None:
        self.orders += 1
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(arguments) + "\n")
        self.process.stdin.flush()

    def has_answered(self) -> bool:
        with self.came:
            return bool(self.answers)

    def answer(self) -> dict[str, Any]:
        with self.came:
            assert self.came.wait_for(lambda: bool(self.answers), WAIT_S), "no answer in time"
            self.orders -= 1
            return self.answers.pop(0)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.thread.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Crew:
    """Workers by rank. Those that a test killed are there again when they are next needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers: dict[int, Worker] = {}

    def __getitem__(self, rank: int) -> Worker:
        if rank not in self.workers:
            self.workers[rank] = Worker(self.folder)
        return self.workers[rank]

    def come(self, ranks: Iterable[int], **arguments: Any) -> None:
        for rank in ranks:
            self[rank].order(rank=rank, **arguments)

    def answers(self, ranks: Iterable[int]) -> list[dict[str, Any]]:
        return [self[rank].answer() for rank in ranks]

    def results(self, ranks: Iterable[int]) -> set[str]:
        return {answer["result"] for answer in self.answers(ranks)}

    def kill(self, *ranks: int) -> None:
        for rank in ranks:
            self.workers.pop(rank).kill()

    def dismiss_the_busy(self) -> None:
        """Ends the workers of a test that failed, which still wait or were not asked."""
        self.kill(*[rank for rank, worker in self.workers.items() if worker.orders])

    def stop(self, rank: int) -> None:
        self[rank].send(signal.SIGSTOP)
        os.waitid(os.P_PID, self[rank].process.pid, os.WSTOPPED)

    def go_on(self, rank: int) -> None:
        self[rank].send(signal.SIGCONT)

    def end(self) -> None:
        self.kill(*list(self.workers))
