"""What people see on a terminal while a command works: a progress bar, by rich.

rich is imported when a bar is shown, and only then. It keeps to NO_COLOR and TERM by itself.
"""

from __future__ import annotations

import contextlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, TaskID

__all__ = ["BytesBar", "bytes_bar"]


class BytesBar:
    """How many bytes of how many are done; does nothing where no bar is shown. Thread-safe."""

    def __init__(self, progress: Progress | None = None, task: TaskID | None = None) -> None:
        self._progress = progress
        self._task = task

    @property
    def is_shown(self) -> bool:
        return self._progress is not None

    def advance(self, count: int) -> None:
        """So many more."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, count)

    def show(self, done: int, total: int) -> None:
        """So many of `total`, 0 for a total that is not known."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total or None)


@contextlib.contextmanager
def bytes_bar(
    description: str, total: int | None = None, *, wanted: bool = True, stays: bool = True
) -> Iterator[BytesBar]:
    """A bar on standard error while the block runs, where that is a terminal and it is wanted.

    total: in bytes, None when it is not known yet. stays: the bar stands there when it is done.
    """
    if not wanted or not sys.stderr.isatty():
        yield BytesBar()
        return
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("{task.description}:", markup=False),
        rich_progress.TaskProgressColumn(),
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(),
        rich_progress.TransferSpeedColumn(),
    )
    console = Console(stderr=True)
    with rich_progress.Progress(*columns, console=console, transient=not stays) as shown:
        yield BytesBar(shown, shown.add_task(description, total=total))
