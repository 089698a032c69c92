"""Selects the modules of a model to time: its leaves, each once, with all of their names.

>>> import torch
>>> shared = torch.nn.Linear(2, 2)
>>> model = torch.nn.ModuleDict({"a": shared, "b": torch.nn.Sequential(torch.nn.ReLU(), shared)})
>>> [(row.name, row.type_name) for row in list_rows(model, ())]
[('a, b.1', 'Linear'), ('b.0', 'ReLU')]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ...tensors.recordings.plan import is_compiled, is_of

MODEL = "(model)"  # the name of the model itself, which has none


class Row:
    """One module, and what it is called."""

    __slots__ = ("flops", "is_compiled", "module", "names", "peak_bytes", "type_name")

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.names: list[str] = []
        self.is_compiled = is_compiled(module)
        inner = getattr(module, "_orig_mod", module) if self.is_compiled else module
        self.type_name = type(inner).__qualname__ + (" (compiled)" if self.is_compiled else "")
        self.flops = 0
        self.peak_bytes = 0

    @property
    def name(self) -> str:
        return ", ".join(name or MODEL for name in self.names)

    @property
    def parameters(self) -> int:
        """Elements of the parameters at and below it; those without a shape yet are left out."""
        return sum(p.numel() for p in self.module.parameters() if not torch.nn.parameter.is_lazy(p))


def list_rows(model: torch.nn.Module, whole: Sequence[type | str]) -> list[Row]:
    """Modules without children, compiled ones, and those of the types `whole`, as they are in the
    model. What is below one of them is part of it."""
    rows: dict[torch.nn.Module, Row] = {}
    for name, module in _leaves(model, "", (), whole):
        rows.setdefault(module, Row(module)).names.append(name)
    return list(rows.values())


def _leaves(
    module: torch.nn.Module, name: str, around: tuple[Any, ...], whole: Sequence[type | str]
) -> Iterator[tuple[str, torch.nn.Module]]:
    children = [(key, child) for key, child in module._modules.items() if child is not None]
    if not children or is_compiled(module) or is_of(module, whole):
        yield name, module
        return
    for key, child in children:
        if child not in around:
            path = f"{name}.{key}" if name else key
            yield from _leaves(child, path, (*around, module), whole)


def is_on_cuda(model: torch.nn.Module) -> bool:
    """Whether anything of it is on a CUDA device; without any tensors, whether there is one."""
    lies_on = [tensor.is_cuda for tensor in (*model.parameters(), *model.buffers())]
    return any(lies_on) if lies_on else torch.cuda.is_available()
