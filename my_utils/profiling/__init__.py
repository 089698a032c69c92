"""Capture windows, and the profilers that they open.

The names below load on first use.

>>> from my_utils.profiling import CaptureController, capture_hook
"""

from __future__ import annotations

from ..core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .._core import HookEvent
    from ..profilers.capture.controller import CaptureController
    from ..profilers.capture.hooks import capture_hook

__all__ = ["CaptureController", "HookEvent", "capture_hook"]

__getattr__, __dir__ = lazy_names(__name__)
