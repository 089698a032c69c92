"""What serves the requests that a job finds when it begins a step.

It is in a layer above the timers, which call it. `my_utils/__init__.py` knows all layers and sets
`load`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would take longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable

    from .. import _core

load: Callable[[], Callable[[_core.Timer, int], None]]
"""Imports what is called with the timer and the step, and returns it."""
