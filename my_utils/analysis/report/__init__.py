"""Which rank, stage and step cost the time of a run."""

from __future__ import annotations

from ...core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .analysis import Report, ReportError, analyze
    from .stragglers import Straggler

__all__ = ["Report", "ReportError", "Straggler", "analyze"]

__getattr__, __dir__ = lazy_names(__name__)
