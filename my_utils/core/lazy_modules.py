"""Modules for annotations that are imported when one of their names is used.

`typing.get_type_hints` resolves annotations by the names of the module that a function is written
in. A module that must load without torch says

    if TYPE_CHECKING:
        import torch
    else:
        torch = lazy_module("torch")

and annotates with `torch.Tensor`. ModuleNotFoundError comes when the annotation is resolved.
"""

from __future__ import annotations

import importlib
import types
from typing import Any


class _LazyModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        # Code that goes through all modules asks for __file__ and the like; that loads nothing.
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(self.__name__), name)


def lazy_module(name: str) -> Any:
    """A stand-in for the module, which is imported with the first name that is taken from it.

    >>> lazy_module("fractions").Fraction(3, 6)
    Fraction(1, 2)
    """
    return _LazyModule(name)
