"""Sends stage times of all ranks to a receiver of OpenTelemetry's protocol (OTLP)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ... import _core
from ...core.arguments import check_int, check_str
from ...core.extras import require
from ...core.public import public
from ...core.ranks import check_ranks, host_name, is_chosen
from ...core.warnings import warn_once
from .all_ranks import Named, RankMeans, RankTotals, StageSummary, TotalsBoard, summarize
from .exporter import Snapshot, StageExporter
from .totals import Source

# Together below the 2,000 series that the SDK takes of a metric, with the other hosts and the GPU.
STAGES_MAX = 30
HOSTS_MAX = 32
OTHER_HOSTS = "other"


@public("my_utils.record.exporters")
class OtlpExporter(StageExporter):
    """Sends mean stage times as metrics of OpenTelemetry: a figure a host, and the worst ranks.

    source: a `MyTimer` or `TimeManager`. All ranks have an exporter; one of them sends for all.
    endpoint: the address that takes metrics, such as `http://collector:4318/v1/metrics`. None
        means what the variables of OpenTelemetry say, `OTEL_EXPORTER_OTLP_ENDPOINT` and others.
    every_s: the interval at which a thread reads the times and sends them, until `step()` is called
        for the first time.
    every_steps: of the calls of `step()`, every which is sent.
    ranks: the ranks that take part; None is all of them. The lowest one sends.
    worst: how many ranks are named for each stage.

    Ranks pass their totals on through the store of `torch.distributed`, without a collective, over
    a separate connection; without `init_process_group` the sender sends its own alone. Timers need
    different tags, and one `TimeManager` of a rank can have such an exporter.

    Metrics, gauges of the mean of the calls since the point before, in seconds, with the attributes
    `stage`, `timer` (the tag) and `device` (`cpu` or `gpu`):

    - `my_utils.stage.duration`, with `host`: the mean of the ranks there
    - `my_utils.stage.worst.duration`, with `place`, from 1: that of the slowest rank, the second …
    - `my_utils.stage.worst.rank`, with `place`: which rank that is
    - `my_utils.step` and `my_utils.ranks`, without attributes but `timer`: the step of the sender,
      and how many ranks had a call

    At any number of ranks these are at most 30 stages × (33 hosts + 2 × `worst`) × 2 devices: more
    hosts share the name `other`, and more stages are left out, with one warning.

    ImportError without the extra `otlp`; TypeError and ValueError name the argument.
    """

    _needs_all = False

    def __init__(
        self,
        source: Source,
        endpoint: str | None = None,
        *,
        every_s: float = 10.0,
        every_steps: int = 1,
        ranks: int | Iterable[int] | None = None,
        worst: int = 3,
    ) -> None:
        chosen = check_ranks("ranks", ranks)
        super().__init__(source, every_s=every_s, every_steps=every_steps, ranks=chosen)
        if endpoint is not None:
            check_str("endpoint", endpoint)
        self._worst = check_int("worst", worst, 1)
        if isinstance(source, _core.TimeRecorder):
            self._timer, name = "", "manager"
        else:
            self._timer, name = source.tag, f"timer/{source.tag}"
        self._board = TotalsBoard(name)
        self._means = RankMeans()
        self._stages, self._hosts = Named(STAGES_MAX), Named(HOSTS_MAX)
        sends = is_chosen((min(chosen) if chosen else 0,))
        self._sender = _Sender(endpoint) if self._active and sends else None
        self._begin()

    def _write(self, snapshot: Snapshot) -> None:
        mine = RankTotals(host_name(), snapshot.totals)
        if self._sender is None:
            self._board.put(mine)
            return
        ranks = self._board.read(mine, self._count_failure)
        means = self._means.since_last(ranks)
        hosts = {rank: self._host(ranks[rank].host) for rank in means}
        for summary in summarize(means, hosts, self._worst):
            if self._stages.has(summary.stage):
                self._set(self._sender, summary)
            else:
                warn_once(
                    "OtlpExporter stages",
                    f"OtlpExporter sends {STAGES_MAX} stages; {summary.stage!r} and others not",
                )
        self._sender.set("my_utils.step", snapshot.step, timer=self._timer)
        self._sender.set("my_utils.ranks", len(means), timer=self._timer)
        self._sender.send()

    def _host(self, name: str) -> str:
        return name if self._hosts.has(name) else OTHER_HOSTS

    def _set(self, sender: _Sender, summary: StageSummary) -> None:
        of_stage = {"stage": summary.stage, "device": summary.device, "timer": self._timer}
        for host, mean_ms in summary.hosts.items():
            sender.set("my_utils.stage.duration", mean_ms * 1e-3, **of_stage, host=host)
        for place, (rank, mean_ms) in enumerate(summary.worst, 1):
            worst = {**of_stage, "place": place}
            sender.set("my_utils.stage.worst.duration", mean_ms * 1e-3, **worst)
            sender.set("my_utils.stage.worst.rank", rank, **worst)

    def _end(self) -> None:
        if self._sender is not None:
            self._sender.close()


GAUGES = {
    "my_utils.stage.duration": ("s", "Mean of the calls of a stage on a host."),
    "my_utils.stage.worst.duration": ("s", "Mean of the calls of a stage on the slowest ranks."),
    "my_utils.stage.worst.rank": ("", "Which ranks these are."),
    "my_utils.step": ("", "The step of the rank that sends."),
    "my_utils.ranks": ("", "Ranks that had a call since the point before."),
}


class _Sender:
    """OpenTelemetry's SDK, without its thread and its handler at the end of the process."""

    def __init__(self, endpoint: str | None) -> None:
        sdk = require("opentelemetry.sdk.metrics", "OtlpExporter")
        reading = require("opentelemetry.sdk.metrics.export", "OtlpExporter")
        otlp = require("opentelemetry.exporter.otlp.proto.http.metric_exporter", "OtlpExporter")
        self._success = reading.MetricExportResult.SUCCESS
        self._reader = reading.InMemoryMetricReader()
        self._exporter = otlp.OTLPMetricExporter(endpoint=endpoint)
        self._provider = sdk.MeterProvider([self._reader], shutdown_on_exit=False)
        meter = self._provider.get_meter("my_utils")
        self._gauges = {
            name: meter.create_gauge(name, unit=unit, description=text)
            for name, (unit, text) in GAUGES.items()
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
