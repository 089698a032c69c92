"""What people see on a terminal while a command works: a progress bar, by rich.

rich is imported when a bar is shown, and only then. It keeps to NO_COLOR and TERM by itself.
"""

from __future__ import annotations

import contextlib
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    from rich.progress import Progress, TaskID

__all__ = ["ProgressBar", "progress_bar"]

REFRESH_S = 0.1


class ProgressBar:
    """How much of how much is done; does nothing where no bar is shown. Thread-safe."""

    def __init__(self, progress: Progress | None = None, task: TaskID | None = None) -> None:
        self._progress = progress
        self._task = task
        self._drawn_at = 0.0

    @property
    def is_shown(self) -> bool:
        return self._progress is not None

    def advance(self, count: int = 1) -> None:
        """So many more."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, count)
            self._draw(self._progress)

    def show(self, done: int, total: int) -> None:
        """So many of `total`, 0 for a total that is not known."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total or None)
            self._draw(self._progress)

    def _draw(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._drawn_at >= REFRESH_S:
            self._drawn_at = now
            progress.refresh()


@contextlib.contextmanager
def progress_bar(
    description: str,
    total: int | None = None,
    unit: Literal["bytes", "files"] = "bytes",
    *,
    wanted: bool | None = None,
    stays: bool = True,
) -> Iterator[ProgressBar]:
    """A bar on standard error while the block runs.

    total: in `unit`, None when it is not known yet. wanted: None is True where standard error is a
    terminal. stays: the bar stands there when it is done.

    It is drawn when it is moved, by the thread that moves it: the block may start processes.
    """
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield ProgressBar()
        return
    from rich import progress as rich_progress
    from rich.console import Console

    amount = [rich_progress.DownloadColumn(), rich_progress.TransferSpeedColumn()]
    columns = (
        rich_progress.TextColumn("{task.description}:", markup=False),
        rich_progress.TaskProgressColumn(),
        rich_progress.BarColumn(),
        *(amount if unit == "bytes" else [rich_progress.MofNCompleteColumn()]),
    )
    console = Console(stderr=True, force_terminal=True)
    with rich_progress.Progress(
        *columns, console=console, auto_refresh=False, transient=not stays
    ) as shown:
        yield ProgressBar(shown, shown.add_task(description, total=total))
