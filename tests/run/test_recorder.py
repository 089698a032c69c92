"""Who becomes a rank, what is a transfer, and what trouble inside the recorder does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ranks import ROOT
from tests.support.variants import gate_runs

pytestmark = pytest.mark.timeout(300)

BEGIN = """
import logging, os, sys
import torch
from torch import nn
from my_utils import _core
from my_utils.core.warnings import counts
from my_utils.record.log.logger import GlobalLogger
from my_utils.run.stages.recorder import arm

torch.set_num_threads(1)
folder = sys.argv[1]
said = []

def first():
    said.append("rank")
    GlobalLogger().setup(folder, rank=0, console=False)

recorder = arm(first)
net = nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

def train(steps=3, data=None):
    for x in data if data is not None else [torch.randn(4, 8)] * steps:
        net(x).sum().backward()
        optimizer.step()

def files():
    return sorted(name for name in os.listdir(folder) if name.endswith(".csv"))

def names():
    recorder.disarm()
    GlobalLogger().close()
    lines = open(folder + "/profile_rank_0.csv").read().splitlines()
    return [line.split(",")[4] for line in lines if ",END," in line]
"""

NO_RANK = """
net(torch.randn(4, 8)).sum().backward()
torch.save(net.state_dict(), os.devnull)
assert not said and not recorder.is_rank
recorder.disarm()
assert files() == []
"""

WORKERS = """
train()
class Busy(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        torch.save(torch.zeros(1), os.devnull)
        return torch.zeros(8)
loader = torch.utils.data.DataLoader(Busy(), batch_size=4, num_workers=1,
                                     multiprocessing_context="fork")
train(data=loader)
assert files() == ["profile_rank_0.csv"], files()
pid = os.fork()
if pid == 0:
    train(4)
    recorder.disarm()
    GlobalLogger().close()
    os._exit(said != ["rank", "rank"])
assert os.waitpid(pid, 0)[1] == 0
assert said == ["rank"] and names().count("checkpoint") == 0
assert files() == ["profile_rank_0.csv", "profile_rank_0.w1.csv"], files()
rows = open(f"{folder}/profile_rank_0.w1.csv").read().splitlines()
steps = [line.split(",")[3] for line in rows if ",optimizer,END," in line]
assert steps == ["1", "2", "3"], rows  # the first one told that it trains
"""

TRANSFERS = """
recorder.patches.transfers()  # as at the first use of CUDA

class Named(torch.Tensor):
    seen = []
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func is torch.Tensor.to)
        return super().__torch_function__(func, types, args, kwargs or {})

train()
moved = torch.zeros(4).to("meta")
assert moved.device.type == "meta" and torch.zeros(4).to(torch.float64).dtype == torch.float64
assert torch.zeros(2).as_subclass(Named).to(torch.float64).dtype == torch.float64
assert Named.seen[0]
assert names().count("h2d") == 1
assert torch.zeros(1).to("cpu").item() == 0
"""

ASIDE = """
class Broken:
    def write(self, *arguments):
        raise KeyError("for the test")
train()
recorder._memory = Broken()
train(40)
assert not recorder.stages.on
assert counts()["run_stages"] == 1, counts()
assert names()
"""

INTERRUPTED = """
# A handler of the script raises where the recorder works, as that of a timeout may.
import signal
class TimeIsUp(Exception):
    pass
def handler(number, frame):
    raise TimeIsUp
signal.signal(signal.SIGALRM, handler)
class Slow:
    def write(self, *arguments):
        recorder._memory = memory
        signal.raise_signal(signal.SIGALRM)
train()
memory, recorder._memory = recorder._memory, Slow()
try:
    train(40)
except TimeIsUp:
    said.append("time is up")
train()
assert said == ["rank", "time is up"] and recorder.stages.on and not counts()
"""

ENDED = """
# The same where C calls Python, also with what is not an Exception.
import signal
class TimeIsUp(Exception):
    pass
train()
before = recorder.stages.on_backward
for raised in (TimeIsUp, SystemExit, KeyboardInterrupt):
    def handler(number, frame):
        recorder.stages.on_backward = before
        raise raised
    signal.signal(signal.SIGALRM, handler)
    recorder.stages.on_backward = lambda: signal.raise_signal(signal.SIGALRM)
    try:
        train()
    except raised as error:
        said.append(type(error).__name__)
train()
assert said == ["rank", "TimeIsUp", "SystemExit", "KeyboardInterrupt"], said
assert recorder.stages.on and not counts()
"""

SCRIPTED = """
# Functions that the recorder replaces are those of torch for torch.jit and for weak references.
import weakref
source = os.path.join(folder, "squares.py")
os.makedirs(folder, exist_ok=True)
with open(source, "w") as file:  # torch.jit reads it
    file.write("import torch\\ndef squares(x: torch.Tensor):\\n    y = (x * x).sum()\\n")
    file.write("    torch.autograd.backward([y])\\n    return y\\n")
sys.path.insert(0, folder)
from squares import squares
for again in (False, True):
    x = torch.ones(3, requires_grad=True)
    torch.jit.script(squares)(x)
    assert x.grad.tolist() == [2, 2, 2]
known = weakref.WeakKeyDictionary({torch.save: "save", torch.autograd.backward: "backward"})
assert len(known) == 2
train()
assert "backward" in names() and not counts()
"""

COUNTED = """
# One optimizer leads, in most steps unseen by Python; then a second one joins it, and leaves again.
other = torch.optim.SGD(nn.Linear(8, 1).parameters(), lr=0.01)
data = torch.utils.data.DataLoader(torch.randn(400, 8), batch_size=4)
train(data=data)
for _ in range(5):
    train(1)
    net(torch.randn(4, 8)).sum().backward()
    other.step()
train(40)
recorder.disarm()
GlobalLogger().close()
rows = [line.split(",") for line in open(folder + "/profile_rank_0.csv").read().splitlines()]
steps = {}
for row in rows:
    if row[4:6] == ["optimizer", "END"]:
        steps[int(row[3])] = steps.get(int(row[3]), 0) + 1
assert steps == {n: 2 if 100 <= n < 105 else 1 for n in range(145)}, steps
forwards = [int(row[3]) for row in rows if row[4:6] == ["forward", "END"]]
assert sorted(forwards) == sorted([*range(1, 145), *range(100, 105)]), forwards
batches = {int(row[3]): row[7:] for row in rows if row[4:6] == ["batch", "COUNTER"]}
assert sorted(batches) == list(range(100)), sorted(batches)
assert all(any("samples=4" in part for part in text) for text in batches.values()), batches
"""

NO_TIMER = """
def no_timer():
    raise MemoryError("for the test")
stages = _core.RunStages(no_timer, torch.is_grad_enabled)
call = _core.StageCall(lambda x: x + 1, stages, 4)
assert [call(1), call(2)] == [2, 3]
assert not stages.on and counts()["run_stages"] == 1
recorder.disarm()
"""

CTRL_C = """
def interrupted():
    raise KeyboardInterrupt
stages = _core.RunStages(interrupted, torch.is_grad_enabled)
call = _core.StageCall(lambda x: x + 1, stages, 4)
try:
    call(1)
    torch.zeros(1).item()
except KeyboardInterrupt:
    said.append("Ctrl-C")
assert said == ["Ctrl-C"] and stages.on and not counts()
recorder.disarm()
"""

RAISES = """
class Own(Exception):
    pass
def hook(module, inputs):
    raise Own
train()
handle = net.register_forward_pre_hook(hook)
for _ in range(2):
    try:
        net(torch.randn(4, 8))
    except Own:
        pass
handle.remove()
def closure():
    raise Own
for _ in range(2):
    try:
        optimizer.step(closure)
    except Own:
        pass
train()
found = names()
assert found.count("forward") == 7 and found.count("backward") == 6, found
"""


SAID = {
    "no rank": NO_RANK, "children": WORKERS, "transfers": TRANSFERS, "scripted": SCRIPTED,
    "counted": COUNTED, "step aside": ASIDE, "interrupted": INTERRUPTED, "ended": ENDED,
    "Ctrl-C": CTRL_C, "no timer": NO_TIMER, "exceptions": RAISES,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", gate_runs(("children", "interrupted"), SAID))
def test_a_script_says(what: str, tmp_path: Path) -> None:
    settings = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", BEGIN + SAID[what], str(tmp_path)]
    subprocess.run(command, check=True, env=settings)


WITHOUT_MEMORY = """
import resource, sys
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]),) * 2)
for step in range(3000):
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
print("trained")
"""


@pytest.mark.parametrize("room", [5 << 20, 20 << 20])
def test_a_training_without_memory_for_the_recorder_goes_on(room: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WITHOUT_MEMORY)
    done = subprocess.run(
        [*(sys.executable, "-m", "my_utils", "run"), *("-o", "run", "train.py", str(room))],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    if "recorded no further (MemoryError" in done.stderr:  # Python had too little before we had
        return
    assert "NOT JUDGED" in done.stderr
    assert "it records nothing" in (tmp_path / "run" / "rank_0.log").read_text()
