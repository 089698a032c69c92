"""Sends stage times to other systems."""

from __future__ import annotations

from ...core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .targets import PrometheusExporter, TensorBoardExporter, WandbExporter

__all__ = ["PrometheusExporter", "TensorBoardExporter", "WandbExporter"]

__getattr__, __dir__ = lazy_names(__name__, __all__, "record.exporters.targets")
