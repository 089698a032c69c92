"""Has torch write its flight recorder into the run's folder once a rank ends no step.

torch itself does so when a collective times out, which takes ten minutes by default, and ends the
process right after. Here it is done before, once in each standstill: `flight_recorder/dump_<rank>`,
a pickle as torch writes it, for `my_utils why` and `my_utils live --flight-recorder`. It goes when
the steps go on.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ...core.files import atomic_write
from ...core.run_files.files import FLIGHTS_FOLDER
from ...core.warnings import warn_once
from .fsdp_backward import read_recorder

TIMES_MEAN = 5.0  # steps, that a standstill takes at least
LOOKS = 8  # at the steps in the shortest standstill


class StandstillWatch:
    """A thread that looks at the number of steps a few times in each `after_s`. Ends with the
    process, or by `stop`, which may be called more than once."""

    def __init__(self, steps: Callable[[], int], log_dir: Path, rank: int, after_s: float) -> None:
        self._steps = steps
        self._path = log_dir / FLIGHTS_FOLDER / f"dump_{rank}"
        self._after_s = after_s
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="my_utils standstill", daemon=True).start()

    def stop(self) -> None:
        """Takes no dump from here on."""
        self._ended.set()

    def _watch(self) -> None:
        began_s = moved_s = time.monotonic()
        steps, is_written = self._steps(), False
        first = steps
        while not self._ended.wait(self._after_s / LOOKS):
            now_s, now = time.monotonic(), self._steps()
            if now != steps:
                if is_written:
                    self._remove()
                steps, moved_s, is_written = now, now_s, False
            mean_s = (moved_s - began_s) / max(steps - first, 1)
            if not is_written and now_s - moved_s >= max(self._after_s, TIMES_MEAN * mean_s):
                is_written = True
                self._write()

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _write(self) -> None:
        """The file has the time at which the recorder was asked: stacks may take seconds."""
        asked_s = time.time()
        dump = read_recorder(with_stacks=True)
        if dump is None:
            return
        try:
            os.makedirs(self._path.parent, exist_ok=True)
            with atomic_write(self._path) as file:
                file.write(dump)
            os.utime(self._path, (asked_s, asked_s))
        except OSError as error:
            warn_once(
                "standstill",
                f"{self._path} cannot be written ({error.strerror}): `my_utils why` will not know "
                "in which collective this rank stands",
            )
