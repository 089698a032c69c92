"""Compatibility module; the code is in `my_utils.capture.workers`."""

from __future__ import annotations

from ..common.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..capture.workers.calls import Acknowledgement
    from ..capture.workers.config import ConfigError
    from ..capture.workers.outcomes import Outcome
    from ..capture.workers.profile_manager import ProfileManager

__all__ = ["Acknowledgement", "ConfigError", "Outcome", "ProfileManager"]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    "capture.workers.calls",
    {
        "ConfigError": "capture.workers.config",
        "Outcome": "capture.workers.outcomes",
        "ProfileManager": "capture.workers.profile_manager",
    },
)
