"""Compatibility module; the code is in `my_utils.tensors.random_states`."""

from __future__ import annotations

from ..core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..tensors.random_states.control_random import ControlRandom

__all__ = ["ControlRandom"]

__getattr__, __dir__ = lazy_names(__name__)
