"""Compatibility module; the code is in `my_utils.profilers.capture.workers`."""

from __future__ import annotations

from ..core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..profilers.capture.workers.calls import Acknowledgement
    from ..profilers.capture.workers.config import ConfigError
    from ..profilers.capture.workers.outcomes import Outcome
    from ..profilers.capture.workers.profile_manager import ProfileManager

__all__ = ["Acknowledgement", "ConfigError", "Outcome", "ProfileManager"]

__getattr__, __dir__ = lazy_names(__name__)
