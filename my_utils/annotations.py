"""Compatibility module; the code is in `my_utils.profilers.sweep`."""

from __future__ import annotations

from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .profilers.sweep.decorator import SweptFunction, parametrize_shapes
    from .profilers.sweep.results import SweepPoint, SweepResult

__all__ = ["SweepPoint", "SweepResult", "SweptFunction", "parametrize_shapes"]

__getattr__, __dir__ = lazy_names(__name__)
