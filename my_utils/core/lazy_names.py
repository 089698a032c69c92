"""Names that load on first use, for packages and compatibility modules.

Such a module imports its names for type checkers, and those imports are also what loads them:

    TYPE_CHECKING = False
    if TYPE_CHECKING:
        from .record.stages.timers import MyTimer

    __all__ = ["MyTimer"]
    __getattr__, __dir__ = lazy_names(__name__)
"""

from __future__ import annotations

import _ast
import importlib
import sys

from .extras import needs_torch

TYPE_CHECKING = False  # importing typing would take longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_ROOT = __name__.partition(".")[0]


def lazy_names(
    module_name: str, made: Mapping[str, tuple[str, str]] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module, as in PEP 562.

    They show what the module imports from this package under `if TYPE_CHECKING`, as its source file
    says; a name that is renamed there is for the module alone.
    made: objects that a function makes at their first use, and again after `importlib.reload`: the
        module below my_utils, and the function.

    After its first use a name is an ordinary attribute of the module. ImportError says what to
    install if a name needs torch, which is not installed. Thread-safe.
    """
    makers = made or {}
    module = sys.modules[module_name]
    homes: dict[str, str] | None = None  # read at the first use
    for name in makers:
        vars(module).pop(name, None)

    def known() -> dict[str, str]:
        nonlocal homes
        if homes is None:
            homes = _typed_imports(str(module.__file__))
        return homes

    def make(name: str) -> Any:
        home, maker = makers[name]
        function = getattr(importlib.import_module(f"{_ROOT}.{home}"), maker)
        return vars(module).setdefault(name, function())  # the first, if two threads make one

    def load(name: str) -> Any:
        if name in makers:
            return make(name)
        # Python itself asks every module for names such as __path__.
        if name.startswith("__") or name not in known():
            raise AttributeError(f"module {module_name!r} has no attribute {name!r}")
        with needs_torch(f"{module_name}.{name}"):
            value = getattr(importlib.import_module(known()[name], module.__package__), name)
        setattr(module, name, value)
        return value

    def list_names() -> list[str]:
        return sorted(vars(module).keys() | known().keys() | makers.keys())

    return load, list_names


def _typed_imports(path: str) -> dict[str, str]:
    """The module of each name, relative as it is written, of which a source file imports it under
    `if TYPE_CHECKING`. Without the module `ast`, which takes longer to import than this."""
    with open(path, encoding="utf-8") as file:
        tree: Any = compile(file.read(), path, "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
    return {
        alias.name: "." * node.level + (node.module or "")
        for block in tree.body
        if isinstance(block, _ast.If) and getattr(block.test, "id", "") == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, _ast.ImportFrom) and node.level
        for alias in node.names
        if alias.asname in (None, alias.name)
    }
