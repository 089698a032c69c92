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
    module_name: str,
    names: Mapping[str, Sequence[str]],
    made: Mapping[str, tuple[str, str]] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module, as in PEP 562.

    names: what it shows, by the modules below my_utils that define it.
    made: objects that a function makes at their first use, and again after `importlib.reload`: the
        module below my_utils, and the function.

    After its first use a name is an ordinary attribute of the module. ImportError says what to
    install if a name needs torch, which is not installed. Thread-safe.
    """
    homes = {name: home for home, defined in names.items() for name in defined}
    makers = made or {}
    module = sys.modules[module_name]
    for name in makers:
        vars(module).pop(name, None)

    def make(name: str) -> Any:
        home, maker = makers[name]
        function = getattr(importlib.import_module(f"{_ROOT}.{home}"), maker)
        return vars(module).setdefault(name, function())  # the first, if two threads make one

    def load(name: str) -> Any:
        if name in makers:
            return make(name)
        if name not in homes:
            raise AttributeError(f"module {module_name!r} has no attribute {name!r}")
        with needs_torch(f"{module_name}.{name}"):
            value = getattr(importlib.import_module(f"{_ROOT}.{homes[name]}"), name)
        setattr(module, name, value)
        return value

    def list_names() -> list[str]:
        return sorted(vars(module).keys() | homes.keys() | makers.keys())

    return load, list_names
