"""What an operator is run for that a dispatch mode sees: values, or shapes and graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

# The modes by which torch works out shapes and graphs, and the tensors without values in them.
_TRACERS = tuple(torch._C._TorchDispatchModeKey.__members__.values())
_TRACED = frozenset((FakeTensor, FunctionalTensor))


def is_traced(types: Any) -> bool:
    """Whether torch works out shapes or a graph here, and computes no values."""
    if not _TRACED.isdisjoint(types):
        return True
    if not torch._C._len_torch_dispatch_stack():
        return False
    return any(torch._C._get_dispatch_mode(kind) is not None for kind in _TRACERS)


def is_plain(kind: type) -> bool:
    """Whether a class of tensors leaves operators to torch."""
    return getattr(kind, "__torch_dispatch__", None) is torch._C._disabled_torch_dispatch_impl
