"""NVTX ranges around windows. A range may begin on one thread and end on another."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

from ... import _core


def begin_range(name: str) -> Callable[[], object] | None:
    """Begins a range of the default domain; the function that ends it, None while no tool listens.

    By torch's NVTX where ours was not built, as far as that has it.
    """
    if not _core.nvtx_state()["built"]:
        return _by_torch(name)
    number = _core.nvtx_range_start(name.replace("\0", ""))
    return None if number is None else functools.partial(_core.nvtx_range_end, number)


def _by_torch(name: str) -> Callable[[], object] | None:
    with contextlib.suppress(ImportError, RuntimeError, AttributeError):  # a build without CUDA
        import torch

        handle = torch.cuda.nvtx.range_start(name)
        return functools.partial(torch.cuda.nvtx.range_end, handle)
    return None
