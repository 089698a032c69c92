"""DebugLayer, in a separate module because it cannot be defined without torch."""

from __future__ import annotations

from typing import Any

from ...core.extras import needs_torch

with needs_torch("DebugLayer"):
    from torch import nn

from ...core.public import public


@public("my_utils.utils")
class DebugLayer(nn.Module):
    """A layer that returns what it is given, to mark a place in a model.

    It has no parameters, keeps tensors and gradients as they are, and vanishes in a compiled graph;
    its name shows in `print(model)`, and hooks can be put on it.

    `name`: shown in the module's text. Several inputs come back as a tuple.

    >>> import torch
    >>> from my_utils.utils import DebugLayer
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), DebugLayer("after the projection"))
    >>> model[1]
    DebugLayer('after the projection')
    >>> x = torch.ones(1, 2)
    >>> DebugLayer()(x) is x
    True
    """

    def __init__(self, name: str = "") -> None:
        super().__init__()
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, not {type(name).__name__}")
        self.name = name

    def forward(self, *inputs: Any) -> Any:
        return inputs[0] if len(inputs) == 1 else inputs

    def extra_repr(self) -> str:
        return repr(self.name) if self.name else ""
