"""Passports of real ranks over gloo: each writes its file, and the files are compared with the
whole model's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from my_utils.tensors import passport
from my_utils.tensors.passport.checkpoints import read_weights
from my_utils.tensors.passport.compare import ComparedData, compare_weights, format_lines

from ...support.ranks import Ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MODEL = """
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module)
from my_utils.tensors import passport

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(37, 24)
        self.up = nn.Linear(24, 52)
        self.down = nn.Linear(52, 24)
        self.norm = nn.BatchNorm1d(24)
        self.head = nn.Linear(24, 37, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("cache", torch.rand(5), persistent=False)

    def forward(self, x):
        return self.head(self.norm(self.down(self.up(self.embed(x)))))

def made():
    torch.manual_seed(0)
    return Net()
"""
RANKS = f"""{MODEL}
torch.set_num_threads(1)

def fsdp(net):
    fully_shard(net.up)
    return fully_shard(net)

def columns(net):
    return fully_shard(net, shard_placement_fn=lambda p: Shard(p.dim() - 1))

def ddp(net):
    return nn.parallel.DistributedDataParallel(torch.compile(net))

def hsdp(net):
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("data", "shard"))
    return fully_shard(net, mesh=mesh)

def tp(net, mesh=None):
    mesh = mesh or init_device_mesh("cpu", (world,))
    return parallelize_module(net, mesh, {{"up": ColwiseParallel(), "down": RowwiseParallel()}})

def fsdp_tp(net):
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("data", "model"))
    return fully_shard(tp(net, mesh["model"]), mesh=mesh["data"])

def plain(net):
    return net

def save(net, name):
    passport(net, step=1).save(f"{{name}}/step1_rank{{{{rank}}}}.json")

def plant(net, name, change_rank, row):
    # One element of this rank's part of up.weight.
    weight = dict(net.named_parameters())[name]
    local = weight.to_local() if isinstance(weight, DTensor) else weight
    if rank == change_rank:
        with torch.no_grad():
            local[row, 3] += 1
"""


def run(program: str, world: int, folder: Path) -> None:
    results = Ranks(program, world, folder).finish(timeout_s=400)
    assert [status for status, _, _ in results] == [0] * world, results


def whole(folder: Path) -> Path:
    """The passport of the same model on one rank."""
    scope: dict[str, object] = {"torch": torch}
    with torch.random.fork_rng():
        exec(MODEL + "net = made()", scope)
    path = folder / "whole.json"
    passport(scope["net"], step=1).save(path)
    return path


def compared(a: Path, b: Path) -> ComparedData:
    return compare_weights(read_weights(str(a), None, None), read_weights(str(b), None, None))


def texts(found: ComparedData) -> list[tuple[str, str]]:
    return [(finding.name, finding.text) for finding in found.findings]


def check_equal(folder: Path, names: list[str]) -> None:
    one = whole(folder)
    for name in names:
        found = compared(one, folder / name)
        assert found.status == "equal", (name, format_lines(found))
        assert found.equal == 11, name


def test_two_ranks(tmp_path: Path) -> None:
    program = """
for each in (fsdp, columns, ddp, tp, plain):
    save(each(made()), each.__name__)

net = ddp(made())
plant(net, "module._orig_mod.up.weight", 1, 40)
save(net, "drifted")

net = nn.parallel.DistributedDataParallel(made()).train()
net(torch.randint(0, 37, (8,), generator=torch.Generator().manual_seed(rank)))
save(net, "trained")

net = fsdp(made())
plant(net, "up.weight", 1, 2)
save(net, "other_element")

net = plain(made())
plant(net, "up.weight", 1, 40)
save(net, "unknown")

net = FullyShardedDataParallel(made(), use_orig_params=True, device_id=torch.device("cpu"))
with FullyShardedDataParallel.state_dict_type(net, StateDictType.SHARDED_STATE_DICT):
    save(net.state_dict(), "fsdp1")
with FullyShardedDataParallel.summon_full_params(net):
    save(net, "summoned")
try:
    save(net, "flat")
except ValueError as error:
    assert "pass its sharded state dict" in str(error)
dist.destroy_process_group()
"""
    run(RANKS + program, 2, tmp_path)
    check_equal(tmp_path, ["fsdp", "columns", "ddp", "tp", "plain", "fsdp1", "summoned"])
    assert not (tmp_path / "flat").exists()

    alone = read_weights(str(tmp_path / "drifted"), None, None)
    assert [item[1:] for item in alone.tensors["up.weight"][0].replica_problems()] == [
        ("rows 0-42", "rank 0 against rank 1")
    ]
    found = compared(tmp_path / "whole.json", tmp_path / "drifted")
    assert found.status == "differ"
    assert [name for name, _ in texts(found)] == ["up.weight"]
    found = compared(tmp_path / "fsdp", tmp_path / "other_element")
    assert texts(found) == [("up.weight", "values differ: rows 26-42")]

    trained = read_weights(str(tmp_path / "trained"), None, None)
    found = compare_weights(trained, trained)
    assert found.status == "equal"
    assert any("3 tensors, statistics of BatchNorm" in note for note in found.notes)

    found = compared(tmp_path / "whole.json", tmp_path / "unknown")
    assert texts(found) == [("up.weight", "values differ: rows 0-42 (rank 1)")]
    assert any("not checked between ranks: 8 tensors, plain tensors" in n for n in found.notes)


@pytest.mark.thorough
def test_three_ranks(tmp_path: Path) -> None:
    program = """
for each in (fsdp, tp, ddp):
    save(each(made()), each.__name__)
net = ddp(made())
plant(net, "module._orig_mod.embed.weight", 2, 7)
save(net, "drifted")
dist.destroy_process_group()
"""
    run(RANKS + program, 3, tmp_path)
    check_equal(tmp_path, ["fsdp", "tp", "ddp"])
    drifted = read_weights(str(tmp_path / "drifted"), None, None)
    assert drifted.tensors["embed.weight"][0].replica_problems() == [
        ({2}, "", "rank 2 against the 2 others")
    ]

    (tmp_path / "fsdp" / "step1_rank1.json").unlink()
    found = compared(tmp_path / "whole.json", tmp_path / "fsdp")
    assert ("up.weight", "432 of 1,248 elements are in no part (rows 18-35)") in texts(found)
    assert "B: no passport of rank 1" in found.notes


@pytest.mark.thorough
def test_four_ranks(tmp_path: Path) -> None:
    program = """
for each in (fsdp, hsdp, fsdp_tp):
    save(each(made()), each.__name__)
net = hsdp(made())
plant(net, "up.weight", 3, 1)
save(net, "drifted")
dist.destroy_process_group()
"""
    run(RANKS + program, 4, tmp_path)
    check_equal(tmp_path, ["fsdp", "hsdp", "fsdp_tp"])
    drifted = read_weights(str(tmp_path / "drifted"), None, None)
    assert drifted.tensors["up.weight"][0].replica_problems() == [
        ({1, 3}, "rows 26-42", "rank 1 against rank 3")
    ]
