"""HTML for notebooks: `_repr_html_` of reports, verdicts and tables.

Jupyter takes the HTML as it is, so all texts are escaped here. Nothing has a script, and colours
are those of the notebook's theme, except for the line beside a text.

>>> html_table(["stage"], [["<b>"]])
'<table><thead><tr><th>stage</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

SCREEN_LINES = 24
ROWS_SHOWN = 60


def html_text(lines: Sequence[str], colour: str = "") -> str:
    """Lines in a fixed font. colour: of a line on their left, "#rrggbb"."""
    border = f"border-left:4px solid {colour};padding-left:8px;" if colour else ""
    return f'<pre style="{border}margin:4px 0">{escape(chr(10).join(lines))}</pre>'


def html_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)
) -> str:
    """A table; the columns in `left` begin at the left, as their heads do. Of many rows the first
    60 are in it, and a line says how many more there are."""
    styles = ["" if at in left else ' style="text-align:right"' for at in range(len(header))]
    head = "".join(
        f"<th{style}>{escape(cell)}</th>" for style, cell in zip(styles, header, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{style}>{escape(cell)}</td>" for style, cell in zip(styles, row, strict=True)
        )
        + "</tr>"
        for row in rows[:ROWS_SHOWN]
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    more = len(rows) - ROWS_SHOWN
    return f"{table}<p>and {more} more rows</p>" if more > 0 else table


def one_screen(lines: Sequence[str]) -> str:
    """The first 24 lines; the last of them says how many more there are.

    >>> one_screen([str(number) for number in range(30)]).splitlines()[-1]
    '... 7 more lines'
    """
    if len(lines) <= SCREEN_LINES:
        return "\n".join(lines)
    shown = [*lines[: SCREEN_LINES - 1], f"... {len(lines) - SCREEN_LINES + 1} more lines"]
    return "\n".join(shown)
