"""What the recorder of `my_utils run` adds to a step, and beside TraceML to one of 200 modules.

Each side runs in a separate process, since both patch torch. A step alone is timed without its
work, which would drown it: the loader, the backward and the optimizer do nothing. A step of 200
modules is the processor time of the training thread, which other programs disturb least.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Claim, NotMeasured, Row

HERE = Path(__file__).resolve()
SIDES = ("bare", "ours", "traceml")
TRACEML_PORT = 29765
ROUNDS = 5

OWN = """
import json, sys, tempfile
import torch
from torch import nn
from benchmarks.harness import take_turns
from my_utils import _core
from my_utils.record.log.logger import GlobalLogger
from my_utils.run.stages import names
from my_utils.run.stages.recorder import arm

calls, rounds = (200, 3) if sys.argv[1] == "smoke" else (2000, 41)
torch.set_num_threads(1)

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
    def forward(self, x):
        return x

class Root(Plain):
    pass

class Inner(Plain):
    def __init__(self, inside):
        super().__init__()
        self.inside = inside
    def forward(self, x):
        for _ in range(calls):
            self.inside(x)

recorder = arm(lambda: GlobalLogger().setup(tempfile.mkdtemp(), rank=0, console=False) and None)
root, plain, outer, bare = Root(), Plain(), Inner(Root()), Inner(Plain())
optimizer = torch.optim.SGD(root.parameters(), lr=0.1)
optimizer.step()  # finds the roots
plain_call = Plain.__dict__.get("__call__")
if plain_call is not None:
    del Plain.__call__
stages = recorder.stages
backward = _core.StageCall(lambda: None, stages, names.BACKWARD)
batch = [torch.zeros(8, 4), torch.zeros(8)]

def steps():
    for _ in range(calls):
        if stages.begin(names.INPUT):
            stages.end()
        recorder.loaded(None, batch)
        root(batch)
        backward()
        stages.begin_step(optimizer)
        if stages.end_step(optimizer):
            recorder.stepped(optimizer)

def work():
    for _ in range(calls):
        plain(batch)

times = take_turns({"steps": steps, "work": work, "inside": lambda: outer(batch),
                    "bare": lambda: bare(batch)}, calls=calls, rounds=rounds)
print(json.dumps(times))
recorder.disarm()
"""

STEPS = """
import contextlib, json, statistics, sys, tempfile, time
around = contextlib.nullcontext
side, count = sys.argv[1], 30 if sys.argv[2] == "smoke" else 600
import torch
from torch import nn
torch.set_num_threads(1)
if side == "ours":
    from my_utils.record.log.logger import GlobalLogger
    from my_utils.run.stages.recorder import arm
    arm(lambda: GlobalLogger().setup(tempfile.mkdtemp(), rank=0, console=False) and None)
elif side == "traceml":
    import traceml_ai as traceml  # its lines
    traceml.init(mode="auto")
    around = traceml.trace_step
model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(200)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.DataLoader(torch.randn(8 * count, 8), batch_size=8)
times = []
for x in data:
    began = time.thread_time_ns()
    with around(model):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    times.append(time.thread_time_ns() - began)
print(json.dumps(statistics.median(times[10:])))
"""


def told(code: str, *arguments: str) -> object:
    command = [sys.executable, "-c", code, *arguments]
    printed = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, cwd=HERE.parents[1]
    ).stdout
    return json.loads(printed.splitlines()[-1])


def step_of(side: str, size: str) -> float:
    value = told(STEPS, side, size)
    assert isinstance(value, (int, float))
    return float(value)


@contextlib.contextmanager
def traceml_server() -> Iterator[None]:
    """What TraceML sends its figures to; without it `traceml.init` switches itself off."""
    program = "import sys; from traceml_ai.launcher.cli import main; sys.exit(main())"
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [sys.executable, "-c", program, "serve", "--logs-dir", folder],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            while not _answers(TRACEML_PORT):
                assert server.poll() is None, "traceml serve has ended"
                time.sleep(0.1)
            yield
        finally:
            server.terminate()
            server.wait()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def beside_traceml(size: str) -> list[Row]:
    what = "added to a step of 200 modules"
    if importlib.util.find_spec("traceml_ai") is None:
        return [NotMeasured(what, "TraceML: pip install traceml-ai")]
    with traceml_server():
        rounds = [{side: step_of(side, size) for side in SIDES} for _ in range(ROUNDS)]
    ours, peer = (
        statistics.median(one[side] - one["bare"] for one in rounds) for side in ("ours", "traceml")
    )
    return [Claim(what, ours, "TraceML", peer, "ns", 10, faster=True)]


def run(smoke: bool) -> list[Row]:
    size = "smoke" if smoke else "full"
    times = told(OWN, size)
    assert isinstance(times, dict)
    return [
        Claim("the recorder's part of a step", times["steps"] - times["work"], "6 µs", 6000, "ns",
              1),
        Claim("a call of a patched class inside a forward", times["inside"] - times["bare"],
              "1 µs", 1000, "ns", 1),
        *beside_traceml(size),
    ]  # fmt: skip
