"""Names that load on first use, for packages and compatibility modules.

Such a module has `__all__`, imports its names for type checkers only, and calls this:

    __getattr__, __dir__ = lazy_names(__name__, {"record.stages.timers": ("MyTimer", ...), ...})
"""

from __future__ import annotations

import importlib
import sys

from .extras import needs_torch

TYPE_CHECKING = False  # importing typing would take longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

_ROOT = __name__.partition(".")[0]


def lazy_names(
    module_name: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module, as in PEP 562.

    names: what it shows, by the modules below my_utils that define it.

    After its first use a name is an ordinary attribute of the module. ImportError says what to
    install if a name needs torch, which is not installed. Thread-safe.
    """
    homes = {name: home for home, defined in names.items() for name in defined}
    module = sys.modules[module_name]

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module_name!r} has no attribute {name!r}")
        with needs_torch(f"{module_name}.{name}"):
            value = getattr(importlib.import_module(f"{_ROOT}.{homes[name]}"), name)
        setattr(module, name, value)
        return value

    def list_names() -> list[str]:
        return sorted(vars(module).keys() | homes.keys())

    return load, list_names
