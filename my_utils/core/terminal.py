"""Output on a terminal with rich: a progress bar while a command works, and tables.

rich is imported when there is a terminal to show something on, and only then. It keeps to NO_COLOR
and TERM by itself. Commands show their work by `progress`, which has lines if there is no
terminal; what the library returns is made by `tables`.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time

from . import tables
from .printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from typing import TextIO

    from rich.progress import Progress, TaskID


REFRESH_S = 0.1
COLUMNS_UNKNOWN = 80  # if standard output is not a terminal
_WIDE = 100_000  # characters: a terminal folds long lines, or whoever draws them cuts them


def wants_color(stream: TextIO, no_color: bool = False) -> bool:
    """Whether to write colours to the stream: only to a terminal that has them, and not where
    `no_color`, or NO_COLOR in the environment, says no."""
    if no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def terminal_columns() -> int:
    """How wide the terminal is, as `shutil.get_terminal_size` finds it. argparse makes a formatter
    for each option, and shutil brings every kind of compression."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    try:
        columns = os.get_terminal_size(sys.__stdout__.fileno()).columns  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):
        columns = 0
    return columns or COLUMNS_UNKNOWN


class ProgressBar:
    """How much of how much is done; does nothing if no bar is shown. Thread-safe."""

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

    def show(self, done: int, total: int, description: str | None = None) -> None:
        """So many of `total`, 0 for a total that is not known. description: instead of the old."""
        if self._progress is not None and self._task is not None:
            self._progress.update(
                self._task, completed=done, total=total or None, description=description
            )
            self._draw(self._progress)

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Takes the bar away for the time of the block, which prints."""
        if self._progress is None:
            yield
            return
        self._progress.stop()
        try:
            yield
        finally:
            self._progress.start()

    def _draw(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._drawn_at >= REFRESH_S:
            self._drawn_at = now
            progress.refresh()


@contextlib.contextmanager
def progress_bar(
    description: str,
    total: int | None = None,
    unit: str = "bytes",
    *,
    wanted: bool | None = None,
    stays: bool = True,
    color: bool | None = None,
) -> Iterator[ProgressBar]:
    """A bar on standard error while the block runs.

    total: in `unit`, None when it is not known yet. wanted: None is True where standard error is a
    terminal. stays: the bar is there when it is done. color: None is as `wants_color` says.

    It is drawn when it is moved, by the thread that moves it: the block may start processes.
    """
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield ProgressBar()
        return
    from rich import progress as rich_progress
    from rich.console import Console

    if color is None:
        color = wants_color(sys.stderr)
    amounts: dict[str, list[rich_progress.ProgressColumn]] = {
        "": [rich_progress.TimeElapsedColumn()],
        "bytes": [rich_progress.DownloadColumn(), rich_progress.TransferSpeedColumn()],
    }
    columns = (
        rich_progress.TextColumn("{task.description}:", markup=False),
        rich_progress.TaskProgressColumn(),
        rich_progress.BarColumn(),
        *amounts.get(unit, [rich_progress.MofNCompleteColumn()]),
    )
    console = Console(stderr=True, force_terminal=True, no_color=not color)
    with rich_progress.Progress(
        *columns, console=console, auto_refresh=False, transient=not stays
    ) as shown:
        yield ProgressBar(shown, shown.add_task(description, total=total))


def table_lines(
    rows: Sequence[Sequence[str]], left: int | Collection[int] = 0, *, head: str = "bold"
) -> list[str]:
    """The lines of `tables.table_lines`, laid out for a terminal where standard output is one.

    There columns are as wide as their texts look, the first row has the style `head` of rich, and
    control characters are shown as escapes, so that names do not steer the terminal.
    """
    if not sys.stdout.isatty():
        return tables.table_lines(rows, left)
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    starts_left = range(left) if isinstance(left, int) else left
    table = Table(box=None, pad_edge=False, padding=(0, len(tables.GAP), 0, 0), header_style=head)
    cells = [[Text(printable(cell)) for cell in row] for row in rows]
    for column, title in enumerate(cells[0]):
        table.add_column(title, justify="left" if column in starts_left else "right", no_wrap=True)
    for row in cells[1:]:
        table.add_row(*row)
    shown = io.StringIO()
    Console(file=shown, force_terminal=True, width=_WIDE).print(table)
    return [line.rstrip() for line in shown.getvalue().splitlines()]
