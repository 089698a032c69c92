"""Compatibility module; the code is in `my_utils.capture`."""

from __future__ import annotations

from .common.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .capture.forward_profile_hook import ForwardProfilerHook

__all__ = ["ForwardProfilerHook"]

__getattr__, __dir__ = lazy_names(__name__, __all__, "capture.forward_profile_hook")
