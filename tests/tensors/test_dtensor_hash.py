"""global_hash in real processes that talk over gloo, and what it is made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.multiprocessing.spawn import spawn

from my_utils.tensors import global_hash, tensor_hash

# Rows and columns that are cut at blocks, at quads and within quads; uneven and empty shards.
SHAPES: list[tuple[tuple[int, ...], torch.dtype]] = [
    ((16, 8), torch.float32),
    ((4096,), torch.int8),
    ((5000, 3), torch.bfloat16),
    ((7,), torch.bool),
    ((3, 5), torch.float64),
    ((1, 64, 40), torch.float32),
    ((30, 64, 12), torch.float16),
    ((65, 33), torch.complex64),
    ((2, 100, 16), torch.float8_e4m3fn),
    ((1, 1), torch.int64),
    ((0, 8), torch.int32),
    ((8, 0, 3), torch.int32),
]


def full(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The same bits on every rank."""
    generator = torch.Generator().manual_seed(len(shape))
    count = torch.Size(shape).numel() * dtype.itemsize
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    top = 2 if dtype == torch.bool else 256
    bits = torch.randint(0, top, (count,), dtype=torch.uint8, generator=generator)
    return bits.view(dtype).reshape(shape)


def shard(tensor: torch.Tensor, mesh: DeviceMesh, placements: list[Placement]) -> DTensor:
    """Cut here and not by distribute_tensor, whose collectives know no fp8."""
    local = tensor
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    for mesh_dim, placement in enumerate(placements):
        if isinstance(placement, Shard):
            pieces = list(local.chunk(mesh.size(mesh_dim), placement.dim))
            empty = local.narrow(placement.dim, 0, 0)
            place = coordinate[mesh_dim]
            local = pieces[place] if place < len(pieces) else empty
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def check_placements(mesh: DeviceMesh) -> None:
    """Every shape under every placement, all in one call, and some alone."""
    tensors, wanted = [], []
    for shape, dtype in SHAPES:
        tensor = full(shape, dtype)
        choices: list[Placement] = [Replicate(), *map(Shard, range(len(shape))), Shard(-1)]
        for first in choices:
            for second in choices if mesh.ndim == 2 else [Replicate()]:
                tensors.append(shard(tensor, mesh, [first, second][: mesh.ndim]))
                wanted.append(tensor_hash(tensor))
    for tensor, digest, want in zip(tensors, global_hash(tensors), wanted, strict=True):
        assert digest == want, f"{tuple(tensor.shape)} {tensor.dtype} {tensor.placements}"
    assert global_hash(tuple(tensors[::-1])) == wanted[::-1]
    for i in range(0, len(tensors), 7):
        assert global_hash(tensors[i]) == wanted[i]


def check_one_dimension(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    check_placements(mesh)
    check_partial(mesh, rank)
    check_replicas(mesh, rank)
    check_large(mesh)
    check_as_users_do(mesh)


def check_two_dimensions(rank: int, world: int) -> None:
    check_placements(init_device_mesh("cpu", (2, 2)))
    check_strided(rank)
    check_outside(rank)


def check_partial(mesh: DeviceMesh, rank: int) -> None:
    local = torch.full((10, 3), float(rank + 1))
    whole = torch.full((10, 3), float(sum(range(1, mesh.size() + 1))))
    partial = DTensor.from_local(local, mesh, [Partial()])
    assert global_hash(partial) == tensor_hash(whole)
    assert partial.placements[0].is_partial()


def check_replicas(mesh: DeviceMesh, rank: int) -> None:
    """A replica that is not like the others has another digest, on its rank."""
    local = torch.arange(100)
    local[3] += rank == 1
    replica = DTensor.from_local(local, mesh, [Replicate()], run_check=False)
    assert (global_hash(replica) == tensor_hash(torch.arange(100))) == (rank != 1)


def check_large(mesh: DeviceMesh) -> None:
    """Large enough for threads."""
    tensor = torch.arange(1_500_000, dtype=torch.int32).reshape(1000, 1500)
    for dim in (0, 1):
        assert global_hash(shard(tensor, mesh, [Shard(dim)])) == tensor_hash(tensor)
        transposed = shard(tensor.T, mesh, [Shard(dim)])
        assert global_hash(transposed) == tensor_hash(tensor.T)


def check_as_users_do(mesh: DeviceMesh) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 50), torch.nn.Linear(50, 10))
    wanted = tensor_hash(list(model.state_dict().values()))
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=mesh)
    assert global_hash(list(model.parameters())) == wanted
    assert global_hash(list(model.state_dict().values())) == wanted
    x = distribute_tensor(torch.arange(24.0).reshape(4, 6), mesh, [Shard(0)])
    assert global_hash(x) == tensor_hash(x.full_tensor())
    assert global_hash([x, torch.ones(3)])[1] == tensor_hash(torch.ones(3))
    complex_one = distribute_tensor(torch.arange(8) * (1 + 2j), mesh, [Shard(0)])
    assert global_hash(complex_one) == tensor_hash(torch.arange(8) * (1 + 2j))


def check_strided(rank: int) -> None:
    """FSDP over tensor parallelism: shards of one dimension in an order of their own."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 24))
    wanted = tensor_hash(model[0].weight)
    parallelize_module(model, mesh["model"], {"0": ColwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    weight = next(model.parameters())
    assert isinstance(weight, DTensor)
    assert any(type(item).__name__ == "_StridedShard" for item in weight.placements)
    assert global_hash(weight) == wanted


def check_outside(rank: int) -> None:
    mesh = DeviceMesh("cpu", [0, 1])
    tensor = torch.arange(10.0)
    if rank < 2:
        assert global_hash(shard(tensor, mesh, [Shard(0)])) == tensor_hash(tensor)
        return
    outside = DTensor.from_local(
        tensor[:0], mesh, [Shard(0)], run_check=False, shape=tensor.shape, stride=(1,)
    )
    with pytest.raises(ValueError, match="whose mesh this rank is not in"):
        global_hash(outside)


def run_rank(rank: int, world: int, meeting_point: str, check: Callable[[int, int], None]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meeting_point}", rank=rank, world_size=world)
    try:
        check(rank, world)
        dist.barrier()
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "check"),
    [
        (2, check_one_dimension),
        pytest.param(4, check_one_dimension, marks=pytest.mark.thorough),
        pytest.param(4, check_two_dimensions, marks=pytest.mark.thorough),
    ],
    ids=["2", "4", "2 x 2"],
)
def test_ranks(world: int, check: Callable[[int, int], None], tmp_path: Path) -> None:
    spawn(run_rank, (world, str(tmp_path / "meeting"), check), nprocs=world)


class TestWithoutRanks:
    def test_a_plain_tensor_is_hashed_as_it_is(self) -> None:
        x = torch.randn(5, 5).T
        assert global_hash(x) == tensor_hash(x)
        assert global_hash([x, x.numpy()]) == [tensor_hash(x)] * 2
        assert global_hash([]) == []

    def test_what_is_no_tensor_is_refused(self) -> None:
        with pytest.raises(TypeError, match="tensors must be"):
            global_hash("text")

    def test_it_needs_no_torch_before_it_is_called(self, run_python: Any) -> None:
        code = "import my_utils.tensors, sys; assert 'torch' not in sys.modules"
        assert run_python("-c", code).returncode == 0
