"""Sweeps over shapes: measures points, and returns a table of all."""

from __future__ import annotations

from ...core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .decorator import SweptFunction, parametrize_shapes
    from .results import SweepPoint, SweepResult

__all__ = ["SweepPoint", "SweepResult", "SweptFunction", "parametrize_shapes"]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    "profilers.sweep.results",
    {
        "SweptFunction": "profilers.sweep.decorator",
        "parametrize_shapes": "profilers.sweep.decorator",
    },
)
