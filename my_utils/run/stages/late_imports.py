"""Calls a function as soon as a module has executed, now or when it is imported.

The finder does nothing for other modules, finds nothing itself, and removes itself after its last
module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Patch = Callable[[Any], None]


def when_imported(name: str, patch: Patch) -> None:
    """Calls `patch(module)` once the module `name` has executed. What it raises, the import raises,
    so it must not raise."""
    module = sys.modules.get(name)
    initializes = getattr(getattr(module, "__spec__", None), "_initializing", False)
    if module is not None and not initializes:
        patch(module)
        return
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            finder.patches.setdefault(name, []).append(patch)
            return
    sys.meta_path.insert(0, _Finder({name: [patch]}))


class _Finder:
    """On `sys.meta_path`; asks the other finders, and has the loader call the patches."""

    def __init__(self, patches: dict[str, list[Patch]]) -> None:
        self.patches = patches
        self._asking = False

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.patches or self._asking:
            return None
        self._asking = True
        try:
            spec = _find(fullname, path, target)
        finally:
            self._asking = False
        if spec is None or not hasattr(spec.loader, "exec_module"):
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.exec_module = execute
            execute(module)
            patches = self.patches.pop(fullname, [])
            if not self.patches and self in sys.meta_path:
                sys.meta_path.remove(self)
            for patch in patches:
                patch(module)

        loader.exec_module = exec_module
        return spec


def _find(name: str, path: Any, target: ModuleType | None) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find: Any = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = None if find is None else find(name, path, target)
        if spec is not None:
            return spec
    return None
