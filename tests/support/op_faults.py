"""Faults planted into single calls of operators, below the tools that are to find them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Change = Callable[[Any], Any]


class Fault(TorchDispatchMode):
    """Changes the result of the n-th call (from 0) of an operator; enter it before the tool.

    Tools run references without the modes around them, so that only the operator's own run is hit.
    """

    def __init__(self, op: Any, change: Change, nth: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.op, self.change, self.left = op, change, nth
        self.planted = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is self.op or func.overloadpacket is self.op:
            if self.left == 0:
                self.planted += 1
                result = self.change(result)
            self.left -= 1
        return result


def doubled(func: Any, args: Any, kwargs: Any) -> Any:
    """A reference that is wrong."""
    return func(*args, **kwargs) * 2


def one_wrong_element(result: torch.Tensor) -> torch.Tensor:
    """Twice the last element, or 1 where that is 0; for integers one more, for bool the other."""
    wrong = result.clone()
    last = wrong.view(-1)[-1:]
    if result.dtype is torch.bool:
        last.logical_not_()
    elif not result.is_floating_point() and not result.is_complex():
        last.add_(1)
    else:
        wide = last.to(torch.complex128 if result.is_complex() else torch.float64)
        last.copy_(torch.where(wide == 0, torch.ones_like(wide), wide * 2))
    return wrong


def first_element(value: float) -> Change:
    def change(result: torch.Tensor) -> torch.Tensor:
        wrong = result.clone()
        wrong.view(-1)[0] = value
        return wrong

    return change


def other_strides(result: torch.Tensor) -> torch.Tensor:
    """The same values, the last two dimensions exchanged in memory."""
    return result.transpose(-1, -2).contiguous().transpose(-1, -2)
