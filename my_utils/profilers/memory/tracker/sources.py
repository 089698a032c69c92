"""The sources of the performance tracker: torch's allocator, NVML, this process, its machine and,
by psutil, its children.

A probe reads a few figures at once. The reader leaves out a probe that raised. A figure that is not
known at the moment is NaN.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ....core.warnings import warn_once

if TYPE_CHECKING:
    import psutil

NAN = math.nan
KIB = 1024


class Figure(NamedTuple):
    """A column: `gpu0_allocated_bytes` is the key allocated_bytes of the group gpu0."""

    group: str
    key: str
    unit: str
    """bytes, bytes/s, %, W, °C, MHz or processes."""

    @property
    def name(self) -> str:
        return f"{self.group}_{self.key}"

    @property
    def is_whole(self) -> bool:
        """Whether its samples are written without a fraction."""
        return self.unit.startswith("bytes") or self.unit == "processes"


class Probe(NamedTuple):
    figures: tuple[Figure, ...]
    read: Callable[[], Sequence[float]]
    """A value for each figure."""

    @classmethod
    def of(cls, group: str, unit: str, read: Callable[[], Sequence[float]], *keys: str) -> Probe:
        """Figures of one group in one unit."""
        return cls(tuple(Figure(group, key, unit) for key in keys), read)


class Rate:
    """How fast a counter grows, a second."""

    # Of two samples closer than this, as at the end of a run, the quotient is noise.
    LEAST_S = 0.005

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale
        self._before: tuple[float, float] | None = None

    def of(self, value: float) -> float:
        """NaN at the first call, and when the last one was a moment ago."""
        now = time.perf_counter()
        before = self._before
        if before is not None and now < before[0] + self.LEAST_S:
            return NAN
        self._before = now, value
        if before is None:
            return NAN
        return max(value - before[1], 0.0) * self._scale / (now - before[0])


# --- torch ---


def torch_devices() -> int:
    """The CUDA devices that torch sees, counted without initializing CUDA; 0 without torch."""
    try:
        import torch
    except ImportError:
        return 0
    return int(torch.cuda.device_count())


def torch_probes(devices: Sequence[int]) -> list[Probe]:
    """What torch's allocator holds on each device, and its own high-water mark."""
    keys = ("allocated_bytes", "reserved_bytes", "allocated_peak_bytes")
    return [
        Probe.of(f"gpu{device}", "bytes", functools.partial(torch_memory, device), *keys)
        for device in devices
    ]


def torch_memory(device: int) -> tuple[float, float, float]:
    """Allocated and reserved bytes, and the peak of those allocated."""
    import torch

    if not torch.cuda.is_initialized():
        return NAN, NAN, NAN
    stats: Any = torch.cuda.memory_stats_as_nested_dict(device)
    if not stats:
        return 0.0, 0.0, 0.0
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    return float(allocated["current"]), float(reserved["current"]), float(allocated["peak"])


# --- NVML ---


class Nvml:
    """NVML by nvidia-ml-py, opened for the life of this object.

    ImportError without the package; what NVML itself raises (`pynvml.NVMLError`) without a driver.
    """

    def __init__(self) -> None:
        import pynvml

        self._nvml: Any = pynvml
        pynvml.nvmlInit()
        try:
            self._devices = list(self._visible(int(pynvml.nvmlDeviceGetCount())))
        except Exception:
            self.close()
            raise
        self._pcie = Turns()

    def close(self) -> None:
        """Ends the use of NVML; what it says to that matters to nobody."""
        with contextlib.suppress(Exception):
            self._nvml.nvmlShutdown()

    @property
    def count(self) -> int:
        """The devices that this process may use."""
        return len(self._devices)

    def _visible(self, total: int) -> Iterator[int | str]:
        """In the order of CUDA_VISIBLE_DEVICES, which ends at the first that makes no sense."""
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
        if chosen is None:
            yield from range(total)
            return
        for text in chosen.split(","):
            name = text.strip()
            if name.startswith(("GPU-", "MIG-")):
                yield name
            elif name.isascii() and name.isdigit() and int(name) < total:
                yield int(name)
            else:
                return

    def _handle(self, device: int | str) -> Any:
        nvml = self._nvml
        if isinstance(device, int):
            return nvml.nvmlDeviceGetHandleByIndex(device)
        if device.startswith("GPU-"):  # it may be cut short
            for index in range(int(nvml.nvmlDeviceGetCount())):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                if nvml.nvmlDeviceGetUUID(handle).startswith(device):
                    return handle
        return nvml.nvmlDeviceGetHandleByUUID(device)

    def probes(self, devices: Sequence[int]) -> list[Probe]:
        """For each device, as CUDA numbers the visible ones; one that NVML does not know is left
        out, with a warning."""
        found: list[Probe] = []
        for device in devices:
            if device < len(self._devices):
                try:
                    found += self._device(f"gpu{device}", self._handle(self._devices[device]))
                except self._nvml.NVMLError as error:
                    warn_once(
                        f"tracker_nvml:{device}",
                        f"the performance tracker has no hardware figures of GPU {device}: {error}",
                    )
        return found

    def _device(self, group: str, handle: Any) -> Iterator[Probe]:
        nvml = self._nvml
        of = functools.partial(Probe.of, group)

        def utilization() -> tuple[float, float]:
            rates = nvml.nvmlDeviceGetUtilizationRates(handle)
            return rates.gpu, rates.memory

        def memory() -> tuple[float]:
            return (nvml.nvmlDeviceGetMemoryInfo(handle).used,)

        def power() -> tuple[float]:
            return (nvml.nvmlDeviceGetPowerUsage(handle) / 1000,)

        def temperature() -> tuple[float]:
            return (nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),)

        def clock(kind: int) -> tuple[float]:
            return (nvml.nvmlDeviceGetClockInfo(handle, kind),)

        def throughput(direction: int) -> Callable[[], tuple[float]]:
            read = functools.partial(nvml.nvmlDeviceGetPcieThroughput, handle, direction)
            return self._pcie.reader(read, KIB)

        yield of("%", utilization, "utilization_percent", "memory_utilization_percent")
        yield of("bytes", memory, "memory_used_bytes")
        yield of("W", power, "power_w")
        yield of("°C", temperature, "temperature_c")
        yield of("MHz", functools.partial(clock, nvml.NVML_CLOCK_SM), "sm_clock_mhz")
        yield of("MHz", functools.partial(clock, nvml.NVML_CLOCK_MEM), "memory_clock_mhz")
        yield of("bytes/s", throughput(nvml.NVML_PCIE_UTIL_RX_BYTES), "pcie_rx_bytes_per_s")
        yield of("bytes/s", throughput(nvml.NVML_PCIE_UTIL_TX_BYTES), "pcie_tx_bytes_per_s")


class Turns:
    """Reads that take 20 ms each, as that of the PCIe throughput: one every 0.25 s, in turns."""

    EVERY_S = 0.25

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], float]] = deque()
        self._due = 0.0

    def reader(self, read: Callable[[], float], scale: float) -> Callable[[], tuple[float]]:
        """Reads when it is its turn; NaN otherwise. A read that raises has no turn any more."""

        def turn() -> tuple[float]:
            now = time.monotonic()
            if now < self._due or self._waiting[0] is not read:
                return (NAN,)
            self._due = now + self.EVERY_S
            self._waiting.popleft()
            value = read() * scale
            self._waiting.append(read)
            return (value,)

        self._waiting.append(read)
        return turn


# --- this process and its machine ---


class Seldom:
    """Reads once a second at most, and takes a thousandth of a core at most; else NaN."""

    EVERY_S = 1.0
    SHARE = 0.001

    def __init__(self, read: Callable[[], Sequence[float]], width: int) -> None:
        self._read = read
        self._unknown = (NAN,) * width
        self._due = 0.0

    def read(self) -> Sequence[float]:
        now = time.monotonic()
        if now < self._due:
            return self._unknown
        began = time.thread_time()
        values = self._read()
        took = time.thread_time() - began
        self._due = now + max(self.EVERY_S, took / self.SHARE)
        return values


class Host:
    """The process and its machine, from /proc.

    psutil reads the same files and takes five times as long for it, which would be most of what
    the tracker may cost. What costs more, and says little about a tenth of a second, is read once a
    second: the kernel counts busy time in hundredths of a second, and writes a line for each core
    when it is asked.
    """

    def __init__(self) -> None:
        self._cpu, self._read, self._write = Rate(100.0), Rate(), Rate()
        self._busy = BusyShare()
        self._page = os.sysconf("SC_PAGE_SIZE")

    def probes(self) -> list[Probe]:
        io = Seldom(self._io, 2).read
        return [
            Probe.of("process", "%", self._process_cpu, "cpu_percent"),
            Probe.of("process", "bytes", self._rss, "rss_bytes"),
            Probe.of("host", "%", Seldom(self._host_cpu, 1).read, "cpu_percent"),
            Probe.of("process", "bytes/s", io, "read_bytes_per_s", "write_bytes_per_s"),
        ]

    def _process_cpu(self) -> tuple[float]:
        return (self._cpu.of(time.process_time()),)

    def _rss(self) -> tuple[float]:
        return (int(_content("/proc/self/statm").split(None, 2)[1]) * self._page,)

    def _host_cpu(self) -> tuple[float]:
        user, nice, system, idle, iowait, irq, softirq, steal = map(
            int, _content("/proc/stat").split(None, 9)[1:9]
        )
        total = user + nice + system + idle + iowait + irq + softirq + steal
        return (self._busy.of(total, idle + iowait),)

    def _io(self) -> tuple[float, float]:
        counts = dict(line.split(b": ") for line in _content("/proc/self/io").splitlines())
        return (
            self._read.of(int(counts[b"read_bytes"])),
            self._write.of(int(counts[b"write_bytes"])),
        )


def _content(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 2048)
    finally:
        os.close(file)


class BusyShare:
    """The share of all processors' time that was not idle, in percent."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None

    def of(self, total: float, idle: float) -> float:
        """NaN at the first call, and when the clock of the kernel has not moved."""
        before, self._before = self._before, (total, idle)
        if before is None or total <= before[0]:
            return NAN
        busy = 1 - (idle - before[1]) / (total - before[0])
        return 100 * min(max(busy, 0.0), 1.0)


# --- psutil ---


def psutil_probes() -> list[Probe]:
    """The memory of this process's children, and what the machine has left. To find the children
    psutil scans all processes, about 30 µs each. Empty where psutil is not installed."""
    try:
        import psutil
    except ImportError:
        return []
    parent = psutil.Process()
    children = Figure("children", "rss_bytes", "bytes"), Figure("children", "count", "processes")
    available = Seldom(lambda: (psutil.virtual_memory().available,), 1).read
    return [
        Probe(children, Seldom(lambda: memory_of(parent.children(recursive=True)), 2).read),
        Probe.of("host", "bytes", available, "available_bytes"),
    ]


def memory_of(children: Sequence[psutil.Process]) -> tuple[float, float]:
    """The sum of their RSS, and how many have any: what ended and waits for its parent has none."""
    import psutil

    sizes = []
    for child in children:
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            sizes.append(int(child.memory_info().rss))
    return sum(sizes), sum(size > 0 for size in sizes)
