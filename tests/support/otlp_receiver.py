"""A receiver of OpenTelemetry's protocol: a real HTTP server that decodes the protobuf."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from typing import Any

from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service

Point = tuple[str, dict[str, Any], float]


class Receiver(http.server.ThreadingHTTPServer):
    """requests: of each request its points, by metric, attributes and value."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[list[Point]] = []
        self.status = 200
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}/v1/metrics"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        receiver: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if receiver.status == 200:
            receiver.requests.append(points_of(body))
        self.send_response(receiver.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def points_of(body: bytes) -> list[Point]:
    message = service.ExportMetricsServiceRequest.FromString(body)
    return [
        (metric.name, {one.key: value_of(one.value) for one in point.attributes}, value_of(point))
        for resource in message.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.gauge.data_points
    ]


def value_of(message: Any) -> Any:
    kind = message.WhichOneof("value")
    return getattr(message, kind)


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
