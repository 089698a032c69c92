"""Tables of results: atomic files, plain text.

>>> print(text_table(["kernel", "ms"], [["gemm", "1.50"], ["softmax", "12.25"]], left=1))
kernel      ms
gemm      1.50
softmax  12.25
"""

from __future__ import annotations

import os

from .extras import require
from .outputs import open_output
from .printable import encoded, printable_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import pandas
    from matplotlib.figure import Figure

GAP = "  "
FORMULA_BEGINS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def cell_text(value: object) -> object:
    """A cell of a CSV that a spreadsheet does not execute. Names come from files: one that begins
    as a formula does gets an apostrophe in front, as OWASP advises. Numbers stay.

    >>> [cell_text(one) for one in ("=1+1", "forward", "-0.5", -0.5)]
    ["'=1+1", 'forward', '-0.5', -0.5]
    """
    if not isinstance(value, str) or not value.startswith(FORMULA_BEGINS):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def csv_table(table: pandas.DataFrame) -> pandas.DataFrame:
    """A copy with such cells."""
    kinds = table.dtypes
    plain = table.copy()
    for name in plain.columns:
        if kinds[name].kind not in "biufc":
            plain[name] = plain[name].map(cell_text)
    return plain.rename(columns=cell_text)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with open_output(path) as file:
        file.write(encoded(text))


def write_figure(path: str | os.PathLike[str], draw: Callable[[Figure], None]) -> None:
    """A PNG of what `draw` puts into an empty figure; the state of pyplot is left alone."""
    figure = drawn(draw)
    with open_output(path) as file:
        figure.savefig(file, format="png")


def drawn(draw: Callable[[Figure], None]) -> Figure:
    """The figure itself."""
    require("matplotlib", "a plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    show_as_is(figure)
    return figure


def show_as_is(figure: Figure) -> None:
    """The texts of a figure have names of users in them: dollars are not formulas, and what cannot
    be printed is shown as escapes. With control characters an SVG is not XML, and matplotlib warns
    with them on the terminal."""
    from matplotlib.text import Text
    from matplotlib.ticker import FixedLocator

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            # Texts of ticks are set again when they are drawn.
            if isinstance(axis.get_major_locator(), FixedLocator):
                names = [label.get_text() for label in axis.get_ticklabels()]
                axis.set_ticklabels(list(map(printable_lines, names)))
    for text in figure.findobj(Text):
        if isinstance(text, Text):
            text.set_text(printable_lines(text.get_text()))
            if "$" in text.get_text():
                text.set_parse_math(False)


def text_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: int | Collection[int] = 0
) -> str:
    """Columns side by side; `left`, the first so many or those, start at the left, the others end
    right."""
    return "\n".join(table_lines([header, *rows], left))


def table_lines(rows: Sequence[Sequence[str]], left: int | Collection[int] = 0) -> list[str]:
    """The same as a string a row, the header one of them; cells may hold line ends.

    >>> table_lines([["step", "stage"], ["7", "forward"]], left={1})
    ['step  stage', '   7  forward']
    """
    starts_left = range(left) if isinstance(left, int) else left
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        GAP.join(
            cell.ljust(width) if column in starts_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
