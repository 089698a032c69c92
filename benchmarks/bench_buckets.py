"""What timing the buckets of DDP adds to a step: 300 parameters in 50 buckets.

The bound is 0.1 % of a step of 100 ms, which is 100 us a step in the mean. Times are processor time
of the training thread.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import weakref

import torch
from torch import nn

from benchmarks.harness import Claim, Row
from my_utils import _core
from my_utils.record.log.logger import GlobalLogger
from my_utils.run.stages.bucket_layout import Bucket, Layout
from my_utils.run.stages.buckets import BucketSampler

LAYERS, BUCKETS, PERIOD = 150, 50, 16
BOUND_US = 100.0


def layout_of(net: nn.Module) -> Layout:
    parameters = list(net.parameters())
    each = max(len(parameters) // BUCKETS, 1)
    parts = [parameters[at : at + each] for at in range(0, len(parameters), each)]
    return Layout(
        tuple(Bucket(tuple(map(weakref.ref, part)), 25_000_000, "layers") for part in parts)
    )


class Looking:
    """A sampler that looks at each second step, of a model whose layout is known."""

    def __init__(self, net: nn.Module) -> None:
        self.stages = _core.RunStages(lambda: _core.Timer("run"), lambda: True)
        self.backward = _core.StageCall(lambda loss: loss.backward(), self.stages, 4)
        logger = GlobalLogger()
        self.sampler = BucketSampler(
            self.stages, lambda name, row, step: logger.instant(name, dict(row), step=step), 2
        )
        self.sampler.watch([net])
        self.sampler._layout = layout_of(net)
        self.step = 0

    def took_ns(self, loss: torch.Tensor) -> int:
        """A backward and what comes after it."""
        begin_ns = time.thread_time_ns()
        self.backward(loss)
        self.sampler.after_step(self.step)
        self.step += 1
        return time.thread_time_ns() - begin_ns


def compared(rounds: int) -> tuple[float, float]:
    """Medians of a step that is looked at, with what comes before and after it, and of a plain
    backward; us."""
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(LAYERS)])
    x, looking = torch.ones(2, 4), Looking(net)
    plain = _core.StageCall(lambda loss: loss.backward(), looking.stages, 4)
    looked_ns: list[int] = []
    plain_ns: list[int] = []
    for _ in range(rounds):
        both = [looking.took_ns(net(x).sum()) for _ in range(2)]  # made ready in one, seen in one
        looked_ns.append(sum(both))
        buckets, looking.stages.buckets = looking.stages.buckets, None
        total = 0
        for _ in range(2):
            loss = net(x).sum()
            begin_ns = time.thread_time_ns()
            plain(loss)
            total += time.thread_time_ns() - begin_ns
        plain_ns.append(total)
        looking.stages.buckets = buckets
    return statistics.median(looked_ns) / 1e3, statistics.median(plain_ns) / 1e3


def steady(rounds: int) -> float:
    """What the sampler adds to a step that is not looked at; us."""
    net = nn.Linear(2, 2)
    looking = Looking(net)
    looking.sampler._every = 1 << 40
    looking.sampler.after_step(1)
    times = []
    for step in range(2, 2 + 50 * rounds):
        begin_ns = time.thread_time_ns()
        looking.sampler.after_step(step)
        times.append(time.thread_time_ns() - begin_ns)
    return statistics.median(times) / 1e3


def run(smoke: bool) -> list[Row]:
    torch.set_num_threads(1)
    rounds = 5 if smoke else 400
    with tempfile.TemporaryDirectory() as folder:
        GlobalLogger().setup(folder, rank=0, console=False)
        looked, plain = compared(rounds)
        idle = steady(rounds)
        GlobalLogger().close()
    added = looked - plain
    mean = (added + (PERIOD - 1) * idle) / PERIOD
    return [
        Claim("buckets of DDP, added to a step in the mean of 16 (50 buckets, 300 parameters)",
              mean, "0.1 % of 100 ms", BOUND_US, "us", 1),
        Claim("added to a step that is not looked at", idle, "3 us", 3, "us", 1),
    ]  # fmt: skip
