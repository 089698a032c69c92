"""What a step costs the training thread when its stage times go to TensorBoard, beside the scalars
written there by SummaryWriter, and what a look at the totals costs.

A step has twelve stages. The exporters write in a thread of their own, whose processor time is
counted as well: it takes the interpreter from the training now and then.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.harness import Claim, take_turns
from my_utils import MyTimer
from my_utils.record.exporters import PrometheusExporter, TensorBoardExporter

STAGES = [f"stage {number}" for number in range(11)]


def timed_step(timer: MyTimer, step: int) -> None:
    timer.set_step(step)
    timer.start("iter")
    for name in STAGES:
        timer.start(name)
        timer.stop(name)
    timer.stop("iter")


def thread_microseconds(timer: MyTimer, folder: Path, steps: int) -> tuple[float, float]:
    """Processor time of the exporter's thread a step, and of an interval with Prometheus, in us."""
    used = []
    for exporter in (TensorBoardExporter(timer, folder), PrometheusExporter(timer, folder)):
        for step in range(steps):
            timed_step(timer, step)
            exporter.step(step)
        before = time.process_time(), time.thread_time()
        exporter.close()
        process, own = time.process_time() - before[0], time.thread_time() - before[1]
        used.append((process - own) / max(exporter.written, 1) * 1e6)
    return used[0], used[1]


def run(smoke: bool) -> list[Claim]:
    from torch.utils.tensorboard import SummaryWriter

    steps, rounds = (20, 1) if smoke else (300, 15)
    timer = MyTimer(tag="exporters")
    timed_step(timer, 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        exporter = TensorBoardExporter(timer, folder / "ours")
        writer = SummaryWriter(str(folder / "theirs"))

        def ours() -> None:
            for step in range(steps):
                exporter.step(step)

        def theirs() -> None:
            for step in range(steps):
                for path in STAGES:
                    writer.add_scalar(path, 1.5, step)
                writer.add_scalar("iter", 1.5, step)

        def totals() -> None:
            for _ in range(steps):
                timer.totals()

        def aggregates() -> None:
            for _ in range(steps):
                timer.aggregates()

        sides = {"ours": ours, "theirs": theirs, "totals": totals, "aggregates": aggregates}
        times = take_turns(sides, calls=steps, rounds=rounds)
        exporter.close()
        writer.close()
        point, text = thread_microseconds(timer, folder / "thread", steps)
    us = {side: ns / 1e3 for side, ns in times.items()}
    return [
        Claim("exporter.step() of 12 stages", us["ours"], "SummaryWriter.add_scalar of each",
              us["theirs"], "us", 10, faster=True),
        Claim("a look at 12 totals", us["totals"], "at their aggregates", us["aggregates"], "us",
              5, faster=True),
        Claim("exporter's thread, a step, TensorBoard", point, "add_scalar of each", us["theirs"],
              "us", 1),
        Claim("exporter's thread, a Prometheus file", text, "of 10 ms of an interval", 10_000, "us",
              1),
    ]  # fmt: skip
