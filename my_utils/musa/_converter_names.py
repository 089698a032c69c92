"""The names of PyTorch's modules, attributes and strings under torch_musa.

torch_musa sets `torch.musa` and `torch.backends.mudnn` as attributes: there is no module of either
name, so that an attribute and an import of one thing are written differently.

>>> new_path("torch.cuda.amp"), new_path("torch.cuda.random"), new_path("numba.cuda")
('torch.musa.amp', 'torch.musa.core.random', 'numba.cuda')
>>> new_module("torch.cuda"), new_module("torch.cuda.amp"), new_module("torch.nn")
('torch_musa', 'torch_musa.core.amp', 'torch.nn')
>>> new_string("cuda:0"), new_string("cpu:gloo,cuda:nccl"), new_string("see cuda:0")
('musa:0', 'cpu:gloo,musa:mccl', None)
"""

from __future__ import annotations

import re

PACKAGE = "torch_musa"
VERSION = "torch_musa 2.7.1"  # whose names these are

# Modules that can be imported.
MODULES = {
    "torch.cuda": PACKAGE,
    "torch.cuda.amp": "torch_musa.core.amp",
    "torch.cuda.amp.autocast_mode": "torch_musa.core.amp.autocast_mode",
    "torch.cuda.amp.common": "torch_musa.core.amp.common",
    "torch.cuda.amp.grad_scaler": "torch_musa.core.amp.grad_scaler",
    "torch.cuda.graphs": "torch_musa.musa_graph",
    "torch.cuda.memory": "torch_musa.core.memory",
    "torch.cuda.nccl": "torch_musa.core.mccl",
    "torch.cuda.random": "torch_musa.core.random",
    "torch.cuda.streams": "torch_musa.core.stream",
    "torch.backends.cudnn": "torch_musa.core.mudnn",
}
# What takes the place of the last part of a path, where it is an attribute.
ATTRIBUTES = {
    "torch.cuda": "musa",
    "torch.cuda.CUDAGraph": "MUSAGraph",
    "torch.cuda.cudart": "musart",
    "torch.cuda.graphs": "musa_graph",
    "torch.cuda.graphs.CUDAGraph": "MUSAGraph",
    "torch.cuda.nccl": "mccl",
    "torch.cuda.random": "core.random",
    "torch.cuda.streams": "core.stream",
    "torch.backends.cudnn": "mudnn",
    "torch.version.cuda": "musa",
    "torch.profiler.ProfilerActivity.CUDA": "MUSA",
    "torch.autograd.ProfilerActivity.CUDA": "MUSA",
    "torch.distributed.is_nccl_available": "is_mccl_available",
    "torch.distributed.distributed_c10d.is_nccl_available": "is_mccl_available",
    "torch.distributed.Backend.NCCL": "MCCL",
    "torch.distributed.distributed_c10d.Backend.NCCL": "MCCL",
    "torch.Tensor.cuda": "musa",
    "torch.nn.Module.cuda": "musa",
}
# Objects that come from another module of torch_musa, whatever the path to them.
EXTENSION_MODULE = "torch.utils.cpp_extension"
NEW_EXTENSION_MODULE = "torch_musa.utils.musa_extension"
EXTENSION_NAMES = {
    "CUDAExtension": "MUSAExtension",
    "CUDA_HOME": "MUSA_HOME",
    "CUDNN_HOME": "MUDNN_HOME",
    "BuildExtension": "BuildExtension",
    "include_paths": "include_paths",
    "library_paths": "library_paths",
    "load": "load",
    "load_inline": "load_inline",
}
# What both modules have, for C++ alone as well.
NEUTRAL_EXTENSION_NAMES = {"BuildExtension"}
# Keywords of these functions.
KEYWORDS = {
    "cuda": "musa",
    "cuda_sources": "musa_sources",
    "extra_cuda_cflags": "extra_musa_cflags",
    "with_cuda": "with_musa",
}
KEYWORD_FUNCTIONS = {
    f"{EXTENSION_MODULE}.{name}" for name in ("include_paths", "library_paths", "load")
} | {f"{EXTENSION_MODULE}.load_inline"}

# Members of tensors and modules; the first only where they are called.
METHODS = {"cuda": "musa"}
FIELDS = {"is_cuda": "is_musa"}

# What torch_musa lacks. It is left as it is, and said.
_CUDA_ALONE = """
comm gds green_contexts jiterator nvtx profiler sparse tunable
CUDAPluggableAllocator CudaError GreenContext caching_allocator_alloc caching_allocator_delete
caching_allocator_disabled caching_allocator_enable check_error clock_rate cudaStatus
current_solver_handle default_generators device_memory_used get_gencode_flags
get_per_process_memory_fraction get_stream_from_external get_sync_debug_mode has_half has_magma
host_memory_stats host_memory_stats_as_nested_dict init list_gpu_processes max_memory_cached
memory_cached memory_usage power_draw reset_accumulated_host_memory_stats
reset_peak_host_memory_stats set_sync_debug_mode temperature utilization
nccl.all_gather nccl.all_reduce nccl.broadcast nccl.init_rank nccl.is_available nccl.reduce
nccl.reduce_scatter nccl.unique_id memory.CUDAPluggableAllocator memory.list_gpu_processes
"""
WITHOUT = {f"torch.cuda.{name}" for name in _CUDA_ALONE.split()} | {"torch.backends.cuda"}
# Attributes that mean torch's wherever they come from.
TELLING = {"CUDAGraph", "CUDAExtension", "is_nccl_available"}
# What muDNN's module has; others can be set there, but not read before.
MUDNN_NAMES = {"allow_tf32", "flags", "set_flags", "version"}

DEVICE = re.compile(r"cuda(:(\d+|%[dis]|\{\w*\})?)?")
BACKENDS = re.compile(r"\w+:\w+(,\w+:\w+)+|cuda:nccl", re.IGNORECASE)
TYPE = re.compile(r"torch\.cuda(\.\w+)*")
COMMUNICATION = re.compile(r"(TORCH_)?NCCL_[A-Z0-9_]+")
STRINGS = {
    "nccl": "mccl",
    "NCCL": "MCCL",
    "nvcc": "mcc",
    "CUDA_HOME": "MUSA_HOME",
    "CUDA_PATH": "MUSA_PATH",
    "CUDA_VISIBLE_DEVICES": "MUSA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING": "MUSA_LAUNCH_BLOCKING",
    "PYTORCH_CUDA_ALLOC_CONF": "PYTORCH_MUSA_ALLOC_CONF",
    "TORCH_CUDA_ARCH_LIST": "TORCH_MUSA_ARCH_LIST",
}


def prefixes(path: str) -> list[str]:
    """All beginnings of a dotted path, itself last."""
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def is_without(path: str) -> bool:
    """Whether torch_musa has no counterpart of this, or of what it is a part of."""
    return any(each in WITHOUT for each in prefixes(path))


def new_path(path: str) -> str:
    """A dotted path with each of its parts as torch_musa calls it."""
    if is_without(path):
        return path
    return ".".join(ATTRIBUTES.get(each, each.rpartition(".")[2]) for each in prefixes(path))


def new_module(path: str) -> str:
    """The module to import; one that has no counterpart keeps its name."""
    return MODULES.get(path, path)


def is_known_module(path: str) -> bool:
    """False for a module of torch.cuda of which nothing is known."""
    return path in MODULES or not path.startswith("torch.cuda.")


def new_string(text: str) -> str | None:
    """The text of a string that is a device, a backend, a type or a variable; None for others."""
    if text in STRINGS:
        return STRINGS[text]
    if DEVICE.fullmatch(text):
        return "musa" + text[4:]
    if TYPE.fullmatch(text):
        new = new_path(text)
        return new if new != text else None
    if COMMUNICATION.fullmatch(text):
        return text.replace("NCCL_", "MCCL_", 1)
    if BACKENDS.fullmatch(text):
        new = re.sub(r":nccl\b", ":mccl", re.sub(r":NCCL\b", ":MCCL", text))
        new = re.sub(r"\bcuda:", "musa:", new)
        return new if new != text else None
    return None
