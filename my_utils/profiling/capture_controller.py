"""Compatibility module; the code is in `my_utils.capture`."""

from __future__ import annotations

from ..common.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .._core import HookEvent
    from ..capture.controller import CaptureController, CaptureState
    from ..capture.hooks import (
        attach,
        capture_hook,
        default_controller,
        set_default_controller,
        set_position,
    )
    from ..capture.spec import CaptureSpec, StopPolicy

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

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    "capture.hooks",
    {
        "CaptureController": "capture.controller",
        "CaptureSpec": "capture.spec",
        "CaptureState": "capture.controller",
        "HookEvent": "_core",
        "StopPolicy": "capture.spec",
    },
)
