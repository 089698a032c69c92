"""Eight ranks that wait for one another, and a report that names the rank they wait for.

    python examples/slow_ranks.py [FOLDER]

Rank 2 sleeps in the backward pass of some steps, rank 5 is slower in every forward pass. Each
"computes" by sleeping, so the result is the same on any machine.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from pathlib import Path

from my_utils import GlobalLogger, MyTimer
from my_utils.cli import report

RANKS, STEPS = 8, 40
SLEEPY_STEPS = (10, 17, 23, 31)


def train(rank: int, folder: Path, all_are_here: threading.Barrier) -> None:
    GlobalLogger().setup(folder / "logs", rank=rank, world_size=RANKS, console=False)
    timer = MyTimer(tag="train")
    for step in range(STEPS):
        timer.set_step(step)
        with timer.time_stage("iter"):
            with timer.time_stage("forward"):
                time.sleep(0.010 if rank != 5 else 0.014)
            with timer.time_stage("backward"):
                time.sleep(0.020 if rank != 2 or step not in SLEEPY_STEPS else 0.080)
            with timer.time_stage("all_reduce"):  # a stage of its own for what waits
                all_are_here.wait()
        timer.step()
    GlobalLogger().close()


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    all_are_here = context.Barrier(RANKS)
    processes = [
        context.Process(target=train, args=(rank, folder, all_are_here)) for rank in range(RANKS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    report.main([str(folder / "logs"), "-o", str(folder / "report.html")])
    print(f"the report: {folder / 'report.html'}")


if __name__ == "__main__":
    main()
