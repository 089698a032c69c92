"""One digest for a tensor that is sharded over ranks, from the shards.

The tensor hash adds up: each rank sums the boxes of the tensor that it has, and an all-reduce of
nine numbers a tensor does the rest. Quads of 16 bytes that shards share travel as their bytes.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, overload

from .. import _core
from .._core import TensorDigest, TensorSums

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement

    Range = tuple[int, int]

# S and T, and the bytes that were summed.
_WORDS = struct.Struct("<9Q")
# A run of cut bytes: of which tensor, where it begins, its length and the bytes.
_CUT = struct.Struct("<QQQ16s")


@overload
def global_hash(tensors: list[Any] | tuple[Any, ...]) -> list[TensorDigest]: ...
@overload
def global_hash(tensors: Any) -> TensorDigest: ...
def global_hash(tensors: Any) -> Any:
    """The tensor hash of whole DTensors: the `tensor_hash` of the full tensor, without gathering
    it.

    A collective: all ranks of a tensor's mesh must call it, with the same tensors in the same
    order. Each sums its shards, of any layout, and 72 bytes a tensor cross the network, for all
    tensors of a list together; more only where shards do not begin and end at multiples of 16
    bytes, whose bytes are exchanged. Shards may be uneven or empty. A `Partial` placement is
    reduced first, which needs memory for the full tensor.

    Along a mesh dimension with `Replicate` each replica is hashed for itself, so that ranks get
    different digests where replicas differ. A tensor that is not a DTensor is hashed by each rank
    separately.

    Args:
        tensors: one DTensor or tensor, or a list or tuple of them.

    Returns:
        A TensorDigest with the shape of the full tensor; a list for a list.

    Raises:
        TypeError: something is not a tensor, or has no memory.
        ValueError: this rank is not in the mesh of a tensor, or its shard has not the shape that
            the placements say.

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
    found = [_Shards(tensor) if _is_sharded(tensor) else tensor for tensor in tensors]
    by_mesh: dict[Any, list[_Shards]] = {}
    for shards in found:
        if isinstance(shards, _Shards):
            by_mesh.setdefault((shards.mesh, shards.mesh_dims, shards.device), []).append(shards)
    for together in by_mesh.values():
        _sum_over_ranks(together)
    return [
        item.digest() if isinstance(item, _Shards) else _core.tensor_hash(item) for item in found
    ]


def _is_sharded(tensor: object) -> bool:
    return hasattr(tensor, "placements") and hasattr(tensor, "device_mesh")


class _Shards:
    """What this rank has of one DTensor; `sums` becomes that of the whole."""

    def __init__(self, tensor: DTensor) -> None:
        coordinate = tensor.device_mesh.get_coordinate()
        if coordinate is None:
            raise ValueError("tensors has a DTensor whose mesh this rank is not in")
        tensor = _without_partial(tensor.detach())  # type: ignore[arg-type]
        self.mesh: DeviceMesh = tensor.device_mesh
        self.mesh_dims = tuple(
            mesh_dim
            for mesh_dim, placement in enumerate(tensor.placements)
            if not placement.is_replicate() and self.mesh.size(mesh_dim) > 1
        )
        self.coordinate = [coordinate[mesh_dim] for mesh_dim in self.mesh_dims]
        self.sizes = [self.mesh.size(mesh_dim) for mesh_dim in self.mesh_dims]
        self.shape = tuple(tensor.shape)
        self.dtype = str(tensor.dtype).removeprefix("torch.")
        self.device: torch.device = tensor.to_local().device
        self.sums = TensorSums((0,) * 8, 0, prod(self.shape) * tensor.element_size())
        for box, at in local_boxes(tensor, coordinate):
            self.sums += _core.tensor_sums(box, self.shape, at)

    def slot(self) -> int:
        """The number of this rank among those that have shards of the same replica."""
        number = 0
        for place, parts in zip(self.coordinate, self.sizes, strict=True):
            number = number * parts + place
        return number

    def digest(self) -> TensorDigest:
        return _core.sums_digest(self.sums, self.dtype, self.shape)


def local_boxes(
    tensor: DTensor, coordinate: Sequence[int]
) -> Iterator[tuple[torch.Tensor, tuple[int, ...]]]:
    """The boxes of the whole that the rank at `coordinate` of the mesh has, each with the index at
    which it begins. ValueError if its shard has not the shape that the placements say."""
    ranges = [[(0, size)] for size in tensor.shape]
    for mesh_dim, placement in enumerate(tensor.placements):
        if not placement.is_replicate():
            dim = placement.dim % tensor.dim()  # type: ignore[attr-defined]
            size = sum(end - begin for begin, end in ranges[dim])
            parts, place = tensor.device_mesh.size(mesh_dim), coordinate[mesh_dim]
            shard = _find_shard(placement, size, parts, place)
            ranges[dim] = [piece for taken in shard for piece in _take(ranges[dim], taken)]
    return _boxes(tensor.to_local(), ranges)


def _without_partial(tensor: DTensor) -> DTensor:
    from torch.distributed.tensor import Replicate

    if not any(placement.is_partial() for placement in tensor.placements):
        return tensor
    wanted = [Replicate() if item.is_partial() else item for item in tensor.placements]
    return tensor.redistribute(placements=wanted)


def _chunk(whole: Range, parts: int, place: int) -> Range:
    """The part of a range at that place, cut as torch.chunk does."""
    begin, end = whole
    size = -(-(end - begin) // parts)
    return min(begin + size * place, end), min(begin + size * (place + 1), end)


def _find_shard(placement: Placement, size: int, parts: int, place: int) -> list[Range]:
    """What a rank has of `size` indices. `_StridedShard` (FSDP over tensor parallelism) cuts them
    into pieces first, and each rank has a part of every piece."""
    pieces = getattr(placement, "split_factor", 1)
    return [_chunk(_chunk((0, size), pieces, i), parts, place) for i in range(pieces)]


def _take(ranges: list[Range], taken: Range) -> Iterator[Range]:
    """The ranges in the places [begin, end) of all of them, one after the other."""
    first = 0
    for begin, end in ranges:
        after = first + end - begin
        piece = (begin + max(taken[0] - first, 0), end - max(after - taken[1], 0))
        if piece[0] < piece[1]:
            yield piece
        first = after


def _boxes(
    local: torch.Tensor, ranges: list[list[Range]]
) -> Iterator[tuple[torch.Tensor, tuple[int, ...]]]:
    """The boxes of the whole in the local shard, each with the index at which it begins."""
    wanted = [sum(end - begin for begin, end in of_dim) for of_dim in ranges]
    if local.numel() != prod(wanted) or (local.numel() and list(local.shape) != wanted):
        raise ValueError(
            f"tensors has a DTensor with a local shard of shape {tuple(local.shape)}, where its "
            f"placements say {tuple(wanted)}"
        )
    if local.numel() == 0:
        return
    for box in itertools.product(*map(_with_places, ranges)):
        view = local
        for dim, (place, (begin, end)) in enumerate(box):
            view = view.narrow(dim, place, end - begin)
        yield view, tuple(begin for _, (begin, _) in box)


def _with_places(ranges: list[Range]) -> Iterator[tuple[int, Range]]:
    """Each range with the index of the local shard at which it begins."""
    place = 0
    for begin, end in ranges:
        yield place, (begin, end)
        place += end - begin


def _sum_over_ranks(shards: list[_Shards]) -> None:
    """Replaces the sums of tensors of one mesh by those of all ranks, in one go."""
    cuts = b"".join(
        _CUT.pack(number, at, len(data), data)
        for number, item in enumerate(shards)
        for at, data in item.sums.cut
    )
    slot, slots = shards[0].slot(), prod(shards[0].sizes)
    words = b"".join(_WORDS.pack(*item.sums.sums, item.sums.nbytes) for item in shards)
    mine = struct.pack(f"<{slots}Q", *(len(cuts) if i == slot else 0 for i in range(slots)))
    summed = _all_reduce(shards[0], words + mine)
    words, lengths = summed[: len(words)], struct.unpack(f"<{slots}Q", summed[len(words) :])
    if any(lengths):
        before, after = sum(lengths[:slot]), sum(lengths[slot + 1 :])
        cuts = _all_reduce(shards[0], bytes(before) + cuts + bytes(after))
    by_tensor: list[list[tuple[int, bytes]]] = [[] for _ in shards]
    for number, at, length, data in _CUT.iter_unpack(cuts):
        by_tensor[number].append((at, data[:length]))
    for item, values, cut in zip(shards, _WORDS.iter_unpack(words), by_tensor, strict=True):
        item.sums = TensorSums(values[:8], values[8], item.sums.total, cut)


def _all_reduce(like: _Shards, words: bytes) -> bytes:
    """The sum of 64-bit numbers over the ranks that have shards of the same replica."""
    import torch
    import torch.distributed as dist

    buffer = torch.frombuffer(bytearray(words), dtype=torch.int64).to(like.device)
    for mesh_dim in like.mesh_dims:
        dist.all_reduce(buffer, group=like.mesh.get_group(mesh_dim))
    return bytes(buffer.cpu().numpy().tobytes())
