"""Watches memory and hardware while a program runs: GPU memory, NVML's figures, CPU, RSS and I/O.

    from my_utils.gpu_mem_tracker import GPU_Performance_Tracker

    tracker = GPU_Performance_Tracker(prefix="run", interval=1, track_hardware_metrics=True)
    tracker.start_monitoring()
    ...
    tracker.stop_monitoring()

leaves `run_rank0_performance_profile.png` and `.csv`, and curves in the trace of MyTimer, and says
in the log which stage was open when memory was at its peak. docs/where-does-the-memory-go.md tells
more.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from . import _core
from ._arguments import check_bool, check_seconds
from ._open_stages import Lane, Where, where
from ._process_end import call_at_end
from ._ranks import check_ranks, current_rank, is_chosen
from ._tables import needed, text_table, write_figure
from ._tracker.csv_file import SampleFile, quoted
from ._tracker.plot import draw, readable
from ._tracker.psutil_probes import psutil_probes
from ._tracker.series import Series
from ._tracker.sources import Figure, Host, Nvml, Probe, torch_devices, torch_probes
from ._warnings import warn_once

__all__ = ["GPU_Performance_Tracker", "Peak"]

_logger = logging.getLogger("my_utils")

_LEAST_INTERVAL_S = 0.001
_MOST_INTERVAL_S = threading.TIMEOUT_MAX / 2
# Samples are worked on once a second, or when so many are there.
_DIGEST_NS = 10**9
_DIGEST_SAMPLES = 256
# How long `stop_monitoring` waits for a read that hangs in the driver, and in how many waits: for
# as long as the whole process was stopped, the thread did not hang.
_JOIN_S = 2.0
_JOINS = 20


class Peak(NamedTuple):
    """The greatest sample of a figure, and where the program was."""

    value: float
    unit: str
    """bytes, bytes/s, %, W, °C, MHz or processes."""
    timestamp: float
    """Unix seconds."""
    step: int | None
    """None before any timer recorded."""
    stage: str
    """The timer's open stages, such as "iter/forward"; empty when none was open."""


class GPU_Performance_Tracker:
    """Samples memory and hardware in a thread of its own, every `interval` seconds.

    What there is, by name of the CSV's columns and of the trace's counters (`gpu0.power_w`):

    - of torch's allocator on each GPU: `gpu<N>_allocated_bytes`, `_reserved_bytes` and
      `_allocated_peak_bytes`, the high-water mark that torch itself keeps, which also has what was
      allocated and freed between two samples
    - of NVML: `_utilization_percent`, `_memory_utilization_percent`, `_memory_used_bytes` (of all
      processes), `_power_w`, `_temperature_c`, `_sm_clock_mhz`, `_memory_clock_mhz`,
      `_pcie_rx_bytes_per_s`, `_pcie_tx_bytes_per_s` (one read every 0.25 s, in turns, as each
      takes the driver 20 ms)
    - of the host: `host_cpu_percent` (of all cores), `process_cpu_percent` (100 is one core),
      `process_rss_bytes`, `process_read_bytes_per_s` and `process_write_bytes_per_s` (of the disk)
    - where psutil is installed (`pip install 'my_utils[system]'`), once a second at most:
      `children_rss_bytes` and `children_count` of all descendants of this process, such as the
      workers of a DataLoader, and `host_available_bytes`, the memory that the machine has left

    Files: `<prefix>_rank<rank>_performance_profile.csv`, written as it goes, each row at most a
    second late; a file of an earlier run goes on, or is set aside when its columns are others. And
    `<prefix>_rank<rank>_performance_profile.png`, at the end. While another tracker writes files of
    these names, both are numbered: `….2.csv`. Memory is bounded: the plot is made
    of 4,096 buckets at most, which keep the least and the greatest sample.

    prefix: of the files, with a folder where wanted, which is made.
    interval: seconds between two samples, at least 0.001.
    track_hardware_metrics: read NVML (`pip install 'my_utils[nvml]'`). Where there is none, that is
        one warning, and the rest goes on.
    devices: the GPUs, as torch numbers those it sees; None is all. One that is not there is left
        out, with a warning.
    ranks: the ranks that sample; None is all. The others do nothing.
    plot: draw the PNG. False needs no matplotlib.
    counters: log each sample as counters of the timer's trace, while GlobalLogger is set up.

    A source that fails is left out from then on, with one warning. Without CUDA there are the
    figures of the host. The thread never holds up the end of the process, which stops the tracker
    as `stop_monitoring` does. A forked child has no tracker running. CUDA is not initialized by
    it. Raises TypeError and ValueError for wrong arguments. All methods are thread-safe.

    >>> import os, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with GPU_Performance_Tracker(folder.name + "/run", 0.05, False) as tracker:
    ...     ballast = bytes(1000)
    >>> sorted(os.listdir(folder.name))
    ['run_rank0_performance_profile.csv', 'run_rank0_performance_profile.png']
    >>> tracker.peaks()["process_rss_bytes"].unit
    'bytes'
    >>> folder.cleanup()
    """

    def __init__(
        self,
        prefix: str | os.PathLike[str] = "run",
        interval: float = 1.0,
        track_hardware_metrics: bool = True,
        *,
        devices: int | Iterable[int] | None = None,
        ranks: int | Iterable[int] | None = None,
        plot: bool = True,
        counters: bool = True,
    ) -> None:
        self.prefix = _check_prefix(prefix)
        self.interval = check_seconds("interval", interval, _LEAST_INTERVAL_S, _MOST_INTERVAL_S)
        self.track_hardware_metrics = check_bool("track_hardware_metrics", track_hardware_metrics)
        self.devices = check_ranks("devices", devices)
        self.ranks = check_ranks("ranks", ranks)
        self.plot = check_bool("plot", plot)
        self.counters = check_bool("counters", counters)
        self._lock = threading.RLock()
        self._record: _Record | None = None
        self._run: _Run | None = None

    # --- the run ---

    def start_monitoring(self) -> None:
        """Begins to sample. When it does so already, that is a warning and nothing changes.

        After `stop_monitoring` it goes on: peaks, CSV and plot then tell of both spans. ImportError
        when a plot is wanted and matplotlib is missing.
        """
        with self._lock:
            if self._run is not None:
                _logger.warning("the performance tracker %r runs already", self.prefix)
                return
            if not is_chosen(self.ranks):
                return
            if self.plot and importlib.util.find_spec("matplotlib") is None:
                needed(
                    "matplotlib", "the plot of the performance tracker (plot=False does without)"
                )
            sources = self._open_sources()
            if self._record is None:
                figures = [figure for probe in sources.probes for figure in probe.figures]
                base = f"{self.prefix}_rank{current_rank()}_performance_profile"
                self._record = _Record(Path(base).absolute(), figures, self.counters)
            run = _Run(self._record, sources, self.interval)
            if run.start():
                self._run = run
                _running.add(self)
                call_at_end(_stop_all)

    def _open_sources(self) -> _Sources:
        nvml = self._open_nvml() if self.track_hardware_metrics else None
        in_torch, in_nvml = torch_devices(), 0 if nvml is None else nvml.count
        devices = _present(self.devices, max(in_torch, in_nvml))
        probes = torch_probes([device for device in devices if device < in_torch])
        if nvml is not None:
            probes += nvml.probes(devices)
        host = Host()
        return _Sources(probes + host.probes() + psutil_probes(), nvml, host)

    def _open_nvml(self) -> Nvml | None:
        try:
            return Nvml()
        except ImportError:
            reason = "nvidia-ml-py is not installed: pip install 'my_utils[nvml]'"
        except Exception as error:  # NVMLError, which only the package knows
            reason = str(error)
        warn_once(
            "tracker_nvml",
            f"the performance tracker has no hardware figures, as NVML is not at hand: {reason}",
        )
        return None

    def stop_monitoring(self) -> dict[str, Peak]:
        """Takes a last sample, ends the thread, writes the plot, logs and returns the peaks.

        When it does not run: the peaks so far. Files that cannot be written are a warning.
        """
        with self._lock:
            run, self._run = self._run, None
            if run is None or self._record is None:
                return self.peaks()
            _running.discard(self)
            run.stop()
            if self.plot:
                self._write_plot(self._record)
            _logger.info("performance tracker %r:\n%s", self.prefix, self.report())
            return self.peaks()

    def _write_plot(self, record: _Record) -> None:
        title = f"{Path(self.prefix).name}, rank {record.rank}"
        if not any(figure.group.startswith("gpu") for figure in record.figures):
            title += ": no GPU here, figures of the host"
        try:
            write_figure(
                record.png,
                lambda picture: draw(picture, record.figures, record.series, record.peaks(), title),
            )
        except Exception as error:
            _logger.warning("the performance tracker's plot could not be drawn: %s", error)

    def __enter__(self) -> Self:
        self.start_monitoring()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop_monitoring()

    def _forget(self) -> None:
        """In a forked child: the thread is the parent's, and so is the file."""
        self._lock = threading.RLock()
        if self._run is not None:
            self._run.forget()
        self._run = None

    # --- results ---

    @property
    def is_monitoring(self) -> bool:
        return self._run is not None

    @property
    def csv_path(self) -> Path | None:
        """The samples; None before the first start."""
        return None if self._record is None else self._record.csv

    @property
    def plot_path(self) -> Path | None:
        """The plot, which `stop_monitoring` writes; None before the first start."""
        return None if self._record is None or not self.plot else self._record.png

    @property
    def samples(self) -> int:
        """How many were taken."""
        return 0 if self._record is None else self._record.count()

    def peaks(self) -> dict[str, Peak]:
        """The greatest sample of each figure so far, by the name of its column; figures without a
        sample are not in it."""
        return {} if self._record is None else self._record.peaks()

    def report(self) -> str:
        """The peaks and means as a table."""
        return "no samples" if self._record is None else self._record.report()


class _Sources(NamedTuple):
    probes: list[Probe]
    nvml: Nvml | None
    host: Host

    def close(self) -> None:
        self.host.close()
        if self.nvml is not None:
            self.nvml.close()


class _Run:
    """The thread of one start."""

    def __init__(self, record: _Record, sources: _Sources, interval: float) -> None:
        self._reader = _Reader(record.figures, sources.probes)
        self._record = record
        self._sources = sources
        self._interval = interval
        self._stop = threading.Event()
        self._given_up = False
        self._thread = threading.Thread(
            target=self._sample_on, name="my_utils performance tracker", daemon=True
        )

    def _sample_on(self) -> None:
        due = time.monotonic()
        try:
            while True:
                last = self._stop.is_set()
                self._sample()
                if last:
                    break
                late = time.monotonic() - due
                due += self._interval * max(1, math.ceil(late / self._interval))
                self._stop.wait(due - time.monotonic())
        except Exception:
            _logger.exception("the performance tracker stopped sampling")
        self._record.cpu_s += time.thread_time()
        self._sources.close()

    def _sample(self) -> None:
        values = self._reader.read()
        if not self._given_up:
            self._record.add(_Sample(time.time_ns(), _core.open_stages(), values))

    def forget(self) -> None:
        """In a forked child, where the thread is not."""
        self._sources.host.close()
        self._record.forget()

    def start(self) -> bool:
        """Opens the file and starts the thread; False, with a warning, when there can be none."""
        self._record.open()
        try:
            self._thread.start()
            return True
        except RuntimeError as error:  # too many threads, or the interpreter ends
            _logger.warning("the performance tracker cannot run: %s", error)
            self._record.close()
            self._sources.close()
            return False

    def stop(self) -> None:
        """Lets the thread take its last sample; does not wait for one that hangs."""
        self._stop.set()
        for _ in range(_JOINS):
            self._thread.join(_JOIN_S / _JOINS)
        if self._thread.is_alive():
            self._given_up = True
            _logger.warning(
                "the performance tracker waits for a read of its sources, which hangs; the "
                "samples before it are kept"
            )
        self._record.close()


class _Reader:
    """Reads all probes into one row; what fails is left out from then on."""

    def __init__(self, figures: Sequence[Figure], probes: Sequence[Probe]) -> None:
        self._width = len(figures)
        slots = {figure.name: slot for slot, figure in enumerate(figures)}
        # A start later on may find what the first one did not; the columns stay those of the first.
        self._probes = [
            (slots[probe.figures[0].name], probe)
            for probe in probes
            if all(figure.name in slots for figure in probe.figures)
        ]

    def read(self) -> list[float]:
        row = [math.nan] * self._width
        failed: list[tuple[Probe, Exception]] = []
        for slot, probe in self._probes:
            try:
                row[slot : slot + len(probe.figures)] = probe.read()
            except Exception as error:
                failed.append((probe, error))
        if failed:
            self._leave_out(failed)
        return row

    def _leave_out(self, failed: Sequence[tuple[Probe, Exception]]) -> None:
        gone = [probe for probe, _ in failed]
        self._probes = [item for item in self._probes if item[1] not in gone]
        reasons: dict[str, list[str]] = {}
        for probe, error in failed:
            reason = str(error) or type(error).__name__
            reasons.setdefault(reason, []).extend(figure.name for figure in probe.figures)
        for reason, names in reasons.items():
            _logger.warning(
                "the performance tracker goes on without %s (%s)", ", ".join(names), reason
            )


class _Sample(NamedTuple):
    time_ns: int
    lanes: list[Lane]
    row: list[float]


class _Record:
    """What was sampled: the series, the peaks, the file and the counters. Thread-safe.

    Samples are collected for a second and worked on together: after a pause the first run through
    code costs several times what the next ones do.
    """

    def __init__(self, base: Path, figures: Sequence[Figure], counters: bool) -> None:
        self.figures = list(figures)
        self.csv = base.with_name(base.name + ".csv")
        self.rank = current_rank()
        self.series = Series([figure.name for figure in figures])
        self.samples = 0
        self.cpu_s = 0.0
        """Processor time of the threads that sampled and have ended."""
        self._lock = threading.RLock()  # a handler of a warning or of a signal may ask for peaks
        self._file: SampleFile | None = None
        self._waiting: list[_Sample] = []
        self._digest_at_ns = 0  # the first sample is written at once
        self._peaks: list[Peak | None] = [None] * len(figures)
        self._highest = [-math.inf] * len(figures)
        self._formats = ["%d" if figure.is_whole else "%.2f" for figure in figures]
        self._groups = _slots_of_groups(figures) if counters else {}

    def open(self) -> None:
        """Opens the CSV; where that fails, samples are kept for the plot alone."""
        header = ["timestamp_unix", "step", "stage", *(figure.name for figure in self.figures)]
        try:
            self._file = SampleFile(self.csv, header)
            self.csv = self._file.path
        except OSError as error:
            _logger.warning("the performance tracker cannot write %s: %s", self.csv, error.strerror)

    @property
    def png(self) -> Path:
        return self.csv.with_suffix(".png")

    def close(self) -> None:
        with self._lock:
            self._digest()
            if self._file is not None:
                self._file.close()
                self._file = None

    def forget(self) -> None:
        self._lock = threading.RLock()
        self._waiting.clear()
        if self._file is not None:
            self._file.drop()
            self._file = None

    def add(self, sample: _Sample) -> None:
        with self._lock:
            self._waiting.append(sample)
            if sample.time_ns >= self._digest_at_ns or len(self._waiting) >= _DIGEST_SAMPLES:
                self._digest_at_ns = sample.time_ns + _DIGEST_NS
                self._digest()

    def _digest(self) -> None:
        waiting, self._waiting = self._waiting, []
        logs_counters = bool(self._groups) and _logger_is_set_up()
        for sample in waiting:
            place = where(sample.lanes)
            self.samples += 1
            self.series.add(sample.time_ns / 1e9, sample.row)
            self._raise_peaks(sample, place)
            texts = [
                "" if value != value else form % value
                for form, value in zip(self._formats, sample.row, strict=True)
            ]
            if self._file is not None:
                self._file.add(_csv_row(sample.time_ns, place, texts))
            if logs_counters:
                self._count(sample.time_ns, place.step, texts)
        if self._file is not None:
            self._file.flush()

    def _raise_peaks(self, sample: _Sample, place: Where) -> None:
        for slot, value in enumerate(sample.row):
            if value > self._highest[slot]:
                self._highest[slot] = value
                unit = self.figures[slot].unit
                self._peaks[slot] = Peak(value, unit, sample.time_ns / 1e9, *place)

    def _count(self, time_ns: int, step: int | None, texts: Sequence[str]) -> None:
        for group, slots in self._groups.items():
            pairs = ",".join([f"{key}={texts[slot]}" for key, slot in slots if texts[slot]])
            if pairs:
                _core.log_event(group, "COUNTER", step, pairs, time_ns, None)

    def peaks(self) -> dict[str, Peak]:
        with self._lock:
            self._digest()
            found = zip(self.figures, self._peaks, strict=True)
            return {figure.name: peak for figure, peak in found if peak is not None}

    def count(self) -> int:
        with self._lock:
            return self.samples + len(self._waiting)

    def report(self) -> str:
        peaks = self.peaks()
        with self._lock:
            begin = self.series.begins[0] if self.samples else 0.0
            means = {name: self.series.mean(name) for name in peaks}
        rows = [
            [name, readable(peak.value, peak.unit), readable(means[name], peak.unit),
             f"{peak.timestamp - begin:.1f} s", "" if peak.step is None else str(peak.step),
             peak.stage]
            for name, peak in peaks.items()
        ]  # fmt: skip
        table = text_table(["figure", "peak", "mean", "after", "step", "stage"], rows, left=1)
        cost = f", {self.cpu_s / self.samples * 1e6:.0f} µs of CPU each" if self.cpu_s else ""
        return f"{table}\n{self.samples} samples{cost}: {self.csv}"


def _csv_row(time_ns: int, place: Where, texts: Sequence[str]) -> str:
    seconds, rest = divmod(time_ns, 10**9)
    step = "" if place.step is None else place.step
    return f"{seconds}.{rest:09d},{step},{quoted(place.stage)},{','.join(texts)}\n"


def _slots_of_groups(figures: Sequence[Figure]) -> dict[str, list[tuple[str, int]]]:
    groups: dict[str, list[tuple[str, int]]] = {}
    for slot, figure in enumerate(figures):
        groups.setdefault(figure.group, []).append((figure.key, slot))
    return groups


def _logger_is_set_up() -> bool:
    from .logger import GlobalLogger

    return GlobalLogger().is_set_up


def _present(devices: Sequence[int] | None, count: int) -> list[int]:
    if devices is None:
        return list(range(count))
    missing = [device for device in devices if device >= count]
    if missing:
        warn_once(
            "tracker_devices",
            f"the performance tracker leaves out GPU {', '.join(map(str, missing))}: "
            f"{count} GPUs are visible",
        )
    return [device for device in devices if device < count]


# --- arguments ---


def _check_prefix(prefix: object) -> str:
    if not isinstance(prefix, (str, os.PathLike)) or not isinstance(os.fspath(prefix), str):
        raise TypeError(f"prefix must be a str or a path, not {prefix!r:.100}")
    text = os.fspath(prefix)
    if not os.path.basename(text) or "\0" in text:
        raise ValueError(f"prefix must end in the beginning of a file name, not {text!r:.100}")
    return str(text)


# --- the end of the process, and forks ---

_running: set[GPU_Performance_Tracker] = set()


def _stop_all() -> None:
    for tracker in list(_running):
        tracker.stop_monitoring()


def _forget_all() -> None:
    for tracker in list(_running):
        tracker._forget()
    _running.clear()


os.register_at_fork(after_in_child=_forget_all)
