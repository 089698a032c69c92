"""Compatibility module; the code is in `my_utils.profilers.sweep`."""

from __future__ import annotations

from .core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .profilers.sweep import SweepPoint, SweepResult, SweptFunction, parametrize_shapes

__all__ = ["SweepPoint", "SweepResult", "SweptFunction", "parametrize_shapes"]

__getattr__, __dir__ = lazy_names(__name__, __all__, "profilers.sweep")
