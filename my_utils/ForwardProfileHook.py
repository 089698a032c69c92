"""Compatibility module; the code is in `my_utils.profilers.capture`."""

from __future__ import annotations

from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .profilers.capture.forward_profile_hook import ForwardProfilerHook

__all__ = ["ForwardProfilerHook"]

__getattr__, __dir__ = lazy_names(__name__)
