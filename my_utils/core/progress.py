"""The progress of work on standard error: a bar on a terminal, else a line now and then.

>>> with Progress("report", 64, "ranks", quiet=True) as progress:
...     progress.phase("reading")
...     progress.advance()
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time

from .terminal import wants_color
from .units import bytes_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rich.progress import Progress as RichProgress


LINE_EVERY_S = 3.0
TICK_S = 0.2
REFRESH_S = 0.1  # of the bar


class Progress:
    """Shows what a block of work has done; a context manager.

    name: of the command. total: in `unit`, None when it is not known. unit: "bytes", which are
    shown as MiB, or a word such as "files". quiet: nothing is shown. no_color: no colours.
    ticking: a thread shows the time that passes, for work that cannot report in between. Without it
    no thread is started, so that the block may fork. bar: even if standard error is no terminal.
    stays: the bar is there when the work is done. lines: else a line now and then.

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
        bar: bool = False,
        stays: bool = False,
        lines: bool = True,
    ) -> None:
        self.name = name
        self.unit = unit
        self.is_shown = not quiet
        self._total = total or 0
        self._done = 0
        self._phase = ""
        self._no_color = no_color
        self._ticking = ticking
        self._wants_bar = bar
        self._stays = stays
        self._lines = lines
        self._lock = threading.Lock()
        self._bar: RichProgress | None = None  # with one task
        self._stack = contextlib.ExitStack()
        self._began = self._shown_at = time.monotonic()

    def __repr__(self) -> str:
        return f"Progress({self._text()!r})"

    def __enter__(self) -> Self:
        self._began = self._shown_at = time.monotonic()
        if not self.is_shown:
            return self
        if self._wants_bar or sys.stderr.isatty():
            bar = _bar(self.unit, wants_color(sys.stderr, self._no_color), self._stays)
            bar.add_task(self.name, total=self._total or None)
            self._bar = self._stack.enter_context(bar)
            self._shown_at = 0.0  # it moves at once
        if self._ticking:
            ended = threading.Event()
            thread = threading.Thread(target=self._tick_until, args=(ended,), daemon=True)
            thread.start()
            self._stack.callback(thread.join)
            self._stack.callback(ended.set)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            if self._bar is not None:
                self._draw(self._bar)
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
            is_due = now - self._shown_at >= (LINE_EVERY_S if self._bar is None else REFRESH_S)
            if is_due:
                self._shown_at = now
            if self._bar is not None:
                if is_due:
                    self._draw(self._bar)
                return
        if is_due and self._lines:
            with contextlib.suppress(OSError, ValueError):  # standard error is closed
                print(f"{self._text()}, {now - self._began:.0f} s", file=sys.stderr, flush=True)

    def _tick_until(self, ended: threading.Event) -> None:
        while not ended.wait(TICK_S):
            self.tick()

    def print(self, text: str) -> None:
        """Prints a result to standard output, with the bar out of its way."""
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
            print(text, flush=True)
            if self._bar is not None:
                self._bar.start()

    def _draw(self, bar: RichProgress) -> None:
        bar.update(
            bar.task_ids[0],
            completed=self._done,
            total=self._total or None,
            description=f"{self.name}: {self._phase}" if self._phase else self.name,
            refresh=True,
        )

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


def _bar(unit: str, color: bool, stays: bool) -> RichProgress:
    """A bar that is drawn by the thread that moves it: the work may start processes."""
    from rich import progress as rich
    from rich.console import Console

    amounts: dict[str, list[rich.ProgressColumn]] = {
        "": [rich.TimeElapsedColumn()],
        "bytes": [rich.DownloadColumn(), rich.TransferSpeedColumn()],
    }
    return rich.Progress(
        rich.TextColumn("{task.description}:", markup=False),
        rich.TaskProgressColumn(),
        rich.BarColumn(),
        *amounts.get(unit, [rich.MofNCompleteColumn()]),
        console=Console(stderr=True, force_terminal=True, no_color=not color),
        auto_refresh=False,
        transient=not stays,
    )
