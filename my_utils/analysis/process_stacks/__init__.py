"""Python stacks of this process and of a running job, read without stopping it."""

from __future__ import annotations

from ...core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .record import Frame, StackRecord, Thread, own_stacks, why_off
    from .request import Stacks, job_stacks, request_stacks, wait_for_stacks

__all__ = [
    "Frame",
    "StackRecord",
    "Stacks",
    "Thread",
    "job_stacks",
    "own_stacks",
    "request_stacks",
    "wait_for_stacks",
    "why_off",
]

__getattr__, __dir__ = lazy_names(__name__)
