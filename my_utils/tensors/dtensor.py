"""One digest for a tensor that is sharded over ranks, from the shards.

The tensor hash adds up, so each rank hashes its shard and an all-reduce does the rest: 128 bytes
where shards are runs of the tensor's bytes (sharded along the first dimension), 32 bytes for every
4096 bytes of the tensor where they are not (columns).
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, overload

from .. import _core
from .._core import TensorDigest

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

PART_WORDS = 16
QUAD_BYTES = 16


@overload
def global_hash(tensors: list[Any] | tuple[Any, ...]) -> list[TensorDigest]: ...
@overload
def global_hash(tensors: Any) -> TensorDigest: ...
def global_hash(tensors: Any) -> Any:
    """The tensor hash of whole DTensors: the `tensor_hash` of the full tensor, without gathering
    it.

    A collective: all ranks of a tensor's mesh must call it, with the same tensors in the same
    order. Each hashes the shard that it has, and small sums cross the network, for all tensors of a
    list together. Shards may be uneven or empty. Elements are exchanged in three cases only, and
    then each rank needs memory for the full tensor: for columns that do not begin and end at
    multiples of 16 bytes, for interleaved shards (`_StridedShard`), and for a `Partial` placement,
    which is reduced first.

    Along a mesh dimension with `Replicate` each replica is hashed for itself, so that ranks get
    different digests where replicas differ. A tensor that is not a DTensor is hashed by each rank
    separately.

    Args:
        tensors: one DTensor or tensor, or a list or tuple of them.

    Returns:
        A TensorDigest with the shape of the full tensor; a list for a list.

    Raises:
        TypeError: something is not a tensor, or has no memory.
        ValueError: this rank is not in the mesh of a tensor.

    >>> import torch
    >>> from my_utils.tensors import global_hash, tensor_hash
    >>> x = torch.arange(6.0)
    >>> global_hash(x) == tensor_hash(x)
    True
    """
    if not isinstance(tensors, (list, tuple)):
        return _hash_all([tensors])[0]
    return _hash_all(tensors)


def _hash_all(tensors: Sequence[Any]) -> list[TensorDigest]:
    plans = [_plan(tensor) for tensor in tensors]
    by_mesh: dict[Any, list[_Plan]] = {}
    for plan in plans:
        if plan.is_shared:
            by_mesh.setdefault((plan.mesh, plan.mesh_dims, plan.device), []).append(plan)
    for together in by_mesh.values():
        _sum_over_ranks(together)
    return [plan.finish() for plan in plans]


def _plan(tensor: Any) -> _Plan:
    """How to hash the tensor; the same on all ranks of its mesh."""
    if not (hasattr(tensor, "placements") and hasattr(tensor, "device_mesh")):
        return _Whole(tensor)
    if tensor.device_mesh.get_coordinate() is None:
        raise ValueError("tensors has a DTensor whose mesh this rank is not in")
    tensor = _without_partial(tensor.detach())
    if not all(_is_plain(placement) for placement in tensor.placements):
        return _Whole(tensor.full_tensor())
    layout = _Layout(tensor)
    if tensor.numel() == 0 or not layout.mesh_dims:
        return _Whole(layout.local(), tuple(tensor.shape))
    if layout.is_one_run():
        return _Runs(layout)
    if layout.has_whole_quads():
        return _Boxes(layout)
    return _Elements(layout)


def _without_partial(tensor: DTensor) -> DTensor:
    from torch.distributed.tensor import Replicate

    if not any(placement.is_partial() for placement in tensor.placements):
        return tensor
    wanted = [Replicate() if item.is_partial() else item for item in tensor.placements]
    return tensor.redistribute(placements=wanted)


def _is_plain(placement: object) -> bool:
    from torch.distributed.tensor import Replicate, Shard

    return type(placement) in (Replicate, Shard)


class _Layout:
    """Where the shards of a DTensor are in the whole."""

    def __init__(self, tensor: DTensor) -> None:
        self.tensor = tensor
        self.mesh: DeviceMesh = tensor.device_mesh
        self.shape = tuple(tensor.shape)
        self.item_bytes = tensor.element_size()
        self.mesh_dims = tuple(
            mesh_dim
            for mesh_dim, placement in enumerate(tensor.placements)
            if placement.is_shard() and self.mesh.size(mesh_dim) > 1
        )

    def dim_of(self, mesh_dim: int) -> int:
        """The dimension of the tensor that is sharded along one of the mesh."""
        dim: int = self.tensor.placements[mesh_dim].dim  # type: ignore[attr-defined]
        return dim % len(self.shape)

    def box(self, coordinate: Sequence[int]) -> tuple[list[int], list[int]]:
        """Offset and shape of the shard at a place in the mesh: cut as torch.chunk does, along
        one dimension of the mesh after the other."""
        offset, shape = [0] * len(self.shape), list(self.shape)
        for mesh_dim in self.mesh_dims:
            dim, parts = self.dim_of(mesh_dim), self.mesh.size(mesh_dim)
            chunk = -(-shape[dim] // parts)
            begin = min(chunk * coordinate[mesh_dim], shape[dim])
            offset[dim] += begin
            shape[dim] = min(chunk, shape[dim] - begin)
        return offset, shape

    def my_box(self) -> tuple[list[int], list[int]]:
        coordinate = self.mesh.get_coordinate()
        assert coordinate is not None
        return self.box(coordinate)

    def slot(self) -> int:
        """The number of this rank among those that have a shard of the same replica."""
        coordinate = self.mesh.get_coordinate()
        assert coordinate is not None
        number = 0
        for mesh_dim in self.mesh_dims:
            number = number * self.mesh.size(mesh_dim) + coordinate[mesh_dim]
        return number

    def slots(self) -> int:
        return prod(self.mesh.size(mesh_dim) for mesh_dim in self.mesh_dims)

    def local(self) -> torch.Tensor:
        local = self.tensor.to_local()
        wanted = self.my_box()[1]
        if local.numel() != prod(wanted) or (local.numel() and list(local.shape) != wanted):
            raise ValueError(
                f"tensors has a DTensor of shape {self.shape} and placements "
                f"{self.tensor.placements} with a local shard of shape {tuple(local.shape)} "
                f"instead of {tuple(wanted)}"
            )
        return local

    def is_one_run(self) -> bool:
        """Whether every shard is one run of the row-major bytes."""
        dims = {self.dim_of(mesh_dim) for mesh_dim in self.mesh_dims}
        return len(dims) == 1 and prod(self.shape[: dims.pop()]) == 1

    def has_whole_quads(self) -> bool:
        """Whether all runs of all shards begin and end at multiples of 16 bytes."""
        last = max(self.dim_of(mesh_dim) for mesh_dim in self.mesh_dims)
        inner = self.item_bytes * prod(self.shape[last + 1 :])
        edges = {self.shape[last]}
        sizes = [
            self.mesh.size(mesh_dim) if mesh_dim in self.mesh_dims else 1
            for mesh_dim in range(self.mesh.ndim)
        ]
        for coordinate in itertools.product(*map(range, sizes)):
            offset, shape = self.box(coordinate)
            edges |= {offset[last], offset[last] + shape[last]}
        return all(edge * inner % QUAD_BYTES == 0 for edge in edges)

    def dtype_name(self) -> str:
        return str(self.tensor.dtype).removeprefix("torch.")


class _Plan(ABC):
    """How one tensor is hashed: `buffer`, 64-bit numbers on the CPU, is summed over the ranks of
    `mesh_dims`, and `finish` makes the digest of it."""

    is_shared = True
    mesh: DeviceMesh
    mesh_dims: tuple[int, ...]
    device: torch.device
    buffer: torch.Tensor

    def take(self, layout: _Layout) -> torch.Tensor:
        """The local shard, on the CPU."""
        self.layout = layout
        self.mesh, self.mesh_dims = layout.mesh, layout.mesh_dims
        local = layout.local()
        self.device = local.device
        return local.cpu()

    @abstractmethod
    def finish(self) -> TensorDigest: ...


class _Whole(_Plan):
    """A tensor that this rank has whole, also when it has another shape than the DTensor, because
    there are no elements."""

    is_shared = False

    def __init__(self, tensor: Any, shape: tuple[int, ...] | None = None) -> None:
        self.tensor, self.shape = tensor, shape

    def finish(self) -> TensorDigest:
        digest: TensorDigest = _core.tensor_hash(self.tensor)
        if self.shape is None:
            return digest
        return TensorDigest(digest.content, digest.dtype, self.shape)


class _Runs(_Plan):
    """Each rank puts the state of its run into a separate place."""

    def __init__(self, layout: _Layout) -> None:
        import torch

        local = self.take(layout)
        dim = layout.dim_of(layout.mesh_dims[0])
        first = layout.my_box()[0][dim] * prod(layout.shape[dim + 1 :]) * layout.item_bytes
        state = _core.tensor_hash_part(local, first)
        places = torch.zeros(layout.slots(), PART_WORDS, dtype=torch.int64)
        places[layout.slot()] = torch.frombuffer(state, dtype=torch.int64)
        self.buffer = places.view(-1)

    def finish(self) -> TensorDigest:
        layout = self.layout
        return _core.tensor_hash_merge(self.buffer, layout.dtype_name(), layout.shape)


class _Boxes(_Plan):
    """Each rank adds to the accumulators of all blocks."""

    def __init__(self, layout: _Layout) -> None:
        import torch

        offset, shape = layout.my_box()
        local = self.take(layout).contiguous().view(shape)
        sums = _core.tensor_hash_box(local, layout.shape, offset)
        self.buffer = torch.frombuffer(sums, dtype=torch.int64)

    def finish(self) -> TensorDigest:
        layout = self.layout
        return _core.tensor_hash_close(self.buffer, layout.dtype_name(), layout.shape)


class _Elements(_Plan):
    """Each rank puts its elements into their places in the whole; where it has none are zeros."""

    def __init__(self, layout: _Layout) -> None:
        import torch

        offset, shape = layout.my_box()
        local = self.take(layout)
        count = prod(layout.shape) * layout.item_bytes
        self.buffer = torch.zeros(-(-count // 8), dtype=torch.int64)
        if local.numel() > 0:
            places = self.whole().view(torch.uint8)
            for dim, (first, length) in enumerate(zip(offset, shape, strict=True)):
                unit = layout.item_bytes if dim == len(shape) - 1 else 1
                places = places.narrow(dim, first * unit, length * unit)
            places.copy_(local.resolve_conj().resolve_neg().contiguous().view(torch.uint8))

    def whole(self) -> torch.Tensor:
        """The full tensor, in the memory of the buffer."""
        import torch

        layout = self.layout
        count = prod(layout.shape) * layout.item_bytes
        data = self.buffer.view(torch.uint8)[:count]
        return data.view(layout.tensor.dtype).view(layout.shape)

    def finish(self) -> TensorDigest:
        digest: TensorDigest = _core.tensor_hash(self.whole())
        return digest


def _sum_over_ranks(plans: list[_Plan]) -> None:
    """Sums the buffers of plans of one mesh, all in one go."""
    import torch
    import torch.distributed as dist

    together = torch.cat([plan.buffer for plan in plans]).to(plans[0].device)
    for mesh_dim in plans[0].mesh_dims:
        dist.all_reduce(together, group=plans[0].mesh.get_group(mesh_dim))
    sizes = [plan.buffer.numel() for plan in plans]
    for plan, summed in zip(plans, together.cpu().split(sizes), strict=True):
        plan.buffer = summed
