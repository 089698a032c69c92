"""Capture windows, and the profilers that they open.

The names below load on first use.

>>> from my_utils.profiling import CaptureController, capture_hook
"""

from __future__ import annotations

from ..core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .capture_controller import CaptureController, HookEvent, capture_hook

__all__ = ["CaptureController", "HookEvent", "capture_hook"]

__getattr__, __dir__ = lazy_names(__name__, __all__, "profiling.capture_controller")
