"""The progress of a command on standard error: a bar on a terminal, else a line now and then.

>>> with Progress("report", 64, "ranks", quiet=True) as progress:
...     progress.phase("reading")
...     progress.advance()
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time

from .terminal import ProgressBar, progress_bar, wants_color
from .units import bytes_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


LINE_EVERY_S = 3.0
TICK_S = 0.2


class Progress:
    """Shows what a block of work has done; a context manager.

    name: of the command. total: in `unit`, None when it is not known. unit: "bytes", which are
    shown as MiB, or a word such as "files". quiet: nothing is shown. no_color: no colours.
    ticking: a thread shows the time that passes, for work that cannot report in between. Without it
    no thread is started, so that the block may fork.

    On a terminal there is a bar, which disappears at the end. Elsewhere there is a line after 3
    seconds, and one every 3 seconds from then on, so that quick work prints nothing. Standard
    output is never used. Thread-safe.
    """

    def __init__(
        self,
        name: str,
        total: int | None = None,
        unit: str = "",
        *,
        quiet: bool = False,
        no_color: bool = False,
        ticking: bool = False,
    ) -> None:
        self.name = name
        self.unit = unit
        self.is_shown = not quiet
        self._total = total or 0
        self._done = 0
        self._phase = ""
        self._no_color = no_color
        self._ticking = ticking
        self._lock = threading.Lock()
        self._bar: ProgressBar | None = None
        self._stack = contextlib.ExitStack()
        self._began = self._said = time.monotonic()

    def __repr__(self) -> str:
        return f"Progress({self._text()!r})"

    def __enter__(self) -> Self:
        self._began = self._said = time.monotonic()
        if not self.is_shown:
            return self
        if sys.stderr.isatty():
            self._bar = self._stack.enter_context(
                progress_bar(
                    self.name, self._total or None, self.unit, wanted=True, stays=False,
                    color=wants_color(sys.stderr, self._no_color),
                )
            )  # fmt: skip
        if self._ticking:
            self._stack.callback(_Ticker(self).end)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()
        self._bar = None

    def phase(self, text: str, total: int | None = None, unit: str | None = None) -> None:
        """What is done from now on; counting begins anew."""
        with self._lock:
            self._phase, self._done, self._total = text, 0, total or 0
            self.unit = self.unit if unit is None else unit
        self.tick()

    def advance(self, count: int = 1) -> None:
        """So many more."""
        with self._lock:
            self._done += count
        self.tick()

    def show(self, done: int, total: int) -> None:
        """So many of `total`, 0 for a total that is not known."""
        with self._lock:
            self._done, self._total = done, total
        self.tick()

    def tick(self) -> None:
        """Shows the time that has passed; cheap; call it from a loop that waits."""
        if not self.is_shown:
            return
        now = time.monotonic()
        with self._lock:
            if self._bar is not None:
                title = f"{self.name}: {self._phase}" if self._phase else self.name
                self._bar.show(self._done, self._total, title)
                return
            is_due = now - self._said >= LINE_EVERY_S
            if is_due:
                self._said = now
        if is_due:
            with contextlib.suppress(OSError, ValueError):  # standard error is closed
                print(f"{self._text()}, {now - self._began:.0f} s", file=sys.stderr, flush=True)

    def print(self, text: str) -> None:
        """Prints a result to standard output, with the bar out of its way."""
        with self._lock:
            if self._bar is None:
                print(text, flush=True)
                return
            with self._bar.hidden():
                print(text, flush=True)

    def _text(self) -> str:
        parts = [self._phase] if self._phase else []
        if self._done or self._total:
            parts.append(self._amount())
        return f"{self.name}: {', '.join(parts) or 'working'}"

    def _amount(self) -> str:
        done, total, unit = str(self._done), str(self._total), self.unit
        if unit == "bytes":
            done, total, unit = bytes_text(self._done), bytes_text(self._total), ""
        if not self._total:
            return f"{done} {unit}".rstrip()
        share = min(100 * self._done // self._total, 100)
        return f"{' '.join(filter(None, [done, 'of', total, unit]))} ({share} %)"


class _Ticker:
    """A thread that ticks until `end`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(TICK_S):
            self._progress.tick()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
