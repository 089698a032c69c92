"""Watches memory and hardware while a program runs: GPU memory, NVML's figures, CPU, RSS and I/O.

    from my_utils.gpu_mem_tracker import GPU_Performance_Tracker

    tracker = GPU_Performance_Tracker(prefix="run", interval=1, track_hardware_metrics=True)
    tracker.start_monitoring()
    ...
    tracker.stop_monitoring()

leaves `run_rank0_performance_profile.png` and `.csv`, and curves in the trace of MyTimer, and says
in the log which stage was open when memory was at its peak. More is in
docs/memory/where-does-the-memory-go.md.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from ...core.arguments import check_bool, check_seconds
from ...core.extras import require
from ...core.process_end import OpenObjects
from ...core.public import public
from ...core.ranks import check_ranks, current_rank, is_chosen
from ...core.reprs import short_repr
from ...core.tables import write_figure
from ...core.warnings import warn_once
from ...record.log.logger import get_global_logger
from .tracker.plot import draw
from .tracker.record import Peak, Record
from .tracker.run import Run
from .tracker.sources import Host, Nvml, Probe, psutil_probes, torch_devices, torch_probes

_logger = logging.getLogger("my_utils")

_LEAST_INTERVAL_S = 0.001
_MOST_INTERVAL_S = threading.TIMEOUT_MAX / 2


@public("my_utils.gpu_mem_tracker")
class GPU_Performance_Tracker:
    """Samples memory and hardware in a separate thread, every `interval` seconds.

    The figures, by the names of the CSV's columns and the trace's counters (`gpu0.power_w`):

    - of torch's allocator on each GPU: `gpu<N>_allocated_bytes`, `_reserved_bytes` and
      `_allocated_peak_bytes`, the high-water mark that torch itself keeps, which also has what was
      allocated and freed between two samples
    - of NVML: `_utilization_percent`, `_memory_utilization_percent`, `_memory_used_bytes` (of all
      processes), `_power_w`, `_temperature_c`, `_sm_clock_mhz`, `_memory_clock_mhz`,
      `_pcie_rx_bytes_per_s`, `_pcie_tx_bytes_per_s` (one read every 0.25 s, in turns, as each
      takes the driver 20 ms)
    - of the host: `host_cpu_percent` (of all cores), `process_cpu_percent` (100 is one core),
      `process_rss_bytes`, `process_read_bytes_per_s` and `process_write_bytes_per_s` (of the disk)
    - where psutil is installed (`pip install psutil`), once a second at most:
      `children_rss_bytes` and `children_count` of all descendants of this process, such as the
      workers of a DataLoader, and `host_available_bytes`, the memory that the machine has left

    Files: `<prefix>_rank<rank>_performance_profile.csv`, each row written within a second, and
    `<prefix>_rank<rank>_performance_profile.png`, at the end. Rows are appended to the CSV of an
    earlier run; a CSV with other columns is set aside. While another tracker writes files of these
    names, both are numbered: `….2.csv`. Memory is bounded: the plot is made of 4,096 buckets at
    most, which keep the least and the greatest sample.

    prefix: of the files; it may begin with a folder, which is made.
    interval, interval_s: seconds between two samples, at least 0.001; two names of one parameter.
    track_hardware_metrics: read NVML (`pip install nvidia-ml-py`). Where there is none, that is
        one warning, and the rest continues.
    devices: the GPUs, as torch numbers those it sees; None is all. One that is not there is left
        out, with a warning.
    ranks: the ranks that sample; None is all. The others do nothing.
    plot: draw the PNG. False needs no matplotlib.
    counters: log each sample as counters of the timer's trace, while GlobalLogger is set up.

    A source that fails is left out from then on, with one warning. Without CUDA there are only the
    figures of the host. The thread never delays the end of the process, which stops the tracker as
    `stop` does. A forked child has no tracker running. The tracker does not initialize CUDA. Raises
    TypeError and ValueError for wrong arguments. All methods are thread-safe.

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
        interval_s: float | None = None,
    ) -> None:
        self.prefix = _check_prefix(prefix)
        name, seconds = ("interval", interval) if interval_s is None else ("interval_s", interval_s)
        self.interval_s = check_seconds(name, seconds, _LEAST_INTERVAL_S, _MOST_INTERVAL_S)
        self.track_hardware_metrics = check_bool("track_hardware_metrics", track_hardware_metrics)
        self.devices = check_ranks("devices", devices)
        self.ranks = check_ranks("ranks", ranks)
        self.plot = check_bool("plot", plot)
        self.counters = check_bool("counters", counters)
        self._lock = threading.RLock()
        self._record: Record | None = None
        self._run: Run | None = None

    def __repr__(self) -> str:
        return short_repr(self, "prefix", "interval_s", "samples", "is_monitoring")

    # --- the run ---

    def start_monitoring(self) -> None:
        """Another name for `start`."""
        self.start()

    def stop_monitoring(self) -> dict[str, Peak]:
        """Another name for `stop`."""
        return self.stop()

    def start(self) -> None:
        """Begins to sample. If it does so already, it warns and changes nothing.

        After `stop` it continues: peaks, CSV and plot then cover both spans. ImportError
        when a plot is wanted and matplotlib is missing.
        """
        with self._lock:
            if self._run is not None:
                _logger.warning("the performance tracker %r runs already", self.prefix)
                return
            if not is_chosen(self.ranks):
                return
            if self.plot and importlib.util.find_spec("matplotlib") is None:
                require(
                    "matplotlib", "the plot of the performance tracker (plot=False does without)"
                )
            nvml = self._open_nvml() if self.track_hardware_metrics else None
            probes = self._probes(nvml)
            if self._record is None:
                figures = [figure for probe in probes for figure in probe.figures]
                base = f"{self.prefix}_rank{current_rank()}_performance_profile"
                self._record = Record(Path(base).absolute(), figures, self.counters)
            run = Run(self._record, probes, nvml, self.interval_s)
            if run.start():
                self._run = run
                _running.add(self)

    def _probes(self, nvml: Nvml | None) -> list[Probe]:
        in_torch, in_nvml = torch_devices(), 0 if nvml is None else nvml.count
        devices = _present(self.devices, max(in_torch, in_nvml))
        probes = torch_probes([device for device in devices if device < in_torch])
        if nvml is not None:
            probes += nvml.probes(devices)
        return probes + Host().probes() + psutil_probes()

    def _open_nvml(self) -> Nvml | None:
        try:
            return Nvml()
        except ImportError:
            reason = "nvidia-ml-py is not installed: pip install nvidia-ml-py"
        except Exception as error:  # NVMLError, which only the package knows
            reason = str(error)
        warn_once(
            "tracker_nvml",
            f"the performance tracker has no hardware figures, as NVML is not at hand: {reason}",
        )
        return None

    def stop(self) -> dict[str, Peak]:
        """Takes a last sample, ends the thread, writes the plot, logs and returns the peaks.

        The `report` goes to the log; before `GlobalLogger().setup` that is stderr. A tracker that
        does not run returns the peaks so far. Files that cannot be written are a warning.
        """
        with self._lock:
            run, self._run = self._run, None
            if run is None or self._record is None:
                return self.peaks()
            _running.discard(self)
            run.stop()
            if self.plot:
                self._write_plot(self._record)
            get_global_logger().info("performance tracker %r:\n%s", self.prefix, self.report())
            return self.peaks()

    def _write_plot(self, record: Record) -> None:
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
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _forget(self) -> None:
        """In a forked child: the thread is the parent's, and so is the file."""
        self._lock = threading.RLock()
        if self._record is not None:
            self._record.forget()
        self._run = None

    # --- results ---

    @property
    def interval(self) -> float:
        """Another name of `interval_s`."""
        return self.interval_s

    @property
    def is_monitoring(self) -> bool:
        """Whether it takes samples now."""
        return self._run is not None

    @property
    def csv_path(self) -> Path | None:
        """The samples; None before the first start."""
        return None if self._record is None else self._record.csv

    @property
    def plot_path(self) -> Path | None:
        """The plot, which `stop` writes; None before the first start."""
        return None if self._record is None or not self.plot else self._record.png

    @property
    def samples(self) -> int:
        """The number of samples."""
        return 0 if self._record is None else self._record.count()

    def peaks(self) -> dict[str, Peak]:
        """The greatest sample of each figure so far, by the name of its column; figures without a
        sample are not in it."""
        return {} if self._record is None else self._record.peaks()

    def report(self) -> str:
        """The peaks and means as a table."""
        return "no samples" if self._record is None else self._record.report()


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


_running: OpenObjects[GPU_Performance_Tracker] = OpenObjects(
    close=lambda tracker: tracker.stop(), forget=lambda tracker: tracker._forget()
)
