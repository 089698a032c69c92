"""The sizes of batches, which are read without the help of the batches."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from my_utils.run.stages.batches import batch_size

from ..conftest import RunPython
from ..support.profile_rows import read

ODD = """
import collections, torch, warnings
warnings.simplefilter("ignore")

class Lazy(collections.abc.Mapping):
    def __init__(self, x): self.x = x
    def __getitem__(self, name): return self.x + 0.1 * torch.randn(self.x.shape)
    def __iter__(self): return iter(["x"])
    def __len__(self): return 1

class Pair(tuple):
    def __getitem__(self, name): return tuple.__getitem__(self, {"x": 0, "y": 1}[name])

class Odd(dict):
    # Its place in a dict is that of "input_ids".
    __hash__ = lambda self: hash("input_ids")
    def __eq__(self, other): raise RuntimeError("odd")

def collate(rows):
    number = int(rows[0])
    x = torch.ones(4, 4)
    nested = torch.nested.nested_tensor([x[0]] * 4)
    return [Lazy(x), Pair((x, x)), {"x": x}, {Odd(): 0, "x": x}, nested][number % 5]

torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(range(30), collate_fn=collate):
    loss = net(batch.to_padded_tensor(0) if torch.is_tensor(batch) else batch["x"]).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
"""


def forbidden(*_: object) -> NoReturn:
    raise AssertionError("the batch was asked")


class Lazy(Mapping[str, Any]):
    __getitem__ = __iter__ = __len__ = __contains__ = values = items = get = forbidden


class OwnDict(dict[str, Any]):
    __getitem__ = __iter__ = __len__ = __contains__ = values = items = get = forbidden


class OwnUserDict(collections.UserDict[str, Any]):
    __getitem__ = __iter__ = __len__ = __contains__ = values = items = get = forbidden
    __getattribute__ = __getattr__ = forbidden


class Pair(tuple[torch.Tensor, ...]):
    __getitem__ = __iter__ = __len__ = forbidden


def user_dict(values: dict[str, Any]) -> OwnUserDict:
    made = object.__new__(OwnUserDict)
    object.__getattribute__(made, "__dict__")["data"] = values
    return made


X = torch.zeros(4, 3)
IDS = torch.ones(2, 7, dtype=torch.int64)


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: Lazy(), (0, 0)),
        (lambda: OwnDict(x=X), (4, 0)),
        (lambda: OwnDict(x=X, input_ids=IDS), (2, 14)),
        (lambda: user_dict({"x": X, "input_ids": IDS}), (2, 14)),
        (lambda: Pair((X, X)), (4, 0)),
        (lambda: [{"a": (X,)}], (4, 0)),
        (lambda: [Lazy(), X], (4, 0)),
        (lambda: {"name": "a", "x": X}, (4, 0)),
        (lambda: "text", (0, 0)),
        (list, (0, 0)),
    ],
)
def test_no_code_of_a_batch_is_called(make: Callable[[], Any], size: tuple[int, int]) -> None:
    assert batch_size(make()) == size


def test_batches_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    assert batch_size(transformers.BatchEncoding({"x": X, "input_ids": IDS})) == (2, 14)


def test_batches_of_tensordict() -> None:
    tensordict = pytest.importorskip("tensordict")
    assert batch_size(tensordict.TensorDict({"x": X}, batch_size=[4])) == (4, 0)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_training_on_odd_batches_computes_the_same(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ODD)
    bare = run_python("train.py")
    done = run_python("-m", "my_utils.run", "--quiet", "-o", "out", "train.py")
    said = "batches whose size cannot be read are not counted (RuntimeError: odd)\n"
    assert done.stdout == bare.stdout
    assert done.stderr.endswith(said) and done.stderr.count("\n") == 1
    rows = read(tmp_path / "out" / "profile_rank_0.csv")
    sizes = [row.metadata["samples"] for row in rows if row.name == "batch"]
    assert sum(map(int, sizes)) == 18 * 4
