"""Capture windows: what opens them, and the profilers that they start and stop."""

from __future__ import annotations

from ...core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .on_demand.channel import responses
    from .on_demand.command import EXIT_FAILED, EXIT_FINE, EXIT_NOBODY, EXIT_USAGE, main
    from .on_demand.control_file import Request
    from .on_demand.request import listen, register, request_capture, wait_for_capture
    from .on_demand.result import Response

__all__ = [
    "EXIT_FAILED",
    "EXIT_FINE",
    "EXIT_NOBODY",
    "EXIT_USAGE",
    "Request",
    "Response",
    "listen",
    "main",
    "register",
    "request_capture",
    "responses",
    "wait_for_capture",
]

__getattr__, __dir__ = lazy_names(__name__)
