"""Models whose classes are unlike most: they train as without the recording, and are recorded."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ..conftest import RunPython
from ..support.profile_rows import read

STEPS = 20
TRAIN = """
import functools, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 1)
    def forward(self, x, scale=1):
        return self.inner(x) * scale

class NamedParameters(Net):
    def named_parameters(self): return super().named_parameters()

class NamedModules(Net):
    def named_modules(self): raise NotImplementedError

class Parameters(Net):
    def parameters(self): return [self.inner.weight]

class NotWhole(Net):
    pass

class Partial(Net):
    __call__ = functools.partialmethod(nn.Module.__call__, scale=2)

class Static(Net):
    __call__ = staticmethod(lambda x: nets[1].forward(x))

class Class(Net):
    __call__ = classmethod(lambda kind, x: nets[2].forward(x))

class Callable:
    def __call__(self, x): return nets[3].forward(x)

class Plain(Net):
    __call__ = Callable()

class Property(Net):
    __call__ = property(lambda self: self.forward)

class Meta(type):
    def __setattr__(self, name, value): raise AttributeError(f"frozen: {name}")

class Frozen(nn.Module, metaclass=Meta):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 1)
    def forward(self, x):
        return self.inner(x)

not_whole = NotWhole()
del not_whole._parameters
del not_whole.inner._buffers

torch.manual_seed(0)
nets = [kind() for kind in KINDS]
optimizer = torch.optim.SGD([p for net in nets for p in net.inner.parameters()], lr=0.1)
for step in range(20):
    losses = [net(torch.randn(2, 4)).sum() for net in nets]
    sum(losses).backward()
    optimizer.step()
print([loss.item() for loss in losses])
"""


def forwards(run_python: RunPython, folder: Path, kinds: str, said: str = "") -> int:
    """How many forwards each step has. The training computes what it computes unrecorded."""
    (folder / "train.py").write_text(TRAIN.replace("KINDS", kinds))
    bare = run_python("train.py")
    done = run_python("-m", "my_utils.run", "--quiet", "-o", "out", "train.py")
    assert bare.returncode == 0, bare.stderr
    assert (done.returncode, done.stdout, done.stderr) == (0, bare.stdout, said)
    rows = read(folder / "out" / "profile_rank_0.csv")
    ends = Counter((row.step, row.name) for row in rows if row.kind == "END")
    assert [ends[step, "optimizer"] for step in range(STEPS)] == [1] * STEPS
    (number,) = {ends[step, "forward"] for step in range(2, STEPS)}
    return number


@pytest.mark.thorough
def test_own_ways_to_list_what_is_in_them(run_python: RunPython, tmp_path: Path) -> None:
    kinds = "[Net, NamedParameters, NamedModules, Parameters]"
    assert forwards(run_python, tmp_path, kinds) == 4


@pytest.mark.thorough
def test_a_call_that_is_not_a_function(run_python: RunPython, tmp_path: Path) -> None:
    assert forwards(run_python, tmp_path, "[Partial, Static, Class, Plain, Property]") == 5


@pytest.mark.thorough
def test_a_class_that_is_frozen(run_python: RunPython, tmp_path: Path) -> None:
    said = "the calls of Frozen are not recorded: frozen: __call__\n"
    assert forwards(run_python, tmp_path, "[Frozen, Net]", said) == 1
