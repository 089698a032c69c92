"""Compatibility module; the code is in `my_utils.profilers.capture`."""

from __future__ import annotations

from ..core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .._core import HookEvent
    from ..profilers.capture.controller import CaptureController, CaptureState
    from ..profilers.capture.hooks import (
        attach,
        capture_hook,
        default_controller,
        set_default_controller,
        set_position,
    )
    from ..profilers.capture.spec import CaptureSpec, StopPolicy

__all__ = [
    "CaptureController",
    "CaptureSpec",
    "CaptureState",
    "HookEvent",
    "StopPolicy",
    "attach",
    "capture_hook",
    "default_controller",
    "set_default_controller",
    "set_position",
]

__getattr__, __dir__ = lazy_names(__name__)
