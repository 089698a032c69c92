"""Sends stage times to TensorBoard, Weights & Biases and Prometheus.

Each exporter reads the totals that a `MyTimer` or a `TimeManager` keeps, and writes in a separate
thread: at an interval, or once a step where the loop calls `step()`.

>>> import tempfile
>>> from my_utils.timing import TimeManager
>>> manager = TimeManager({"load": [0.25]})
>>> with tempfile.TemporaryDirectory() as folder:
...     with PrometheusExporter(manager, folder) as exporter:
...         pass
...     text = exporter.path.read_text()
>>> [line for line in text.splitlines() if "_sum" in line]
['my_utils_stage_seconds_sum{rank="0",stage="load",timer=""} 0.25']
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from ... import _core
from ...core.arguments import check_path, check_str
from ...core.extras import require
from ...core.files import atomic_write
from ...core.public import public
from ...core.ranks import check_ranks, current_rank, host_name
from .exporter import Snapshot, StageExporter
from .totals import Means, Source

_file_numbers = itertools.count()


@public("my_utils.record.exporters")
class TensorBoardExporter(StageExporter):
    """Writes mean stage times as scalars of TensorBoard.

    source: a `MyTimer` or `TimeManager`. With `NoOpMyTimer` nothing is ever written.
    log_dir: the run's folder, such as that of your SummaryWriter; this exporter adds a file to it.
        If `ranks` is not a single rank, the file goes to a folder `rank_<rank>` in it: TensorBoard
        shows each folder as a run.
    every_s: the interval at which a thread reads the times, until `step()` is called for the first
        time.
    every_steps: of so many calls of `step()`, one is written.
    ranks: the ranks that write; None is all of them.
    prefix: the scalars are `<prefix>/<path of the stage>`, such as `time/iter/forward`: the mean of
        its calls since the last point (at the first point, of all calls so far), in milliseconds;
        `gpu_time/iter/forward` where GPU times are taken.

    ImportError without the extra `tensorboard`; TypeError and ValueError name the argument. See
    `StageExporter` for `step`, `close` and what is counted.
    """

    def __init__(
        self,
        source: Source,
        log_dir: str | os.PathLike[str],
        *,
        every_s: float = 10.0,
        every_steps: int = 1,
        ranks: int | Iterable[int] | None = 0,
        prefix: str = "time",
    ) -> None:
        chosen = check_ranks("ranks", ranks)
        super().__init__(source, every_s=every_s, every_steps=every_steps, ranks=chosen)
        self._means = Means(_check_text("prefix", prefix))
        self.log_dir = check_path("log_dir", log_dir)
        if chosen is None or len(set(chosen)) > 1:
            self.log_dir /= f"rank_{current_rank()}"
        self._file: Any = None
        if self._active:
            require("tensorboard", "TensorBoardExporter")
            self._records = import_module("tensorboard.summary.writer.record_writer")
            self._events = import_module("tensorboard.compat.proto.event_pb2")
            self._summaries = import_module("tensorboard.compat.proto.summary_pb2")
        self._begin()

    def _write(self, snapshot: Snapshot) -> None:
        values = [
            self._summaries.Summary.Value(tag=name, simple_value=value)
            for name, value in self._means.since_last(snapshot.totals).items()
        ]
        if values:
            summary = self._summaries.Summary(value=values)
            self._record(wall_time=snapshot.at, step=snapshot.step, summary=summary)

    def _record(self, **fields: Any) -> None:
        try:
            if self._file is None:
                self._file = self._new_file()
                self._record(wall_time=fields["wall_time"], file_version="brain.Event:2")
            self._file.write(self._events.Event(**fields).SerializeToString())
        except OSError:
            self._end()  # it may end in the middle of a record
            raise

    def _new_file(self) -> Any:
        self.log_dir.mkdir(parents=True, exist_ok=True)
        name = (
            f"events.out.tfevents.{int(time.time()):010d}.{host_name()}"
            f".{os.getpid()}.stages{next(_file_numbers)}"
        )
        # Without a buffer, which a forked child would write a second time.
        return self._records.RecordWriter(open(self.log_dir / name, "xb", buffering=0))

    def _end(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


@public("my_utils.record.exporters")
class WandbExporter(StageExporter):
    """Logs mean stage times to a run of Weights & Biases.

    run: what `wandb.init` returned. None means the run of this process; if there is none, `init`
        begins one, and `close` finishes it.
    init: arguments of `wandb.init`, such as `project="mine", mode="offline"`.
    The others are those of `TensorBoardExporter`.

    The scalars are named as those of `TensorBoardExporter`; they are plotted over `<prefix>/step`.
    In your run they go into the row of your next `run.log`, so that its steps do not change.

    ImportError without the extra `wandb`. A run that cannot be begun is one warning.
    """

    def __init__(
        self,
        source: Source,
        run: Any = None,
        *,
        every_s: float = 10.0,
        every_steps: int = 1,
        ranks: int | Iterable[int] | None = 0,
        prefix: str = "time",
        **init: Any,
    ) -> None:
        super().__init__(source, every_s=every_s, every_steps=every_steps, ranks=ranks)
        self._means = Means(_check_text("prefix", prefix))
        self._prefix = prefix
        self._run_of_wandb: Any = run
        self._own = False
        if self._active:
            wandb = require("wandb", "WandbExporter")
            self._try(lambda: self._join_run(wandb, init))
            self._active = self._run_of_wandb is not None
        self._begin()

    def _join_run(self, wandb: Any, init: dict[str, Any]) -> None:
        run = wandb.run if self._run_of_wandb is None else self._run_of_wandb
        if run is None:
            run = wandb.init(**init)
            self._own = True
        run.define_metric(f"{self._prefix}/*", step_metric=f"{self._prefix}/step")
        run.define_metric(f"gpu_{self._prefix}/*", step_metric=f"{self._prefix}/step")
        self._run_of_wandb = run

    def _write(self, snapshot: Snapshot) -> None:
        means = self._means.since_last(snapshot.totals)
        if means:
            row = {**means, f"{self._prefix}/step": snapshot.step}
            self._run_of_wandb.log(row, commit=self._own)

    def _end(self) -> None:
        if self._own:
            self._run_of_wandb.finish()


@public("my_utils.record.exporters")
class PrometheusExporter(StageExporter):
    """Keeps a text file for Prometheus' textfile collector up to date.

    source: a `MyTimer` or `TimeManager`.
    output: the folder that the collector reads. The file is `my_utils_rank_<rank>.prom`, with the
        timer's tag behind `my_utils_` if it has one; `path` says where. It is always whole: each
        new version is written to another file and renamed.
    The others are those of `TensorBoardExporter`; every rank writes by default.

    Metrics, with the labels `stage`, `timer` (the tag) and `rank`, of the whole run:
    `my_utils_stage_seconds`, a summary with the quantiles 0.5, 0.9 and 0.99 (good to 1 %; a
    `TimeManager` has none), `my_utils_stage_gpu_seconds` where GPU times are taken, and
    `my_utils_step`, a gauge.

    ImportError without the extra `prometheus`.
    """

    _needs_all = False

    def __init__(
        self,
        source: Source,
        output: str | os.PathLike[str],
        *,
        every_s: float = 10.0,
        every_steps: int = 1,
        ranks: int | Iterable[int] | None = None,
    ) -> None:
        super().__init__(source, every_s=every_s, every_steps=every_steps, ranks=ranks)
        self._timer = "" if isinstance(source, _core.TimeRecorder) else source.tag
        self._rank = str(current_rank())
        tag = re.sub(r"[^A-Za-z0-9_.-]+", "_", self._timer)
        parts = ["my_utils", *([tag] if tag else []), "rank", self._rank]
        self.path = check_path("output", output) / f"{'_'.join(parts)}.prom"
        if self._active:
            self._prometheus = require("prometheus_client", "PrometheusExporter")
            self._metrics = import_module("prometheus_client.metrics_core")
        self._begin()

    def _write(self, snapshot: Snapshot) -> None:
        text = self._prometheus.generate_latest(_Collected(list(self._families(snapshot))))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.path) as file:
            file.write(text)

    def _families(self, snapshot: Snapshot) -> Iterator[Any]:
        cpu = self._summary("my_utils_stage_seconds", "Time of the calls of a stage.")
        gpu = self._summary("my_utils_stage_gpu_seconds", "GPU time of the calls of a stage.")
        cpu_quantiles, gpu_quantiles = self._quantiles()
        for path, total in snapshot.totals.items():
            self._add(cpu, path, total.calls, total.ns, cpu_quantiles)
            if total.gpu_calls:
                self._add(gpu, path, total.gpu_calls, total.gpu_ns, gpu_quantiles)
        yield cpu
        if gpu.samples:
            yield gpu
        step = self._metrics.Metric("my_utils_step", "The step that the run is at.", "gauge")
        step.add_sample("my_utils_step", self._labels(), snapshot.step)
        yield step

    def _summary(self, name: str, what: str) -> Any:
        return self._metrics.Metric(name, what, "summary")

    def _quantiles(self) -> tuple[dict[str, tuple[float, ...]], dict[str, tuple[float, ...]]]:
        """p50, p90 and p99 in ns by path, of CPU and GPU times."""
        if isinstance(self._source, _core.TimeRecorder):
            return {}, {}
        return (
            {"/".join(row[0]): row[6:9] for row in self._source.aggregates()},
            {"/".join(row[0]): row[6:9] for row in self._source.cuda_aggregates()},
        )

    def _add(
        self,
        family: Any,
        path: str,
        count: int,
        sum_ns: int,
        quantiles: dict[str, tuple[float, ...]],
    ) -> None:
        labels = {**self._labels(), "stage": path}
        for share, ns in zip(("0.5", "0.9", "0.99"), quantiles.get(path, ()), strict=False):
            family.add_sample(family.name, {**labels, "quantile": share}, ns * 1e-9)
        family.add_sample(f"{family.name}_sum", labels, sum_ns * 1e-9)
        family.add_sample(f"{family.name}_count", labels, count)

    def _labels(self) -> dict[str, str]:
        return {"rank": self._rank, "timer": self._timer}


class _Collected:
    """What `generate_latest` asks for metrics."""

    def __init__(self, families: list[Any]) -> None:
        self._families = families

    def collect(self) -> list[Any]:
        return self._families


def _check_text(name: str, value: object) -> str:
    text = check_str(name, value)
    if not text:
        raise ValueError(f"{name} must not be empty")
    return text
