"""Sends gauges to a receiver of OpenTelemetry's protocol (OTLP)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.extras import require


class GaugeSender:
    """OpenTelemetry's SDK, without its thread and its handler at the end of the process.

    endpoint: None means what the variables of OpenTelemetry say. gauges: by name their unit and
    what they are. purpose: what needs the SDK, for an ImportError. Not thread-safe.
    """

    def __init__(
        self, endpoint: str | None, gauges: Mapping[str, tuple[str, str]], purpose: str
    ) -> None:
        sdk = require("opentelemetry.sdk.metrics", purpose)
        reading = require("opentelemetry.sdk.metrics.export", purpose)
        otlp = require("opentelemetry.exporter.otlp.proto.http.metric_exporter", purpose)
        self._success = reading.MetricExportResult.SUCCESS
        self._reader = reading.InMemoryMetricReader()
        self._exporter = otlp.OTLPMetricExporter(endpoint=endpoint)
        self._provider = sdk.MeterProvider([self._reader], shutdown_on_exit=False)
        meter = self._provider.get_meter("my_utils")
        self._gauges = {
            name: meter.create_gauge(name, unit=unit, description=text)
            for name, (unit, text) in gauges.items()
        }

    def set(self, name: str, value: float, **attributes: Any) -> None:
        self._gauges[name].set(value, attributes)

    def send(self) -> None:
        """What was set since the last time. OSError if the receiver did not take it."""
        data = self._reader.get_metrics_data()
        if data is not None and self._exporter.export(data) is not self._success:
            raise OSError("the receiver did not take them")

    def close(self) -> None:
        self._provider.shutdown()
        self._exporter.shutdown()
