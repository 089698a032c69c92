"""The sources of the performance tracker: torch's allocator, NVML, this process, its machine.

A probe reads a few figures at once. The reader leaves out a probe that raised. A figure that is not
known at the moment is NaN.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ...common.warnings import warn_once

NAN = math.nan
KIB = 1024

# A device that has nothing reserved is asked again after so many seconds: a rank sees eight of
# them, and uses one.
_IDLE_S = 1.0


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
    """What torch's allocator holds on each device."""
    return [Probe(_torch_figures(device), TorchMemory(device).read) for device in devices]


def _torch_figures(device: int) -> tuple[Figure, ...]:
    keys = ("allocated_bytes", "reserved_bytes", "allocated_peak_bytes")
    return tuple(Figure(f"gpu{device}", key, "bytes") for key in keys)


class TorchMemory:
    """Allocated and reserved bytes, and the allocator's own high-water mark."""

    def __init__(self, device: int) -> None:
        import torch

        self._cuda = torch.cuda
        self._device = device
        self._again = 0.0

    def read(self) -> tuple[float, float, float]:
        now = time.monotonic()
        if now < self._again:
            return 0.0, 0.0, 0.0
        if not self._cuda.is_initialized():
            return NAN, NAN, NAN
        stats: Any = self._cuda.memory_stats_as_nested_dict(self._device)
        reserved = stats["reserved_bytes"]["all"]["current"] if stats else 0
        if not reserved and not (stats and stats["allocated_bytes"]["all"]["peak"]):
            self._again = now + _IDLE_S
            return 0.0, 0.0, 0.0
        allocated = stats["allocated_bytes"]["all"]
        return float(allocated["current"]), float(reserved), float(allocated["peak"])


# --- NVML ---


class Nvml:
    """NVML by nvidia-ml-py, opened for the life of this object.

    ImportError without the package; what NVML itself raises (`pynvml.NVMLError`) without a driver.
    """

    # A read of the PCIe throughput takes 20 ms by itself, so that they come one at a time.
    PCIE_EVERY_S = 0.25

    def __init__(self) -> None:
        import pynvml

        self._nvml: Any = pynvml
        pynvml.nvmlInit()
        try:
            self._devices = list(self._visible(int(pynvml.nvmlDeviceGetCount())))
        except Exception:
            self.close()
            raise
        self._pcie: list[PcieRate] = []
        self._next_pcie = 0
        self._pcie_at = 0.0

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
        one: tuple[tuple[str, str, Callable[[], float]], ...] = (
            ("memory_used_bytes", "bytes", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
            ("power_w", "W", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            ("temperature_c", "°C",
             lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            ("sm_clock_mhz", "MHz",
             lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            ("memory_clock_mhz", "MHz",
             lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        )  # fmt: skip
        yield self._utilization(group, handle)
        for key, unit, read in one:
            yield Probe((Figure(group, key, unit),), lambda read=read: (read(),))  # type: ignore[misc]
        yield from self._throughput(group, handle)

    def _utilization(self, group: str, handle: Any) -> Probe:
        def read() -> tuple[float, float]:
            rates = self._nvml.nvmlDeviceGetUtilizationRates(handle)
            return rates.gpu, rates.memory

        keys = ("utilization_percent", "memory_utilization_percent")
        return Probe(tuple(Figure(group, key, "%") for key in keys), read)

    def _throughput(self, group: str, handle: Any) -> Iterator[Probe]:
        for key, direction in (
            ("pcie_rx_bytes_per_s", self._nvml.NVML_PCIE_UTIL_RX_BYTES),
            ("pcie_tx_bytes_per_s", self._nvml.NVML_PCIE_UTIL_TX_BYTES),
        ):
            rate = PcieRate(self, handle, direction)
            self._pcie.append(rate)
            yield Probe((Figure(group, key, "bytes/s"),), rate.read)

    def turn_of(self, rate: PcieRate) -> bool:
        """Whether it is this one's turn to be read."""
        now = time.monotonic()
        if now < self._pcie_at or self._pcie[self._next_pcie % len(self._pcie)] is not rate:
            return False
        self._next_pcie += 1
        self._pcie_at = now + self.PCIE_EVERY_S
        return True

    def no_longer(self, rate: PcieRate) -> None:
        self._pcie.remove(rate)


class PcieRate:
    """The PCIe throughput of a device in one direction; NaN when it is not its turn."""

    def __init__(self, nvml: Nvml, handle: Any, direction: int) -> None:
        self._nvml = nvml
        self._handle = handle
        self._direction = direction

    def read(self) -> tuple[float]:
        nvml = self._nvml
        if not nvml.turn_of(self):
            return (NAN,)
        try:
            return (nvml._nvml.nvmlDeviceGetPcieThroughput(self._handle, self._direction) * KIB,)
        except Exception:
            nvml.no_longer(self)
            raise


# --- this process and its machine ---


HOST_CPU = Figure("host", "cpu_percent", "%")
PROCESS_CPU = Figure("process", "cpu_percent", "%")
RSS = Figure("process", "rss_bytes", "bytes")
IO = (
    Figure("process", "read_bytes_per_s", "bytes/s"),
    Figure("process", "write_bytes_per_s", "bytes/s"),
)


class Host:
    """The process and its machine, from /proc.

    psutil reads the same files and takes five times as long for it, which would be most of what
    the tracker may cost. What costs more, and says little about a tenth of a second, is read once a
    second: the kernel counts busy time in hundredths of a second, and writes a line for each core
    when it is asked.
    """

    RARELY_S = 1.0

    def __init__(self) -> None:
        self._files: list[int] = []
        self._cpu, self._read, self._write = Rate(100.0), Rate(), Rate()
        self._busy = BusyShare()
        self._page = os.sysconf("SC_PAGE_SIZE")

    def probes(self) -> list[Probe]:
        probes = [Probe((PROCESS_CPU,), lambda: (self._cpu.of(time.process_time()),))]
        for figures, path, reader, every_s in (
            ((RSS,), "/proc/self/statm", self._rss, 0.0),
            ((HOST_CPU,), "/proc/stat", self._host_cpu, self.RARELY_S),
            (IO, "/proc/self/io", self._io, self.RARELY_S),
        ):
            probes.append(Probe(figures, self._reading(path, len(figures), reader, every_s)))
        return probes

    def _reading(
        self,
        path: str,
        width: int,
        reader: Callable[[bytes], tuple[float, ...]],
        every_s: float,
    ) -> Callable[[], tuple[float, ...]]:
        unknown = (NAN,) * width
        file = -1
        due = 0.0

        def read() -> tuple[float, ...]:
            nonlocal file, due
            now = time.monotonic()
            if now < due:
                return unknown
            due = now + every_s
            if file < 0:
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._files.append(file)
            return reader(os.pread(file, 2048, 0))

        return read

    def close(self) -> None:
        """Closes the files; nothing is to be read afterwards."""
        while self._files:
            os.close(self._files.pop())

    def _rss(self, content: bytes) -> tuple[float]:
        return (int(content.split(None, 2)[1]) * self._page,)

    def _host_cpu(self, content: bytes) -> tuple[float]:
        user, nice, system, idle, iowait, irq, softirq, steal = map(
            int, content.split(None, 9)[1:9]
        )
        total = user + nice + system + idle + iowait + irq + softirq + steal
        return (self._busy.of(total, idle + iowait),)

    def _io(self, content: bytes) -> tuple[float, float]:
        counts = dict(line.split(b": ") for line in content.splitlines())
        return (
            self._read.of(int(counts[b"read_bytes"])),
            self._write.of(int(counts[b"write_bytes"])),
        )


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
