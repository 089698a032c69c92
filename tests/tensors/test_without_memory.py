"""Tensors of all kinds, whole and sliced: what has its elements in memory is read, all else is
refused, and nothing ends the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from ..conftest import ROOT

# Each kind in a process: reading a wrong address ends it. A kind is a tensor and what must be read
# of it, None for nothing.
PROGRAM = """
import json, os, sys, tempfile, warnings
import torch, torch.distributed as dist
import my_utils.torch_ops
from my_utils import ChecksumUtils, DumpTensorIO, _core
warnings.simplefilter("ignore")
ChecksumUtils.enabled = True
base = torch.arange(12.0).view(3, 4)

class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, strides=inner.stride(),
            storage_offset=inner.storage_offset())
    def __init__(self, inner):
        self.inner = inner
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        bare = lambda value: value.inner if isinstance(value, cls) else value
        back = lambda value: cls(value) if isinstance(value, torch.Tensor) else value
        tree_map = torch.utils._pytree.tree_map
        return tree_map(back, function(*tree_map(bare, args), **tree_map(bare, kwargs or {})))

def sharded(placements):
    from torch.distributed.tensor import distribute_tensor, init_device_mesh
    store = dist.FileStore(os.path.join(tempfile.mkdtemp(), "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    return distribute_tensor(base, init_device_mesh("cpu", (1,)), placements)

def dtensor():
    from torch.distributed.tensor import Shard
    return sharded([Shard(0)]), base

def replicated():
    from torch.distributed.tensor import Replicate
    return sharded([Replicate()]), base

def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        return torch.empty(3, 4), None

def freed():
    tensor = base.clone()
    tensor.untyped_storage().resize_(0)
    return tensor, None

def freed_slice():
    tensor = base.clone()
    sliced = tensor[1:]
    tensor.untyped_storage().resize_(0)
    return sliced, None

def conjugated_freed():
    tensor = (base + 1j * base).clone()
    lazy = tensor.conj()
    tensor.untyped_storage().resize_(0)
    return lazy, None

def cut():
    tensor = torch.ones(3, 1 << 20)
    tensor.untyped_storage().resize_(16)
    return tensor, None

def two():
    from torch.testing._internal.two_tensor import TwoTensor
    return TwoTensor(base.clone(), base.clone()), None

def collective():
    replicated()
    from torch.distributed._functional_collectives import all_reduce
    return all_reduce(base.clone(), "sum", dist.group.WORLD), base

kinds = {
    "tensor": lambda: (base.clone(), base),
    "parameter": lambda: (torch.nn.Parameter(base.clone()), base),
    "conjugated": lambda: ((base + 1j * base).conj(), (base + 1j * base).conj().resolve_conj()),
    "negated": lambda: ((1j * base).conj().imag, -base),
    "zero": lambda: (torch._efficientzerotensor((3, 4)), torch.zeros(3, 4)),
    "wrapper": lambda: (Wrapper(base.clone()), None),
    "masked": lambda: (torch.masked.masked_tensor(base, base > 3), None),
    "functional": lambda: (torch._to_functional_tensor(base.clone()), None),
    "meta": lambda: (base.to("meta"), None),
    "quantized": lambda: (torch.quantize_per_tensor(base, 0.1, 0, torch.quint8), None),
    "sparse": lambda: (base.to_sparse(), None),
    "csr": lambda: (base.to_sparse_csr(), None),
    "bsr": lambda: (base[:2].to_sparse_bsr((1, 2)), None),
    "mkldnn": lambda: (base.to_mkldnn(), None),
    "nested": lambda: (torch.nested.nested_tensor([base, base[1:]]), None),
    "jagged": lambda: (torch.nested.nested_tensor([base, base[1:]], layout=torch.jagged), None),
    "dtensor": dtensor, "replicated": replicated, "fake": fake, "freed": freed,
    "freed_slice": freed_slice, "conjugated_freed": conjugated_freed, "cut": cut, "two": two,
    "collective": collective,
}

def said(read):
    try:
        return read()
    except (TypeError, RuntimeError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"

def read_all(kind):
    tensor, plain = kinds[kind]()
    folder = DumpTensorIO(tempfile.mkdtemp())
    for how, cut in slices.items():
        try:
            part = cut(tensor)
            copy = None if plain is None else cut(plain).clone()
        except Exception:  # this kind has no such slice
            continue
        dumped = folder.dump(part, how, "x")
        print(json.dumps({
            "kind": kind, "how": how, "elements": part.numel(),
            "digest": said(lambda: _core.tensor_hash(part).combined),
            "expected": None if plain is None else _core.tensor_hash(copy).combined,
            "mean": said(lambda: _core.stats(part).mean),
            "compared": said(lambda: _core.compare(part, part if copy is None else copy).equal),
            # torch itself reads what is conjugated before an operator gets it.
            "operator": kind == "conjugated_freed" or said(
                lambda: type(torch.ops.my_utils.stats(part)).__name__),
            "dumped": None if dumped is None else _core.tensor_hash(folder.load(how, "x")).combined,
            "signed": said(lambda: list(ChecksumUtils.sign({"good": base, "bad": part}))),
        }), flush=True)

slices = {
    "whole": lambda value: value, "sliced": lambda value: value[1:],
    "row": lambda value: value[2], "turned": lambda value: value[1:].t(),
    "stepped": lambda value: value[::2, 1:], "none": lambda value: value[3:],
}
for kind in kinds:
    child = os.fork()
    if child == 0:
        read_all(kind)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps({"kind": kind, "status": status}), flush=True)
"""

READ = [
    *["tensor", "parameter", "conjugated", "negated", "zero", "dtensor", "replicated"],
    "collective",
]
REFUSED = [
    *["wrapper", "masked", "functional", "meta", "quantized", "sparse", "csr", "bsr", "mkldnn"],
    *["nested", "jagged", "fake", "freed", "freed_slice", "conjugated_freed", "cut", "two"],
]


@pytest.fixture(scope="module")
def readings(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path_factory.mktemp("tensors"), env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def of_kind(readings: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    *found, end = [one for one in readings if one["kind"] == kind]
    assert end == {"kind": kind, "status": 0}
    assert found
    for one in found:
        assert one["signed"][:2] == ["good", "bad"], one
    return found


@pytest.mark.parametrize("kind", READ)
def test_what_has_memory_is_read(readings: list[dict[str, Any]], kind: str) -> None:
    for one in of_kind(readings, kind):
        assert one["digest"] == one["expected"], one
        assert one["compared"] is True, one
        assert one["dumped"] == one["expected"], one


@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_none_is_refused(readings: list[dict[str, Any]], kind: str) -> None:
    for one in of_kind(readings, kind):
        if one["elements"] == 0:
            continue
        for reading in ("digest", "mean", "compared"):
            assert str(one[reading]).startswith("TypeError: "), one
        assert one["dumped"] is None, one
        if kind.startswith("freed"):
            assert one["operator"].startswith("RuntimeError: my_utils::stats: "), one
