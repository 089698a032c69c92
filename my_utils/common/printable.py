"""Text out of files, before a terminal gets it.

>>> printable("a\\x1b[2Jb")
'a\\\\x1b[2Jb'
>>> printable("füür")
'füür'
"""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    """The text with control characters, line ends among them, as escapes: names of stages and files
    do not steer the terminal that shows them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
