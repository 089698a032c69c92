"""Waits for torch in a process that was not started by `my_utils run`."""

from __future__ import annotations

import os
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType

from .environment import SITE_FOLDER

_NAME = "my_utils.run.torch_watch"


def watch_for_torch() -> None:
    """Has `attach.torch_is_ready` called once torch has been executed, at once if it has been.
    Idempotent."""
    if _NAME in sys.modules:
        return
    module = _load()
    sys.modules[_NAME] = module
    module.watch()


def _load() -> ModuleType:
    """sitecustomize.py under another name, by which it does not begin by itself."""
    path = os.path.join(SITE_FOLDER, "sitecustomize.py")
    spec = spec_from_loader(_NAME, SourceFileLoader(_NAME, path))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
