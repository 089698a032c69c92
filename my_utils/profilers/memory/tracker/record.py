"""The samples of a tracker: in memory for the plot, in its file, and as trace counters."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import math
import os
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .... import _core
from ....core.identity import identity
from ....core.public import public
from ....core.ranks import current_rank
from ....core.tables import cell_text, text_table
from ....core.trusted_open import open_own
from ....core.warnings import warn_once
from ....record.stages.open_stages import OpenThread, Where, where
from .plot import readable
from .series import Series
from .sources import Figure

_logger = logging.getLogger("my_utils")

# Samples are worked on once a second, or when so many are there.
_DIGEST_NS = 10**9
_DIGEST_SAMPLES = 256
# What waits at most for a disk that is full.
PENDING_BYTES = 1 << 20


@public("my_utils.gpu_mem_tracker")
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


class Sample(NamedTuple):
    time_ns: int
    threads: list[OpenThread]
    row: list[float]


class Record:
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
        self._waiting: list[Sample] = []
        self._digest_at_ns = 0  # the first sample is written at once
        self._peaks = [Peak(-math.inf, figure.unit, 0.0, None, "") for figure in figures]
        self._formats = ["%d" if figure.is_whole else "%.2f" for figure in figures]
        self._groups: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        for slot, figure in enumerate(figures if counters else ()):
            self._groups[figure.group].append((figure.key, slot))

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

    def add(self, sample: Sample) -> None:
        with self._lock:
            self._waiting.append(sample)
            if sample.time_ns >= self._digest_at_ns or len(self._waiting) >= _DIGEST_SAMPLES:
                self._digest_at_ns = sample.time_ns + _DIGEST_NS
                self._digest()

    def _digest(self) -> None:
        waiting, self._waiting = self._waiting, []
        logs_counters = bool(self._groups) and identity() is not None
        for sample in waiting:
            place = where(sample.threads)
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

    def _raise_peaks(self, sample: Sample, place: Where) -> None:
        for slot, value in enumerate(sample.row):
            if value > self._peaks[slot].value:
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
            return {figure.name: peak for figure, peak in found if peak.value > -math.inf}

    def count(self) -> int:
        with self._lock:
            return self.samples + len(self._waiting)

    def report(self) -> str:
        peaks = self.peaks()
        with self._lock:
            begin = self.series.begins[0] if self.samples else 0.0
            means = {name: self.series.curve(name).mean for name in peaks}
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
    return f"{seconds}.{rest:09d},{step},{quoted(str(cell_text(place.stage)))},{','.join(texts)}\n"


# --- the file ---


class SampleFile:
    """Rows behind those that are there already: a crash leaves what was sampled so far. Not
    thread-safe.

    Rows are collected until `flush` and go out in one write. Nothing is buffered in a file object,
    so that a forked child has nothing to write.

    A file of that name with the same header continues; one with another header is set aside, as
    `<name>.old1.csv` and so on. While somebody writes it, another process or a tracker of this one,
    the rows go to `<name>.2.csv` and so on; also where the name is a link, a FIFO, or a file of
    another user, with a warning. `path` is the file's. OSError when it cannot be opened. Later
    trouble is one warning.
    """

    def __init__(self, path: Path, header: Sequence[str]) -> None:
        first = (",".join(header) + "\n").encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._file = _opened(path)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, len(first), 0) != first:
            _set_aside(self.path)
            self.drop()
            self.path, self._file = _opened(self.path)
            size = 0
        self._pending = bytearray() if size else bytearray(first)
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            self._pending += b"\n"  # behind a line that a crash cut
        self.lost = 0
        """Rows that did not fit, as the disk was full."""

    def add(self, row: str) -> None:
        """Adds a row, with its line end, to what `flush` writes."""
        if len(self._pending) < PENDING_BYTES:
            self._pending += row.encode("utf-8", "backslashreplace")
        else:
            self.lost += 1

    def flush(self) -> None:
        try:
            while self._pending:
                written = os.write(self._file, self._pending)
                del self._pending[:written]
        except OSError as error:
            warn_once(
                f"tracker_csv:{self.path}",
                f"cannot write samples to {self.path} ({error.strerror}); the tracker goes on",
            )

    def close(self) -> None:
        if self._file >= 0:
            self.flush()
            self.drop()

    def drop(self) -> None:
        """Closes it without writing, as in a forked child."""
        file, self._file = self._file, -1
        if file >= 0:
            with contextlib.suppress(OSError):
                os.close(file)


def quoted(text: str) -> str:
    """Text as a field."""
    if any(letter in text for letter in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _opened(path: Path) -> tuple[Path, int]:
    """The first of `path` and its numbered kin that is ours and that nobody writes, open and
    locked."""
    for number in itertools.count(2):
        file = _own(path)
        if file is not None and _locked(file):
            return path, file
        path = path.with_name(f"{_stem(path)}.{number}{path.suffix}")
    raise AssertionError


def _own(path: Path) -> int | None:
    """None, with a warning, for a file that is not ours: others chose what the rows go into."""
    try:
        return open_own(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
    except PermissionError as error:
        if not os.path.lexists(path):  # the directory refuses
            raise
        warn_once(f"tracker_csv:{path}", f"{path}: {error.strerror}; samples go to another file")
        return None


def _locked(file: int) -> bool:
    """Closes the file that somebody else has locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return False
    except OSError:  # a file system without locks
        pass
    return True


def _stem(path: Path) -> str:
    stem, dot, number = path.stem.rpartition(".")
    return stem if dot and number.isdigit() else path.stem


def _set_aside(path: Path) -> None:
    number = 1
    while (aside := path.with_suffix(f".old{number}{path.suffix}")).exists():
        number += 1
    path.rename(aside)
