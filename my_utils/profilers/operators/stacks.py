"""The line of the user's code that called an operator. In the backward pass: the line of its
forward operator."""

from __future__ import annotations

import os
import traceback
from collections import OrderedDict
from typing import Any

import torch
from torch.utils._traceback import CapturedTraceback

from .module_path import forward_number

_HERE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_TORCH = os.path.dirname(torch.__file__)
_KEPT = 100_000  # forward operators
_SHOWN = 12  # frames

_sequence_nr = torch._C._autograd._get_sequence_nr


class OpStacks:
    """Python's stack at each forward operator that autograd may come back to. `note` takes some
    microseconds; text is made only when it is asked for. For one thread."""

    def __init__(self) -> None:
        self._stacks: OrderedDict[int, Any] = OrderedDict()

    def note(self) -> None:
        """To be called while a forward operator runs: autograd has given it its number already."""
        if not torch.is_grad_enabled():
            return
        number = _sequence_nr() - 1
        if number in self._stacks:
            return
        self._stacks[number] = CapturedTraceback.extract(script=False, cpp=False)
        if len(self._stacks) > _KEPT:
            self._stacks.popitem(last=False)

    def text(self) -> str:
        """The stack of the operator that runs now; of its forward operator in a backward pass; ""
        if it is not known."""
        number = forward_number()
        if number is None:
            return _of_users(traceback.extract_stack())
        known = self._stacks.get(number)
        return "" if known is None else _of_users(known.summary())


def _of_users(stack: traceback.StackSummary) -> str:
    """The innermost frames outside of torch and of this package."""
    frames = [frame for frame in stack if not frame.filename.startswith((_HERE, _TORCH))]
    return "".join(traceback.format_list(frames[-_SHOWN:])).rstrip()
