"""Sends stage times to other systems."""

from __future__ import annotations

from ...core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .otlp import OtlpExporter
    from .targets import PrometheusExporter, TensorBoardExporter, WandbExporter

__all__ = ["OtlpExporter", "PrometheusExporter", "TensorBoardExporter", "WandbExporter"]

__getattr__, __dir__ = lazy_names(__name__)
