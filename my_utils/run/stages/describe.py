"""Records once for each run: its wrappers, where its ranks wait, and its loader."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import sys
from collections.abc import Iterable
from typing import Any

from ...core.ranges import as_ranges, ranges_text
from .roots import held, tensors_of

KEY_DIGITS = 16
_PATHS = (str, bytes, os.PathLike)

Meeting = tuple[str, str, str]
"""(stage, kind, members), as in the row `my_utils.sync`."""


def keys_of_file(file: Any) -> dict[str, object]:
    """By which a checkpoint is known again: the digest of its real path, and, as many are renamed
    once they are written, its inode. Empty for what is not in a file.

    file: a path, an open file, or a storage of `torch.distributed.checkpoint`.
    """
    path = file
    if not isinstance(file, _PATHS):
        path = getattr(file, "path", None) or getattr(file, "name", None)
    if not isinstance(path, _PATHS):
        return {}
    real = os.path.realpath(os.fsencode(path))
    keys: dict[str, object] = {"path": hashlib.sha256(real).hexdigest()[:KEY_DIGITS]}
    with contextlib.suppress(OSError):
        keys["inode"] = os.stat(real).st_ino
    return keys


def _class(module: str, name: str) -> Any:
    """A class of torch if its module is in use."""
    return getattr(sys.modules.get(module), name, None)


def _instances(modules: Iterable[Any], module: str, name: str) -> list[Any]:
    kind = _class(module, name)
    return [] if kind is None else [m for m in modules if issubclass(type(m), kind)]


def ddp_models(modules: Iterable[Any]) -> list[Any]:
    """Those that DDP wraps."""
    return _instances(modules, "torch.nn.parallel.distributed", "DistributedDataParallel")


def _fsdp(modules: Iterable[Any]) -> list[Any]:
    return _instances(
        modules, "torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"
    )


def fsdp2_modules(modules: Iterable[Any]) -> list[Any]:
    """Those that `fully_shard` was called with."""
    return _instances(
        modules, "torch.distributed.fsdp._fully_shard._fully_shard", "FSDPModule"
    ) or _instances(modules, "torch.distributed.fsdp", "FSDPModule")


def fsdp_modules(modules: Iterable[Any]) -> list[Any]:
    """Those of FSDP 2, or of FSDP 1 where there are none."""
    modules = list(modules)
    return fsdp2_modules(modules) or _fsdp(modules)


def wrappers(modules: list[Any]) -> str:
    """The wrappers of data parallelism, joined by "+"; "none" without one."""
    found = {"DDP": ddp_models(modules), "FSDP": _fsdp(modules), "FSDP2": fsdp2_modules(modules)}
    return "+".join(name for name, modules in found.items() if modules) or "none"


def group_ranks(group: Any = None) -> str:
    """The global ranks of a process group as ranges; of all ranks for None."""
    distributed = sys.modules["torch.distributed"]
    if group is None:
        return ranges_text(as_ranges(range(distributed.get_world_size())))
    return ranges_text(as_ranges(distributed.get_process_group_ranks(group)))


def is_member(group: Any = None) -> bool:
    """Whether this process is one of the ranks of a process group; of all ranks for None. It is
    none of a group that has been destroyed."""
    distributed = sys.modules["torch.distributed"]
    try:
        return bool(distributed.get_rank(group) >= 0)
    except (KeyError, ValueError, RuntimeError):
        return False


def _of_fsdp2(module: Any) -> list[Meeting]:
    try:
        mesh = module._get_fsdp_state()._fsdp_param_group.mesh_info.mesh
        members = ranges_text(as_ranges(int(rank) for rank in mesh.mesh.flatten().tolist()))
    except AttributeError:
        members = group_ranks()
    return [("forward", "fsdp", members), ("backward", "fsdp", members)]


def meetings(modules: list[Any]) -> list[Meeting]:
    """In which stages this process meets others because of how its model is wrapped."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return []
    found: list[Meeting] = []
    for module in ddp_models(modules):
        members = group_ranks(module.process_group)
        found.append(("backward", "ddp", members))
        if getattr(module, "broadcast_buffers", False) and any(
            True for _ in tensors_of(module, "_buffers")
        ):
            found.append(("forward", "ddp", members))
    for module in _fsdp(modules):
        members = group_ranks(getattr(module, "process_group", None))
        found += [("forward", "fsdp", members), ("backward", "fsdp", members)]
    for module in fsdp2_modules(modules):
        found += _of_fsdp2(module)
    return list(dict.fromkeys(found))


def pipeline_stage() -> int | None:
    """The number of this process's stage where torch's pipelining is in use, or Megatron's."""
    if (stage := _stage_of_megatron()) is not None:
        return stage
    kind = _class("torch.distributed.pipelining.stage", "_PipelineStageBase")
    if kind is None:
        return None
    numbers = [t.stage_index for t in gc.get_objects() if issubclass(type(t), kind)]
    return min(numbers) if numbers else None


def _stage_of_megatron() -> int | None:
    """None where there is only one."""
    state: Any = sys.modules.get("megatron.core.parallel_state")
    try:
        if not state.model_parallel_is_initialized():
            return None
        stages = state.get_pipeline_model_parallel_world_size()
        return int(state.get_pipeline_model_parallel_rank()) if stages > 1 else None
    except (AttributeError, RuntimeError, ValueError):  # not imported, or another version
        return None


def device_kind(modules: Iterable[Any]) -> str:
    """The kind of device that the parameters are on: the first that is not a CPU."""
    kinds = {
        parameter.device.type
        for module in modules
        for parameter in held(module, "_parameters").values()
        if parameter is not None
    }
    return next(iter(sorted(kinds - {"cpu", "meta"})), "cpu")


def gpu_uuid() -> str | None:
    """The UUID of the current CUDA device, as NVML has it; None if none is in use."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return None
    uuid = getattr(cuda.get_device_properties(cuda.current_device()), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def workload(loader_iterator: Any) -> dict[str, object]:
    """The settings of the loader whose iterator it is."""
    settings: dict[str, object] = {
        "num_workers": getattr(loader_iterator, "_num_workers", None),
        "pin_memory": getattr(loader_iterator, "_pin_memory", None),
        "prefetch_factor": getattr(loader_iterator, "_prefetch_factor", None),
        "batch_size": getattr(getattr(loader_iterator, "_index_sampler", None), "batch_size", None),
    }
    return {name: value for name, value in settings.items() if value is not None}
