"""What things of PyTorch are called with torch_musa: attributes, modules and strings.

>>> new_path("torch.cuda.amp"), new_path("torch.backends.cudnn"), new_path("numba.cuda")
('torch.musa.amp', 'torch.backends.mudnn', 'numba.cuda')
>>> new_string("cuda:0"), new_string("cpu:gloo,cuda:nccl"), new_string("see cuda:0")
('musa:0', 'cpu:gloo,musa:mccl', None)
"""

from __future__ import annotations

import re

# The last part of a path, by the whole path.
PATHS = {
    "torch.cuda": "musa",
    "torch.cuda.CUDAGraph": "MUSAGraph",
    "torch.cuda.CUDAPluggableAllocator": "MUSAPluggableAllocator",
    "torch.cuda.graphs.CUDAGraph": "MUSAGraph",
    "torch.cuda.nccl": "mccl",
    "torch.backends.cuda": "musa",
    "torch.backends.cudnn": "mudnn",
    "torch.version.cuda": "musa",
    "torch.profiler.ProfilerActivity.CUDA": "MUSA",
    "torch.autograd.ProfilerActivity.CUDA": "MUSA",
    "torch.utils.cpp_extension.CUDAExtension": "MUSAExtension",
}
# Members of tensors and modules; the first only where they are called.
METHODS = {"cuda": "musa"}
FIELDS = {"is_cuda": "is_musa"}

# What comes from another module; the rest of a module's names stay there.
EXTENSION_MODULE = "torch.utils.cpp_extension"
NEW_EXTENSION_MODULE = "torch_musa.utils.musa_extension"
EXTENSION_NAMES = {"CUDAExtension": "MUSAExtension", "BuildExtension": "BuildExtension"}

DEVICE = re.compile(r"cuda(:(\d+|%[dis]|\{\w*\})?)?")
BACKENDS = re.compile(r"\w+:\w+(,\w+:\w+)+|cuda:nccl")
TYPE = re.compile(r"torch\.cuda(\.\w+)*")
COMMUNICATION = re.compile(r"NCCL_[A-Z0-9_]+")
STRINGS = {
    "nccl": "mccl",
    "CUDA_VISIBLE_DEVICES": "MUSA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING": "MUSA_LAUNCH_BLOCKING",
    "PYTORCH_CUDA_ALLOC_CONF": "PYTORCH_MUSA_ALLOC_CONF",
}


def new_path(path: str) -> str:
    """A dotted path with each of its parts as torch_musa calls it."""
    parts = path.split(".")
    new = [PATHS.get(".".join(parts[: at + 1]), part) for at, part in enumerate(parts)]
    return ".".join(new)


def new_string(text: str) -> str | None:
    """The text of a string that is a device, a backend, a type or a variable; None for others."""
    if text in STRINGS:
        return STRINGS[text]
    if DEVICE.fullmatch(text):
        return "musa" + text[4:]
    if TYPE.fullmatch(text):
        return new_path(text)
    if COMMUNICATION.fullmatch(text):
        return "M" + text[1:]
    if BACKENDS.fullmatch(text):
        new = re.sub(r"\bcuda:", "musa:", re.sub(r":nccl\b", ":mccl", text))
        return new if new != text else None
    return None
