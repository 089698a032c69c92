"""Makes text from files and names of files safe for a terminal, a file or a picture.

>>> printable("a\\x1b[2Jb")
'a\\\\x1b[2Jb'
>>> printable("füür")
'füür'
>>> escaped("füür\\udcff.py")
'füür\\\\xff.py'
"""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with control characters, line ends among them, as escapes: names of stages and files
    do not steer the terminal that shows them. Bytes of names that are not UTF-8 are `\\xNN`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in escaped(text))


def printable_lines(text: str) -> str:
    """Like `printable`, for a text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def escaped(text: str) -> str:
    """The text with bytes of a name that are not UTF-8, which Python keeps as lone surrogates, as
    `\\xNN`: it can be encoded."""
    return encoded(text).decode()


def encoded(text: str) -> bytes:
    """As UTF-8, with escapes as `escaped` makes them."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        pass
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a pair, which stands for no byte
        data = text.encode("utf-8", "backslashreplace")
    return data.decode("utf-8", "backslashreplace").encode()
