"""What a tensor of a model is to the same tensor on other ranks: boxes of one whole, a replica, or
nothing that is known. It asks torch's and Megatron's own records, and sends nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.ranges import as_ranges, ranges_text
from ..dtensor import local_boxes
from .file import GroupData

if TYPE_CHECKING:
    from torch import Tensor

_PLAIN = "plain tensors: no mesh, DDP or layout says what other ranks have"


class Local(NamedTuple):
    """values: a box of the whole tensor, in memory. at: where it begins."""

    values: Tensor
    at: tuple[int, ...]


class Placed(NamedTuple):
    """What this rank has of a tensor of `shape`. group: the ranks that have parts of the same one.
    replicas: those of them that have these very boxes."""

    shape: tuple[int, ...]
    locals: list[Local]
    group: GroupData
    replicas: GroupData


def place(tensor: Tensor, replicas: GroupData | None, rank: int, world_size: int) -> Placed:
    """replicas: the ranks among which a plain tensor is replicated, None if that is not known.

    ValueError for a DTensor whose placements are of a kind that is not known.
    """
    if hasattr(tensor, "placements") and hasattr(tensor, "device_mesh"):
        return _of_dtensor(tensor)
    if hasattr(tensor, "local_shards"):
        return _of_sharded_tensor(tensor, rank)
    values = tensor.detach()
    shape, begin = tuple(values.shape), [0] * values.dim()
    group = replicas or (GroupData() if world_size == 1 else GroupData(str(rank), _PLAIN))
    same = group
    megatron = _megatron(tensor)
    if megatron is not None:
        group, same, dim, tp_rank, tp_size = megatron
        if dim is not None:
            begin[dim] = tp_rank * shape[dim]
            shape = (*shape[:dim], shape[dim] * tp_size, *shape[dim + 1 :])
    return Placed(shape, [Local(values, tuple(begin))], group, same)


def group_of(ranks: Sequence[int], why: str = "") -> GroupData:
    return GroupData(ranges_text(as_ranges(ranks)), why)


def _of_dtensor(tensor: Any) -> Placed:
    """Also of uneven, empty and strided shards."""
    mesh, shape = tensor.device_mesh, tuple(tensor.shape)
    coordinate = mesh.get_coordinate()
    group = group_of(mesh.mesh.flatten().tolist())
    if coordinate is None:
        return Placed(shape, [], group, group)
    if any(placement.is_partial() for placement in tensor.placements):
        group = GroupData(group.ranks, "sums that are not reduced yet (Partial)")
        return Placed(shape, [], group, group)
    boxes = list(local_boxes(tensor.detach(), coordinate))
    if not prod(shape):  # which has no box, but is there
        boxes = [(tensor.detach().to_local(), (0,) * len(shape))]
    along = [
        slice(None) if placement.is_replicate() else place
        for placement, place in zip(tensor.placements, coordinate, strict=True)
    ]
    same = group_of(mesh.mesh[tuple(along)].flatten().tolist())
    return Placed(shape, [Local(*box) for box in boxes], group, same)


def _of_sharded_tensor(tensor: Any, rank: int) -> Placed:
    """What the sharded state dict of FSDP 1 has."""
    import torch.distributed as dist

    group = group_of(dist.get_process_group_ranks(tensor._process_group))
    shards = [
        Local(shard.tensor.detach(), tuple(shard.metadata.shard_offsets))
        for shard in tensor.local_shards()
    ]
    return Placed(tuple(tensor.metadata().size), shards, group, group_of([rank]))


def check_not_flat(model: Any) -> None:
    """ValueError if FSDP 1 has made flat shards of the parameters."""
    fsdp = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    if fsdp is None:
        return
    for module in model.modules():
        if not isinstance(module, fsdp.FullyShardedDataParallel):
            continue
        is_whole = module.training_state == fsdp.TrainingState.SUMMON_FULL_PARAMS
        if not is_whole and module.sharding_strategy != fsdp.ShardingStrategy.NO_SHARD:
            raise ValueError(
                "model is wrapped by FSDP 1, which makes flat shards of its parameters: pass its "
                "sharded state dict, or the model within summon_full_params"
            )


# --- replicas of plain tensors ---


def replicated_by(module: Any) -> GroupData | None:
    """The ranks among which a wrapper keeps its plain tensors equal; None if it is no such one."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    if not isinstance(module, DistributedDataParallel):
        return None
    ranks = dist.get_process_group_ranks(module.process_group)
    for hook, _ in getattr(module, "_comm_hooks", ()):
        if "local" in getattr(hook, "__name__", "").lower():
            return GroupData(str(dist.get_rank()), "LocalSGD: replicas differ between averages")
    return group_of(ranks)


def ignored_by(module: Any) -> set[str]:
    """The names within a wrapper of the tensors that it is told to leave alone, so that each rank
    may have others, such as experts of its own."""
    names = set(getattr(module, "parameters_to_ignore", ()))
    delayed = {id(one) for one in getattr(module, "_delay_all_reduce_params", ())}
    if delayed:  # which DDP reduces later, all at once
        inner = module.module.named_parameters(remove_duplicate=False)
        names.difference_update([name for name, one in inner if id(one) in delayed])
    return {f"module.{name}" for name in names}


def _megatron(tensor: Any) -> tuple[GroupData, GroupData, int | None, int, int] | None:
    """The ranks of a Megatron parameter, those that have the same shard, the dimension along which
    it is sharded, and which shard of how many this is; None if it is none."""
    state = sys.modules.get("megatron.core.parallel_state")
    if not hasattr(tensor, "tensor_model_parallel") or state is None:
        return None
    if not state.model_parallel_is_initialized():
        return None
    import torch.distributed as dist

    ranks = dist.get_process_group_ranks
    if not getattr(tensor, "allreduce", True):
        group = group_of(ranks(state.get_expert_data_parallel_group()))
        group = GroupData(group.ranks, "experts: a layout says which")
        return group, group, None, 0, 1
    group = group_of(ranks(state.get_tensor_and_data_parallel_group(with_context_parallel=True)))
    if not tensor.tensor_model_parallel:
        return group, group, None, 0, 1
    same = group_of(ranks(state.get_data_parallel_group(with_context_parallel=True)))
    size = state.get_tensor_model_parallel_world_size()
    return group, same, tensor.partition_dim, state.get_tensor_model_parallel_rank(), size
