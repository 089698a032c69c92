"""Compatibility module; the code is in `my_utils.sweep`."""

from __future__ import annotations

from .common.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .sweep import SweepPoint, SweepResult, SweptFunction, parametrize_shapes

__all__ = ["SweepPoint", "SweepResult", "SweptFunction", "parametrize_shapes"]

__getattr__, __dir__ = lazy_names(__name__, __all__, "sweep")
