"""Names that load on first use, for packages and compatibility modules.

A compatibility module has `__all__`, imports its names for type checkers only, and calls this:

    __getattr__, __dir__ = lazy_names(__name__, __all__, "stages.timers")
"""

from __future__ import annotations

import importlib
import sys

from .extras import needs_torch

TYPE_CHECKING = False  # importing typing would take longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

__all__ = ["lazy_names"]

_ROOT = __name__.partition(".")[0]


def lazy_names(
    face: str, names: Sequence[str], home: str, others: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of the module `face`, as in PEP 562.

    names: what it shows. home: the module below my_utils that has them. others: the modules of
    those that are elsewhere, by name; they may have names that `names` lacks.

    After its first use a name is an ordinary attribute of the module. ImportError says what to
    install if a name needs torch, which is not installed. Thread-safe.
    """
    homes = {**dict.fromkeys(names, home), **(others or {})}
    module = sys.modules[face]

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        with needs_torch(f"{face}.{name}"):
            value = getattr(importlib.import_module(f"{_ROOT}.{homes[name]}"), name)
        setattr(module, name, value)
        return value

    def list_names() -> list[str]:
        return sorted(vars(module).keys() | homes.keys())

    return load, list_names
