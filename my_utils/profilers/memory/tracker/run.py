"""The thread that samples, from one start of a tracker to its stop."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence

from .... import _core
from ....core.process_end import join_within
from .record import Record, Sample
from .sources import Figure, Nvml, Probe

_logger = logging.getLogger("my_utils")

_JOIN_S = 2.0  # how long `stop_monitoring` waits for a read that hangs in the driver


class Run:
    """The thread of one start. At its end it closes `nvml`, which some probes read."""

    def __init__(
        self, record: Record, probes: Sequence[Probe], nvml: Nvml | None, interval: float
    ) -> None:
        self._reader = Reader(record.figures, probes)
        self._record = record
        self._nvml = nvml
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
                values = self._reader.read()
                if not self._given_up:
                    self._record.add(Sample(time.time_ns(), _core.open_stages(), values))
                if last:
                    break
                late = time.monotonic() - due
                due += self._interval * max(1, math.ceil(late / self._interval))
                self._stop.wait(due - time.monotonic())
        except Exception:
            _logger.exception("the performance tracker stopped sampling")
        self._record.cpu_s += time.thread_time()
        self._close_nvml()

    def _close_nvml(self) -> None:
        if self._nvml is not None:
            self._nvml.close()

    def start(self) -> bool:
        """Opens the file and starts the thread; False, with a warning, when there can be none."""
        self._record.open()
        try:
            self._thread.start()
            return True
        except RuntimeError as error:  # too many threads, or the interpreter ends
            _logger.warning("the performance tracker cannot run: %s", error)
            self._record.close()
            self._close_nvml()
            return False

    def stop(self) -> None:
        """Lets the thread take its last sample; does not wait for one that hangs."""
        self._stop.set()
        if not join_within(self._thread, _JOIN_S):
            self._given_up = True
            _logger.warning(
                "the performance tracker waits for a read of its sources, which hangs; the "
                "samples before it are kept"
            )
        self._record.close()


class Reader:
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
