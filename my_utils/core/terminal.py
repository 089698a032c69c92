"""What a terminal is like, and tables on it with rich, which is imported only if there is one.

What the library returns is made by `tables`, and commands show their work by `progress`.
"""

from __future__ import annotations

import io
import os
import sys

from . import tables
from .printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import TextIO


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
