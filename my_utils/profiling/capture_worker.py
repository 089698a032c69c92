"""Compatibility module; the code is in `my_utils.profilers.capture.workers`."""

from __future__ import annotations

from ..core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..profilers.capture.workers.worker import CaptureWorker, arm_capture, capture_outcomes

__all__ = ["CaptureWorker", "arm_capture", "capture_outcomes"]

__getattr__, __dir__ = lazy_names(__name__)
