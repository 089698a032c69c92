"""Events in a running training, made from outside, and when they were, by this process's clock."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...conftest import ROOT

TRAINING = Path(__file__).with_name("event_training.py")
BATCH_S = 0.010
SLOW_S = 0.014
LOOK_S = 0.005
WARM = 0.02  # of the run, before which nothing is done
HOG = """
import os, random, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
while True:
    end_s = time.monotonic() + random.uniform(0.002, 0.004)
    while time.monotonic() < end_s:
        pass
    time.sleep(random.uniform(0.002, 0.004))
"""


@dataclass
class Truth:
    """moments: when a part began, ns of CLOCK_MONOTONIC. ranks: by part those that are slow in it.
    period: the moments of what comes back, and its ranks, () for all."""

    moments: list[int] = field(default_factory=list)
    ranks: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    drift: bool = False
    period: tuple[list[int], tuple[int, ...]] | None = None
    restarted: bool = False

    def part(self, *ranks: int) -> None:
        """Begins now."""
        self.moments.append(time.monotonic_ns())
        self.ranks.append(ranks)


class Batches(socketserver.ThreadingUnixStreamServer):
    """Answers each rank after `delays_s[rank]`. late_s: how much later than that, answer by
    answer: what the machine takes of a thread that goes before all others."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, path: Path, ranks: int) -> None:
        super().__init__(str(path), _Answer)
        self.delays_s = [BATCH_S] * ranks
        self.late_s: list[float] = []


def go_before_others() -> None:
    """This thread, not those that it starts. A thread that waits for a core must not have the GIL
    that another one of this process needs."""
    os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


class _Answer(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Batches)
        (rank,) = self.request.recv(1)
        go_before_others()
        with contextlib.suppress(OSError):
            while True:
                delay_s, begin_s = self.server.delays_s[rank], time.monotonic()
                time.sleep(delay_s)
                self.server.late_s.append(time.monotonic() - begin_s - delay_s)
                self.request.sendall(b"!")
                if not self.request.recv(1):
                    return


class Training:
    """`my_utils run` of so many ranks and steps, into `folder/logs`."""

    def __init__(self, folder: Path, ranks: int, steps: int, work: str, meets: str) -> None:
        self.folder, self.ranks, self.steps = folder, ranks, steps
        self.stack = contextlib.ExitStack()
        shape = (ranks, steps + 1)
        self.begins = np.memmap(folder / "begins", np.int64, "w+", shape=shape)
        # A path of a socket has at most 107 bytes.
        short = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.batches = Batches(Path(short) / "batches", ranks)
        (folder / "batches").symlink_to(Path(short) / "batches")
        threading.Thread(target=self.batches.serve_forever, daemon=True).start()
        self.stack.callback(self.batches.server_close)
        self.stack.callback(self.batches.shutdown)
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "my_utils", "run", "--quiet", "-o", "logs", "--",
                sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1",
                "--monitor-interval=0.2", f"--nproc-per-node={ranks}", str(TRAINING), str(folder),
                str(steps), work, meets,
            ],
            cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL, stderr=(folder / "errors").open("w"),
        )  # fmt: skip

    def __enter__(self) -> Training:
        go_before_others()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()  # where it has not ended by itself
        self.process.wait()
        self.stack.close()
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))

    def step(self) -> int:
        """The last one that all ranks have begun."""
        return int(np.count_nonzero(self.begins[:, 1:], axis=1).min()) - 1

    def wait_for(self, share: float) -> None:
        """Until so much of the run is over."""
        self.wait_until(lambda: self.step() >= share * self.steps)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            assert self.process.poll() is None, self.errors()
            time.sleep(LOOK_S)

    def pid(self, rank: int) -> int:
        """Of the process, and of its thread that trains."""
        return int(self.begins[rank, 0])

    def pin(self, rank: int, core: int) -> None:
        os.sched_setaffinity(self.pid(rank), {core})

    def slow_batches(self, *ranks: int, to_s: float = SLOW_S) -> None:
        for rank in ranks:
            self.batches.delays_s[rank] = to_s

    @contextlib.contextmanager
    def hog(self, core: int) -> Iterator[None]:
        """Another program that goes before on a core, half of the time."""
        process = subprocess.Popen([sys.executable, "-c", HOG, str(core)])
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def busiest_s(self) -> float:
        """How late answers were in the worst hundred in a row, in the median."""
        late_s = self.batches.late_s
        hundreds = np.array(late_s[: len(late_s) // 100 * 100]).reshape(-1, 100)
        return float(np.median(hundreds, axis=1).max())

    def end(self) -> None:
        assert self.process.wait() == 0, self.errors()

    def errors(self) -> str:
        return (self.folder / "errors").read_text()


def step_at(begins: npt.NDArray[np.int64], moment_ns: int) -> int:
    """The step of the lowest rank that was under way."""
    return int(np.searchsorted(begins, moment_ns, side="right")) - 1


# --- events ---

Event = Callable[[Training, Truth], None]


def nothing(run: Training, truth: Truth) -> None:
    pass


def pinned(run: Training, truth: Truth) -> None:
    """Each rank has a core: healthy."""
    for rank in range(run.ranks):
        run.pin(rank, rank)


def hog_since(run: Training, truth: Truth) -> None:
    pinned(run, truth)
    run.wait_for(0.6)
    run.stack.enter_context(run.hog(1))
    truth.part(1)


def hog_for_a_while(run: Training, truth: Truth) -> None:
    pinned(run, truth)
    run.wait_for(0.4)
    with run.hog(0):
        truth.part(0)
        run.wait_for(0.6)
    truth.part()


def moved_to_a_busy_core(run: Training, truth: Truth) -> None:
    """By `taskset`: from a core of its own to one on which another program computes."""
    run.pin(0, 0)
    run.pin(1, 0)
    run.stack.enter_context(run.hog(1))
    run.wait_for(0.5)
    run.pin(1, 1)
    truth.part(1)


def limited_since(run: Training, truth: Truth) -> None:
    """As `cpulimit` does: stopped for 40 % of the time."""
    pinned(run, truth)
    run.wait_for(0.5)
    truth.part(0)
    while run.step() < run.steps - 1:
        stop(run, [0], random.uniform(0.006, 0.010))
        time.sleep(random.uniform(0.008, 0.014))


def stop(run: Training, ranks: Sequence[int], for_s: float) -> None:
    for rank in ranks:
        os.kill(run.pid(rank), signal.SIGSTOP)
    time.sleep(for_s)
    for rank in ranks:
        os.kill(run.pid(rank), signal.SIGCONT)


def stopped_each(run: Training, truth: Truth, ranks: list[int], each_s: float) -> None:
    moments: list[int] = []
    truth.period = moments, tuple(ranks) if len(ranks) < run.ranks else ()
    next_s = time.monotonic()
    while run.step() < 0.97 * run.steps:
        moments.append(time.monotonic_ns())
        stop(run, ranks, 0.2)
        next_s += each_s
        time.sleep(max(next_s - time.monotonic(), 0))


def one_stopped_each(run: Training, truth: Truth) -> None:
    stopped_each(run, truth, [1], 4.0)


def all_stopped_each(run: Training, truth: Truth) -> None:
    stopped_each(run, truth, [0, 1], 5.0)


def batches_of_one_for_a_while(run: Training, truth: Truth) -> None:
    run.wait_for(0.3)
    run.slow_batches(2)
    truth.part(2)
    run.wait_for(0.45)
    run.slow_batches(2, to_s=BATCH_S)
    truth.part()


def batches_of_all_for_a_while(run: Training, truth: Truth) -> None:
    for share, to_s in ((0.2, SLOW_S), (0.65, BATCH_S)):
        run.wait_for(share)
        run.slow_batches(*range(run.ranks), to_s=to_s)
        truth.part()


def batches_of_all_since(run: Training, truth: Truth) -> None:
    run.wait_for(0.7)
    run.slow_batches(*range(run.ranks))
    truth.part()


def batches_of_all_twice(run: Training, truth: Truth) -> None:
    for share, to_s in ((0.3, SLOW_S), (0.65, SLOW_S + 0.005)):
        run.wait_for(share)
        run.slow_batches(*range(run.ranks), to_s=to_s)
        truth.part()


def batches_of_all_drift(run: Training, truth: Truth) -> None:
    truth.drift = True
    while (step := run.step()) < 0.99 * run.steps:
        run.slow_batches(*range(run.ranks), to_s=BATCH_S + 0.008 * step / run.steps)
        time.sleep(0.05)


def batches_of_one_then_another(run: Training, truth: Truth) -> None:
    run.wait_for(0.1)
    run.slow_batches(0)
    truth.part(0)
    run.wait_for(0.5)
    run.slow_batches(0, to_s=BATCH_S)
    run.slow_batches(3)
    truth.part(3)


def killed(run: Training, truth: Truth, *slow: int) -> None:
    """And started anew, with slow batches of some ranks from then on."""
    run.wait_for(0.5)
    old = run.pid(1)
    os.kill(old, signal.SIGKILL)
    run.slow_batches(*slow)
    if slow:
        truth.restarted = True
        truth.part(*slow)
    run.wait_until(lambda: run.pid(1) != old)


def killed_and_as_before(run: Training, truth: Truth) -> None:
    killed(run, truth)


def killed_and_slow(run: Training, truth: Truth) -> None:
    killed(run, truth, 1)
