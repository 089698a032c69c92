"""Tells whether an exception means that memory ran out."""

from __future__ import annotations

import sys

# Allocators without an exception type of their own say it in the text of a RuntimeError.
OUT_OF_MEMORY_TEXTS = (
    "can't allocate memory",  # torch's CPU allocator
    "not enough memory: you tried to allocate",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the exception says that memory ran out, on the GPU or the CPU.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("shapes differ"))
    (True, False)
    """
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    kind = getattr(torch, "OutOfMemoryError", None)
    if kind is not None and isinstance(error, kind):
        return True
    return isinstance(error, RuntimeError) and any(
        text in str(error) for text in OUT_OF_MEMORY_TEXTS
    )
