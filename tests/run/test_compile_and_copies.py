"""The patches stay out of graphs, copies and pickles."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ranks import ROOT

pytestmark = pytest.mark.timeout(300)

BEGIN = """
import collections, copy, io, pickle, sys
import torch
from torch import nn
from my_utils.record.log.logger import GlobalLogger
from my_utils.run.stages.recorder import arm

torch.set_num_threads(1)
recorder = arm(lambda: GlobalLogger().setup(sys.argv[1], rank=0, console=False) and None)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

def train(call, optimizer, steps=5, step=None):
    for _ in range(steps):
        call(torch.randn(4, 8)).pow(2).mean().backward()
        (step or optimizer.step)()
        optimizer.zero_grad()

def end():
    recorder.disarm()
    GlobalLogger().close()
    import csv
    rows = list(csv.DictReader(open(sys.argv[1] + "/profile_rank_0.csv")))
    return collections.Counter(
        (r["event_name"], int(r["step"])) for r in rows if r["event_type"] == "END")
"""

COMPILED = """
import torch._dynamo
from torch._dynamo.utils import counters
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
{compile}
train(call, optimizer)
before = dict(counters["stats"])
train(call, optimizer, steps=3)
assert not counters["graph_break"], dict(counters["graph_break"])
assert not counters["recompiles"], dict(counters["recompiles"])
assert counters["stats"]["unique_graphs"] == before["unique_graphs"] == {graphs}

stages = end()
assert {{step for name, step in stages if name == "optimizer"}} == set(range(8)), stages
if {forward}:
    assert all(stages["forward", step] == 1 for step in range(1, 8)), stages
"""

HIDDEN = """
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
train(net, optimizer, steps=20, step=torch.compile(optimizer.step, backend="aot_eager"))
stages = end()
assert {step for name, step in stages if name == "backward"} == set(range(20)), stages
assert not any(name == "optimizer" for name, _ in stages), stages
"""

COPIES = """
import torch.fx
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
train(net, optimizer)
x = torch.randn(2, 8)
wanted = net(x)
assert Net in recorder.roots.classes
for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.fx.symbolic_trace(net),
              torch.jit.trace(net, x), torch.jit.script(net),
              torch.export.export(net, (x,)).module(),
              torch.optim.swa_utils.AveragedModel(net)):
    assert torch.equal(other(x), wanted), other
buffer = io.BytesIO()
torch.save(net, buffer)
text = pickle.dumps(torch.save), pickle.dumps(torch.autograd.backward)
end()
assert "__call__" not in vars(Net)
assert b"my_utils" not in buffer.getvalue() and not any(b"my_utils" in part for part in text)
buffer.seek(0)
assert torch.equal(torch.load(buffer, weights_only=False)(x), wanted)
"""

FROZEN = """
import gc
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
gc.freeze()
train(net, optimizer)
assert end()["forward", 3] == 1
"""

DEEPER = """
class Holder(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def loss(self, x):
        return self.inner(x)
holder = Holder(Holder(Net()))
optimizer = torch.optim.SGD(holder.parameters(), lr=0.01)
train(holder.inner.inner, optimizer, steps=10)
assert recorder.roots.level == 2
stages = end()
assert all(stages["forward", step] == 1 for step in range(3, 10)), stages
"""

GRAPHS = """
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.randn(2, 8, requires_grad=True)
for _ in range(4):
    out = net(x)
    slope, = torch.autograd.grad(out.sum(), x, create_graph=True)
    (out.pow(2).mean() + slope.pow(2).mean()).backward()
    optimizer.step()
stages = end()
assert stages["backward", 2] == 2 and stages["loss", 2] == 2, stages
"""


def run(code: str, folder: Path) -> None:
    script = folder / "script.py"  # torch.jit.script reads the source
    script.write_text(BEGIN + code)
    settings = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, str(script), str(folder)], check=True, env=settings)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("compile", "graphs", "forward"),
    [
        ("call = torch.compile(net, backend='aot_eager')", 1, True),
        ("net.compile(backend='aot_eager'); call = net", 1, True),
        (
            "call = net\n"
            "for i in range(3): net.layers[i] = torch.compile(net.layers[i], backend='aot_eager')",
            2,  # the first layer's input needs no gradient
            True,
        ),
        ("call = torch.compile(lambda x: net(x), backend='aot_eager')", 1, False),
    ],
    ids=["function", "method", "regional", "around the model"],
)
def test_no_graph_break_and_no_recompile(
    compile: str, graphs: int, forward: bool, tmp_path: Path
) -> None:
    run(COMPILED.format(compile=compile, graphs=graphs, forward=forward), tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "code",
    [HIDDEN, COPIES, FROZEN, DEEPER, GRAPHS],
    ids=["a compiled optimizer", "copies", "gc.freeze", "models inside models", "autograd.grad"],
)
def test_the_recorder_keeps_out_of(code: str, tmp_path: Path) -> None:
    run(code, tmp_path)
