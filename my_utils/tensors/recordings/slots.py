"""Tracks where the parameters of a model are, and when they are hashed."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

ParamsAt = Literal["auto", "call", "end"]


class Slot(NamedTuple):
    """Where a parameter lives. What lives there may be exchanged, as FSDP does."""

    full: str  # its first name in the model
    module: torch.nn.Module
    local: str

    def current(self) -> torch.Tensor | None:
        return self.module._parameters.get(self.local)
