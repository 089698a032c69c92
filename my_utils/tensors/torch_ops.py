"""Registers torch.ops.my_utils.* with torch, once in a process.

The kernels are C functions of `_core`; what torch needs beside them is here: the schemas, the form
of the results (for compiled and exported graphs), and that nothing is differentiated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .. import _core

# Operators (Tensor x) -> Tensor: the length of the result, and its dtype.
REDUCTIONS = {
    "tensor_hash": (2, "int64"),
    "stats": (16, "float64"),
    "nan_inf_count": (3, "int64"),
}

_lock = threading.Lock()
_library: Any = None  # kept: its end would be that of the operators


def register() -> None:
    """Makes the operators known; a call after the first does nothing.

    RuntimeError if torch is older than 2.10. Thread-safe.
    """
    global _library
    if _library is not None:
        return
    with _lock:
        if _library is None:
            _library = _make_library()


def _make_library() -> Any:
    import torch

    _core.register_torch_kernels()
    library = torch.library.Library("my_utils", "FRAGMENT")
    for name, (length, dtype) in REDUCTIONS.items():
        fake = _fake_reduction(length, getattr(torch, dtype))
        _define(library, name, "(Tensor x) -> Tensor", fake)
    signature = "(Tensor x, Tensor(a!) out, int row) -> ()"
    for name in ("hash_into", "sums_into"):
        _define(library, name, signature, lambda x, out, row: None)
    return library


def _define(library: Any, name: str, signature: str, fake: Callable[..., Any]) -> None:
    import torch

    library.define(name + signature, tags=torch.Tag.pt2_compliant_tag)
    # Without this torch warns when the results of inputs that require grad are differentiated.
    library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(f"my_utils::{name}", fake, lib=library)


def _fake_reduction(length: int, dtype: Any) -> Callable[[Any], Any]:
    def fake(x: Any) -> Any:
        return x.new_empty(length, dtype=dtype)

    return fake
