"""The progress bar of the commands, on standard error; rich is imported where one is shown."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Literal

REFRESH_S = 0.1


@contextlib.contextmanager
def shown_bar(
    title: str, total: int | None, unit: Literal["files", "bytes"]
) -> Iterator[Callable[[int, int | None], None]]:
    """Shows a bar and yields what moves it: called with how much is done, and of how much.

    It is gone when the block ends. No thread draws it, so that the block may start processes.
    """
    from rich import progress as rich
    from rich.console import Console

    amount = rich.DownloadColumn() if unit == "bytes" else rich.MofNCompleteColumn()
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), amount)
    console = Console(stderr=True, force_terminal=True)
    bar = rich.Progress(*columns, console=console, auto_refresh=False, transient=True)
    shown_at = 0.0

    def move(done: int, total: int | None) -> None:
        nonlocal shown_at
        bar.update(task, completed=done, total=total)
        if time.monotonic() - shown_at >= REFRESH_S:
            shown_at = time.monotonic()
            bar.refresh()

    with bar:
        task = bar.add_task(title, total=total)
        bar.refresh()
        yield move
        bar.refresh()
