"""Replaces a tensor without plain memory by one with it.

The C module comes here with those tensors only: lazily negated or conjugated ones, DTensors,
sparse, meta, fake ones, those on devices other than the CPU and CUDA, and so on. Tensors with
memory there never run through Python.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from .. import _core
from .dtypes import BYTES, dtype_name

if TYPE_CHECKING:
    from torch import Tensor

_BY_ROWS = ("crow_indices", "col_indices", "values")
_BY_COLUMNS = ("ccol_indices", "row_indices", "values")
SPARSE_PARTS = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": _BY_ROWS,
    "torch.sparse_bsr": _BY_ROWS,
    "torch.sparse_csc": _BY_COLUMNS,
    "torch.sparse_bsc": _BY_COLUMNS,
}
"""By layout: the methods for the tensors that a sparse one consists of, the last for its values."""


def stored_parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """The tensors that a sparse one consists of; of other layouts none."""
    return tuple(getattr(tensor, name)() for name in SPARSE_PARTS.get(str(tensor.layout), ()))


def named_parts(tensor: Tensor) -> list[tuple[str, Tensor]]:
    """The tensors that hold the values of a sparse one, as coalesced, or of a nested one, by how to
    get them; of others none."""
    if tensor.is_nested:
        return [(f".unbind()[{place}]", part) for place, part in enumerate(tensor.unbind())]
    if str(tensor.layout) == "torch.sparse_coo":
        tensor = tensor.coalesce()
    names = SPARSE_PARTS.get(str(tensor.layout), ())
    return [(f".{name.lstrip('_')}()", getattr(tensor, name)()) for name in names]


def as_bytes(tensor: Tensor) -> Tensor:
    """The tensor, as uint8 where it is of one of the types of bytes."""
    import torch

    is_bytes = dtype_name(tensor.dtype) in BYTES
    return tensor.detach().view(torch.uint8) if is_bytes else tensor


def resolve(tensor: Tensor, name: str) -> Tensor:
    """A tensor with memory that holds the values of ``tensor``, the argument called ``name``.

    The local shard of a DTensor; a copy of a lazily conjugated or negated tensor; what an
    asynchronous collective delivers; a copy on the CPU of what is on a device without kernels of
    ours; uint8 for a type of less than a byte, such as int4.

    Raises:
        TypeError: there is nothing to read, with what to pass instead.
    """
    import torch

    complaint = _complaint(tensor)
    if complaint is not None:
        raise TypeError(f"{name} must have its elements in memory; {complaint}")
    if hasattr(tensor, "to_local"):
        return resolve(tensor.to_local(), name)
    if hasattr(tensor, "wait") and hasattr(tensor, "elem"):  # AsyncCollectiveTensor
        return resolve(tensor.wait(), name)
    if torch._is_zerotensor(tensor):
        return resolve_lazy(torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device))
    if tensor.numel() == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    kind = f"{name} is a {type(tensor).__name__} without memory of its own"
    if is_cut(tensor):
        raise TypeError(f"{kind}: its storage was freed or cut")
    try:
        found = resolve_lazy(as_bytes(tensor))
    except Exception as error:  # whatever a wrapper subclass raises in its __torch_dispatch__
        raise TypeError(kind) from error
    if not _core.has_memory(found):
        raise TypeError(kind)
    return found


def is_cut(tensor: Tensor) -> bool:
    """Whether the storage of a strided tensor was freed, or ends before the last element: torch
    would read beyond."""
    import torch

    is_plain = type(tensor).__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
    if not is_plain or not has_kernels(tensor) or tensor.numel() == 0:
        return False
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return bool(end > tensor.untyped_storage().nbytes())


def why_unreadable(tensor: Tensor) -> str | None:
    """None where torch itself may read and copy the elements."""
    import torch

    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "inside vmap, grad and other transforms of torch.func there is no memory"
    if tensor.is_meta:
        return "a meta tensor has no memory"
    if tensor.is_nested:
        return "a nested tensor has no memory of one shape"
    if tensor.is_quantized:
        return "a quantized tensor; hash its int_repr()"
    if tensor.layout is not torch.strided:
        return f"the layout {tensor.layout} cannot be read"
    if is_cut(tensor):
        return "its storage was freed or cut"
    return None


def impl_address(tensor: Tensor) -> int:
    """Where the C++ object of a tensor is, whatever its class or a mode puts instead of that."""
    import torch

    with torch._C.DisableTorchFunction():
        return tensor._cdata


def resolve_lazy(tensor: Tensor) -> Tensor:
    """The tensor with its conjugation and negation done, where it can be read."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain if has_kernels(plain) else plain.cpu()


def has_kernels(tensor: Tensor) -> bool:
    """Whether the tensor is where kernels of ours run: the CPU, or a GPU of NVIDIA."""
    return tensor.is_cpu or (tensor.is_cuda and not _is_amd())


@functools.cache
def _is_amd() -> bool:
    """Whether "cuda" means AMD's devices to this torch."""
    import torch

    return torch.version.hip is not None


def _complaint(tensor: Tensor) -> str | None:
    """Why nothing can be read, and what to pass instead; None when something can."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    kind = type(tensor).__name__
    if isinstance(tensor, FakeTensor):
        return f"a {kind} has only a shape"
    if torch.nn.parameter.is_lazy(tensor):
        return f"an {kind} has none before the first forward"
    if tensor.is_nested:
        return "a nested tensor does not: pass x.values(), or the list x.unbind()"
    if tensor.layout != torch.strided:
        return f"a tensor of layout {tensor.layout} does not: pass its parts, {_parts(tensor)}"
    if tensor.is_meta:
        return "a meta tensor has only a shape"
    if tensor.is_quantized:
        return "a quantized tensor does not: pass x.int_repr()"
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "inside vmap, grad and other transforms of torch.func there are none"
    if torch._is_functional_tensor(tensor):
        return "inside functionalize there are none"
    return None


def _parts(tensor: Tensor) -> str:
    names = [f"x.{name.lstrip('_')}()" for name in SPARSE_PARTS.get(str(tensor.layout), ())]
    return f"{', '.join(names[:-1])} and {names[-1]}" if names else "if it has any"
