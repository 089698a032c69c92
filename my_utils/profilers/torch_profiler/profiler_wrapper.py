"""torch's profiler around a block that runs repeatedly: a trace, and a plot over the series.

>>> import tempfile, torch
>>> folder = tempfile.TemporaryDirectory()
>>> pw = ProfilerWrapper(
...     profile_memory=True, enabled_record_cuda_average_time=True, prefix="run",
...     output=folder.name)
>>> for step in range(3):
...     with pw:
...         _ = torch.ones(64, 64) @ torch.ones(64, 64)
>>> [path.name for path in pw.close()]
['run_trace.json', 'run_cuda_time_plot.png', 'run_memory_usage_line_chart.png']
>>> folder.cleanup()
"""

from __future__ import annotations

import datetime
import functools
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from ...core.arguments import check_bool, check_int, check_logger, check_path, check_str
from ...core.extras import require
from ...core.file_names import short_name
from ...core.files import on_whole_path
from ...core.process_end import OpenObjects
from ...core.public import public
from ...core.ranks import check_ranks, current_rank, is_chosen, own_name, world_size
from ...core.reprs import short_repr
from ...core.warnings import warn_once
from ..memory import memory_history as _memory_history
from .entry_figures import MemoryCurve, levels_now, sum_figures
from .operator_figures import check_figure, operator_table
from .series import Point, Series, Spread, plot_memory, plot_times
from .torch_profile import (
    TorchProfile,
    check_activities,
    export_trace,
    on_this_machine,
    tolerated,
    write_each,
)
from .window_files import save_snapshot

_logger = logging.getLogger("my_utils")

SNAPSHOT_EVENTS_MAX = 100_000  # of the CUDA allocator's history


@public("my_utils.profilerwrapper")
class ProfilerWrapper:
    """Profiles each `with` block of a series, and writes the results at `close()`.

    ```python
    pw = ProfilerWrapper(profile_memory=True, enabled_record_cuda_average_time=True)
    for batch in batches:
        with pw:
            train_step(batch)
    pw.close()
    ```

    is_st: whether this is a single-task run, in which one process stands for all. True: only rank 0
        profiles (unless `ranks` says otherwise), and no file is named after a rank. False, the
        default: each rank is a separate task and profiles, and with several ranks
        `_rank<rank>` is put behind the prefix, so that they do not overwrite each other.
    profile_memory: follow allocations, and plot them.
    enable_print_summary: print a table of operators after each entry, by time on the device.
    enabled_record_cuda_average_time: take the time on the device of each entry, and plot it with
        its mean over the series.
    prefix: what the files' names begin with; a long one is cut, with a digest at its end.
    output: where they go; made at `close()`.
    ranks: which ranks profile: an int or several; None means what `is_st` says.
    enabled: False makes everything here do nothing, and costs a method call.
    export_trace: write a Chrome trace.
    keep_all_traces: also write `<prefix>_trace_<entry>.json` at the end of each entry.
    dump_memory_snapshot: write a snapshot for https://pytorch.org/memory_viz: with CUDA the
        allocator's history of the series; without, what the profiler saw of the last entry.
    record_shapes, with_stack, with_flops, activities: as for `torch.profiler.profile`; activities
        may be given as "cpu" and "cuda".
    row_limit, sort_by: of the printed table. `sort_by` is a figure of torch's tables, such as
        "self_cuda_time_total" (old names are taken), "cpu_time_total", "count"; None means time on
        the device itself, without children.
    logger: takes the printed table instead of standard output.

    | File | Written with |
    |---|---|
    | `<prefix>_trace.json` | `export_trace`: the trace of the last profiled entry |
    | `<prefix>_cuda_time_plot.png` | `enabled_record_cuda_average_time` |
    | `<prefix>_memory_usage_line_chart.png` | `profile_memory` |
    | `<prefix>_mem_<timestamp>.pickle` | `dump_memory_snapshot` |

    Files of earlier runs with the same names are replaced; the second series of the same wrapper
    is named `<prefix>.2`, and so on.

    Without device time, the time of operators on the CPU is used, and the plots and tables say so.
    Times on the device are the sums over kernels and copies.

    A fault while profiling or writing gives one warning and never reaches the training. An
    exception of the block is not caught, and its entry counts (`point.raised`). An entry in which
    another profiler runs is not profiled: one warning, and the series says how many
    (`point.unprofiled`). Nested entries of the same wrapper belong to the outer one. A series that
    was not closed is written when the process exits; a forked child begins with none. The memory
    that a series takes is bounded: at most 4,096 points, and the events of one entry.

    TypeError and ValueError at once for wrong arguments; ImportError if a plot is asked for and
    matplotlib is missing. Not for use from several threads at once.
    """

    def __init__(
        self,
        is_st: bool = False,
        profile_memory: bool = False,
        enable_print_summary: bool = False,
        enabled_record_cuda_average_time: bool = False,
        *,
        prefix: str = "profile",
        output: str | os.PathLike[str] = ".",
        ranks: int | Iterable[int] | None = None,
        enabled: bool = True,
        export_trace: bool = True,
        keep_all_traces: bool = False,
        dump_memory_snapshot: bool = False,
        record_shapes: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        activities: Iterable[Any] | None = None,
        row_limit: int = 10,
        sort_by: str | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        self.is_st = check_bool("is_st", is_st)
        self.profile_memory = check_bool("profile_memory", profile_memory)
        self.enable_print_summary = check_bool("enable_print_summary", enable_print_summary)
        self.enabled_record_cuda_average_time = check_bool(
            "enabled_record_cuda_average_time", enabled_record_cuda_average_time
        )
        self.prefix = _check_prefix(prefix)
        self.output = check_path("output", output)
        self.enabled = check_bool("enabled", enabled)
        self.export_trace = check_bool("export_trace", export_trace)
        self.keep_all_traces = check_bool("keep_all_traces", keep_all_traces)
        self.dump_memory_snapshot = check_bool("dump_memory_snapshot", dump_memory_snapshot)
        self.row_limit = check_int("row_limit", row_limit, 1)
        self.sort_by = check_figure("sort_by", sort_by or "self_device_time_total")
        check_logger("logger", logger)
        self.logger = logger
        self._ranks = check_ranks("ranks", ranks)
        self._options: dict[str, Any] = {
            "activities": check_activities(activities),
            "record_shapes": check_bool("record_shapes", record_shapes),
            "profile_memory": self.profile_memory or self.dump_memory_snapshot,
            "with_stack": check_bool("with_stack", with_stack),
            "with_flops": check_bool("with_flops", with_flops),
        }
        if self.enabled and (self.profile_memory or self.enabled_record_cuda_average_time):
            require("matplotlib", "a plot of ProfilerWrapper")
        self._series_count = 0
        self._depth = 0
        self._points: Series | None = None  # of the open series, or of the last one
        self._forget()

    def __repr__(self) -> str:
        return short_repr(self, "prefix", "output", "enabled")

    def _forget(self) -> None:
        """No series is open."""
        self._series: Series | None = None
        self._chosen = False
        self._entry: _Entry | None = None
        self._last: _Entry | None = None  # that was profiled
        self._history: _memory_history.Recording | None = None
        _open.discard(self)

    def _forget_parents(self) -> None:
        self._depth = 0
        self._forget()

    @property
    def series(self) -> list[Point]:
        """The figures of the open series, or of the last one: a point for each entry, or for
        several entries once there are more than 4,096. Times are ns, memory is bytes."""
        return list(self._points.points) if self._points else []

    @property
    def total(self) -> Point:
        """The figures of all entries of that series together; `total.device.mean` is the mean time
        on the device in ns, `total.cpu.mean` that of operators on the CPU."""
        return self._points.total if self._points else Point(entries=0)

    @property
    def profiler(self) -> Any:
        """The `torch.profiler.profile` of the last profiled entry, until `close()`; or None."""
        return self._last.profile.profiler if self._last else None

    # --- an entry ---

    def __enter__(self) -> ProfilerWrapper:
        if not self.enabled:
            return self
        self._depth += 1
        if self._depth > 1:
            warn_once(f"nested {self._name}", f"{self._name}: a nested entry joins the outer one")
            return self
        if self._series is None:
            self._begin()
        if self._chosen:
            self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._depth == 0:
            return
        self._depth -= 1
        if self._depth == 0:
            self._stop(raised=kind is not None)

    @property
    def _name(self) -> str:
        return f"ProfilerWrapper {self.prefix!r}"

    def _begin(self) -> None:
        """A new series."""
        self._series_count += 1
        self._series = self._points = Series()
        self._chosen = is_chosen((0,) if self.is_st and self._ranks is None else self._ranks)
        if not self._chosen:
            return
        _open.add(self)
        if self.dump_memory_snapshot:
            with tolerated(self._name, "the allocator's history failed"):
                import torch

                if torch.cuda.is_available():
                    self._history = _memory_history.record(
                        self._name, max_entries=SNAPSHOT_EVENTS_MAX
                    )

    def _start(self) -> None:
        levels = levels_now() if self.profile_memory else {}
        self._entry = entry = _Entry(TorchProfile(self._name, **self._options), levels)
        with tolerated(self._name, "the profiler could not be started"):
            entry.is_profiled = entry.profile.start()
        if entry.is_profiled:
            self._last = None  # its events would double the memory
        entry.began_ns, entry.clock_ns = time.time_ns(), time.perf_counter_ns()

    def _stop(self, raised: bool) -> None:
        """Closes the entry, and adds it to the series."""
        entry, self._entry = self._entry, None
        series = self._series
        if entry is None or series is None:
            return
        point = Point(series.total.entries, unprofiled=1, raised=int(raised))
        point.wall = Spread.of(time.perf_counter_ns() - entry.clock_ns)
        if entry.is_profiled:
            with tolerated(self._name, "the profiler failed"):
                entry.profile.stop()
                point.unprofiled = 0
        if point.unprofiled:
            series.add(point)
            return
        self._last = entry
        with tolerated(self._name, "the figures of an entry failed"):
            self._measure(entry, point)
        series.add(point)
        if self.keep_all_traces and self.export_trace:
            with tolerated(self._name, "a trace failed"):
                self.output.mkdir(parents=True, exist_ok=True)
                path = self.output / f"{self._stem()}_trace_{point.first}.json"
                entry.trace = export_trace(self.profiler, path)
        if self.enable_print_summary:
            with tolerated(self._name, "the summary failed"):
                self._print_summary(point)

    def _measure(self, entry: _Entry, point: Point) -> None:
        if not (
            self.enabled_record_cuda_average_time
            or self.enable_print_summary
            or self.profile_memory
        ):
            return
        figures = sum_figures(self.profiler, entry.began_ns, entry.levels)
        point.device = Spread.of(figures.device_ns)
        point.cpu = Spread.of(figures.cpu_ns)
        if self.profile_memory:
            entry.memory = figures.memory
            point.peaks = {name: Spread.of(curve.peak) for name, curve in figures.memory.items()}

    def _print_summary(self, point: Point) -> None:
        on_device = point.device.total > 0
        key = on_this_machine(self.sort_by, on_device)
        table = operator_table(self.profiler, key, self.row_limit, self._options["record_shapes"])
        what = "on the GPU" if on_device else "in operators on the CPU (no GPU time was seen)"
        time_ms = (point.device if on_device else point.cpu).total / 1e6
        text = (
            f"{self._name}, entry {point.first}: {point.wall.total / 1e6:.3f} ms, "
            f"{time_ms:.3f} ms {what}\n{table}"
        )
        if self.logger is not None:
            self.logger.info("%s", text)
        else:
            print(text, flush=True)

    # --- the end of a series ---

    def leave(self) -> list[Path]:
        """Another name for `close`."""
        return self.close()

    def close(self) -> list[Path]:
        """Ends the series, writes its files and returns their paths; the next entry begins another.

        Without an entry since the last `close()` it does nothing. Inside a block it ends the entry
        there, with a warning, and the rest of the block is not profiled. Files that cannot be
        written are missing, with one warning; the others are there.
        """
        if self._series is None:
            return []
        if self._entry is not None:
            warn_once(f"left {self._name}", f"{self._name} is left inside its block")
            self._stop(raised=False)
        try:
            return self._write() if self._chosen else []
        finally:
            if self._history is not None:
                with tolerated(self._name, "the allocator's history failed"):
                    self._history.end()
            self._forget()

    def _write(self) -> list[Path]:
        series, last = self._series, self._last
        assert series is not None
        if series.total.entries == series.total.unprofiled:
            _logger.warning("%s: no entry was profiled; nothing is written", self._name)
            return []
        with tolerated(self._name, f"{self.output} could not be written"):
            self.output.mkdir(parents=True, exist_ok=True)
        stem = self._stem()
        files: dict[str, Callable[[Path], object]] = {}
        if self.export_trace and last is not None:
            files["trace.json"] = functools.partial(_write_trace, last)
        if self.enabled_record_cuda_average_time:
            files["cuda_time_plot.png"] = lambda path: plot_times(path, stem, series)
        if self.profile_memory:
            files["memory_usage_line_chart.png"] = lambda path: plot_memory(
                path, stem, series, last.memory if last else {}
            )
        if self.dump_memory_snapshot:
            stamp = datetime.datetime.now().strftime("%Y%m%d_%H%M%S_%f")
            files[f"mem_{stamp}.pickle"] = functools.partial(
                save_snapshot, self.profiler, self._history
            )
        return write_each(
            self._name,
            {self.output / f"{stem}_{suffix}": write for suffix, write in files.items()},
        )

    def _stem(self) -> str:
        name = own_name("rank{}")
        alone = self.is_st or (world_size() == 1 and name == f"rank{current_rank()}")
        rank = "" if alone else f"_{name}"
        again = "" if self._series_count == 1 else f".{self._series_count}"
        return f"{short_name(self.prefix)}{rank}{again}"


@dataclass
class _Entry:
    """A block that runs, and what is known of it until the next one is profiled."""

    profile: TorchProfile
    levels: dict[str, int]  # bytes given out when it began
    is_profiled: bool = False
    began_ns: int = 0  # Unix time
    clock_ns: int = 0
    memory: dict[str, MemoryCurve] = field(default_factory=dict)
    trace: Path | None = None  # that is written already


def _write_trace(entry: _Entry, path: Path) -> None:
    if entry.trace is None:
        export_trace(entry.profile.profiler, path)
        return
    with on_whole_path(path) as temporary:  # torch writes a trace once
        shutil.copyfile(entry.trace, temporary)


_open: OpenObjects[ProfilerWrapper] = OpenObjects(
    close=lambda wrapper: wrapper.close(), forget=lambda wrapper: wrapper._forget_parents()
)


# --- arguments ---


def _check_prefix(prefix: object) -> str:
    text = check_str("prefix", prefix)
    if not text or "/" in text or "\0" in text:
        raise ValueError(f"prefix must be the beginning of a file's name, not {text!r:.100}")
    return text
