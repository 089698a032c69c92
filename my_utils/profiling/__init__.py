"""Capture windows, and the profilers that they open.

The names below load on first use.

>>> from my_utils.profiling import CaptureController, capture_hook
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .._core import HookEvent
    from ..capture.controller import CaptureController
    from ..capture.hooks import capture_hook

__all__ = ["CaptureController", "HookEvent", "capture_hook"]

_HOMES = {
    "CaptureController": "capture_controller",
    "HookEvent": "capture_controller",
    "capture_hook": "capture_controller",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(globals().keys() | _HOMES.keys())
