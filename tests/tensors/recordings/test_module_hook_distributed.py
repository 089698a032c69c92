"""The forward trace recorder under DDP and FSDP2, in two real processes over gloo."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import spawn

from my_utils.module_hook import ForwardTraceRecorder
from my_utils.tensors.recordings.recording import Recording

from .test_module_hook import Net, hash_of, md5_of

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("torch.distributed has no gloo here", allow_module_level=True)

WORLD = 2


def net() -> Net:
    torch.manual_seed(3)
    return Net()


def given(rank: int) -> torch.Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(rank))


def _run(rank: int, folder: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD)
    try:
        for work in (with_ddp, with_fsdp, with_filters, with_dtensors):
            work(rank).save(f"{folder}/{work.__name__}/rank{{rank}}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks recorded of all that follows."""
    folder = tmp_path_factory.mktemp("ranks")
    spawn(_run, args=(str(folder),), nprocs=WORLD)
    return folder


def recordings(folder: Path, work: Callable[[int], ForwardTraceRecorder]) -> list[Recording]:
    files = [folder / work.__name__ / f"rank{rank}.pt" for rank in range(WORLD)]
    found = [ForwardTraceRecorder.load(file) for file in files]
    assert [(each.rank, each.world_size) for each in found] == [(0, WORLD), (1, WORLD)]
    return found


def alone(rank: int, **options: Any) -> Recording:
    model = net()
    with ForwardTraceRecorder(model, **options) as recorder:
        model(given(rank))
    return recorder.snapshot()


def outputs(recording: Recording, prefix: str = "") -> dict[str, list[str | None]]:
    return {
        event.module.removeprefix(prefix): [meta.hash for meta in event.outputs]
        for event in recording.events
        if event.phase == "forward"
    }


OPTIONS: dict[str, Any] = {"record_param_md5": True, "record_grads": True}


def with_ddp(rank: int) -> ForwardTraceRecorder:
    model = nn.parallel.DistributedDataParallel(net())
    with ForwardTraceRecorder(model, **OPTIONS) as recorder:
        model(given(rank)).sum().backward()
    return recorder


@pytest.mark.slow
def test_ddp(folder: Path) -> None:
    for rank, recording in enumerate(recordings(folder, with_ddp)):
        assert not recording.counts
        expected = alone(rank, **OPTIONS)
        assert recording.events[0].type == "DistributedDataParallel"
        found = outputs(recording, "module.")
        for name, hashes in outputs(expected).items():
            assert found[name or "module"] == hashes
        weights = recording.roots[0].weights
        assert {name.removeprefix("module."): meta.hash for name, meta in weights.items()} == {
            name: meta.hash for name, meta in expected.roots[0].weights.items()
        }
        assert recording.param_grads and all(event.grads for event in recording.events)


def with_fsdp(rank: int) -> ForwardTraceRecorder:
    from torch.distributed.fsdp import fully_shard
    from torch.utils.checkpoint import checkpoint

    mesh = init_device_mesh("cpu", (WORLD,))
    model = net()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
        # Its second call, in the backward, gathers the weights again.
        whole = block.forward
        block.forward = lambda x, whole=whole: checkpoint(whole, x, use_reentrant=False)
    fully_shard(model, mesh=mesh)
    with ForwardTraceRecorder(model, record_param_md5=True) as recorder:
        model(given(rank)).sum().backward()
        model(given(rank))
    return recorder


def test_fsdp2_hashes_the_whole_weights(folder: Path) -> None:
    weights = {name: md5_of(param) for name, param in net().named_parameters()}
    for rank, recording in enumerate(recordings(folder, with_fsdp)):
        assert not recording.counts
        assert not [event.error for event in recording.events if event.error]
        roots = [root for root in recording.roots if root.phase == "forward"]
        assert len(roots) == 2
        for root in roots:
            assert {name: meta.hash for name, meta in root.weights.items()} == weights
            assert not any(meta.changed for meta in root.weights.values())
        expected = alone(rank)
        assert outputs(recording) == outputs(expected)
        first = next(event for event in recording.events if event.module == "blocks.1.first")
        assert first.params["weight"].hash == weights["blocks.1.first.weight"]
        assert first.params["weight"].shape == (4, 4)
        again = [event.module for event in recording.events if event.phase == "recompute"]
        assert again[:1] == ["blocks.1.first"] and "blocks.0.act" in again


def with_filters(rank: int) -> ForwardTraceRecorder:
    from torch.distributed.fsdp import fully_shard

    model = net()
    mesh = init_device_mesh("cpu", (WORLD,))
    fully_shard(model.blocks[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    with ForwardTraceRecorder(
        model, include_name_regex="first$|head$", record_param_hash=True
    ) as recorder:
        model(given(rank))
    return recorder


def test_fsdp2_where_the_sharded_module_itself_is_left_out(folder: Path) -> None:
    model = net()
    for recording in recordings(folder, with_filters):
        events = recording.events
        assert [event.module for event in events] == ["blocks.0.first", "blocks.1.first", "head"]
        for event in events:
            weight = model.get_submodule(event.module).weight
            assert event.params["weight"].hash == hash_of(weight)
        assert "blocks.0.second.weight" not in recording.roots[0].weights


class Gives(nn.Module):
    def forward(self, x: Any) -> Any:
        return x


def with_dtensors(rank: int) -> ForwardTraceRecorder:
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (WORLD,))
    whole = torch.arange(12.0).reshape(6, 2)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    model = Gives()
    model.weight = nn.Parameter(distribute_tensor(whole + 1, mesh, [Shard(0)]))
    with ForwardTraceRecorder(model, record_param_md5=True) as recorder:
        model(sharded)
    return recorder


def test_dtensors_are_their_local_shards(folder: Path) -> None:
    whole = torch.arange(12.0).reshape(6, 2)
    for rank, recording in enumerate(recordings(folder, with_dtensors)):
        shard = whole[3 * rank : 3 * rank + 3]
        meta = recording.events[0].inputs[0]
        assert meta.hash == hash_of(shard) and meta.shape == (3, 2)
        assert meta.global_shape == (6, 2) and meta.placements == "(Shard(dim=0),)"
        weight = recording.roots[0].weights["weight"]
        assert weight.hash == md5_of(shard + 1) and weight.global_shape == (6, 2)
        assert recording.events[0].params["weight"].hash == weight.hash
