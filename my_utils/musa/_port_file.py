"""Reads and rewrites one file of a port in pieces, in its original encoding.

However large a file is, a few pieces of it are in memory at a time.
"""

from __future__ import annotations

import codecs
import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ._port_context import needs_context
from ._port_text import Counts, Rules, TextPort

# The longer marks first: that of UTF-32-LE begins with that of UTF-16-LE.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
LOOKED_AT = 8192  # bytes in which a NUL makes a file a binary one
PIECE = 1 << 20  # bytes that are rewritten at a time
HIP_PIECE = 32 << 20  # hipify looks at a whole file
LONGEST = 16 << 20  # of a line that is not cut
# How far back from its end a piece is searched for a line that begins at the margin.
MARGIN = 1 << 16
AT_MARGIN = re.compile(rb"\n(?=[A-Za-z_/#])")


class Unreadable(OSError):
    """The file of the user's cannot be read."""


def ported_pieces(path: Path, name: str, rules: Rules | None, counts: Counts) -> Iterator[bytes]:
    """The bytes of a file afterwards, in order; `counts` is full when they have been taken.

    Parameters:
        name: its path from the root of the port.
        rules: None for a file that is copied.

    Raises Unreadable.
    """
    try:
        with open(path, "rb") as file:
            yield from _pieces(file, name, rules, counts)
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}") from error


def _pieces(file: BinaryIO, name: str, rules: Rules | None, counts: Counts) -> Iterator[bytes]:
    encoding, mark = _encoding(file)
    counts.is_binary = rules is not None and _is_binary(file, encoding, mark)
    if rules is None or counts.is_binary:
        file.seek(0)
        while piece := file.read(PIECE):
            yield piece
        return
    yield mark
    for _, new in _texts_of_both(file, name, rules, counts, encoding, mark):
        yield new.decode().encode(encoding) if encoding else new


def _texts_of_both(
    file: BinaryIO, name: str, rules: Rules, counts: Counts, encoding: str, mark: bytes
) -> Iterator[tuple[bytes, bytes]]:
    """Each piece of a text, and what becomes of it."""
    size = HIP_PIECE if rules.hipify is not None else PIECE
    has_context = needs_context(_texts(file, encoding, mark, size))
    port = TextPort(rules, name, counts, has_context)
    for text in _texts(file, encoding, mark, size):
        yield text, port.ported(text)


def _both(file: BinaryIO, name: str, rules: Rules) -> Iterator[tuple[bytes, bytes]]:
    """The same for a diff: nothing for a binary file."""
    encoding, mark = _encoding(file)
    if not _is_binary(file, encoding, mark):
        yield from _texts_of_both(file, name, rules, Counts(), encoding, mark)


def _encoding(file: BinaryIO) -> tuple[str, bytes]:
    """The encoding of a file that begins with a mark, and the mark; empty ones for others."""
    file.seek(0)
    start = file.read(4)
    for mark, encoding in MARKS:
        if start.startswith(mark):
            return encoding, mark
    return "", b""


def _is_binary(file: BinaryIO, encoding: str, mark: bytes) -> bool:
    if not encoding:
        file.seek(0)
        return b"\0" in file.read(LOOKED_AT)
    try:
        for _ in _texts(file, encoding, mark, PIECE):
            pass
    except UnicodeError:
        return True
    return False


def _texts(file: BinaryIO, encoding: str, mark: bytes, size: int) -> Iterator[bytes]:
    """The text after the mark, as UTF-8 or as it is, cut where no name and no statement is."""
    file.seek(len(mark))
    pending = b""
    for block in _blocks(file, encoding, size):
        cut = _cut(pending) if pending and block else 0
        if cut:
            yield pending[:cut]
        pending = pending[cut:] + block
    if pending:
        yield pending


def _blocks(file: BinaryIO, encoding: str, size: int) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)() if encoding else None
    while block := file.read(size):
        yield decoder.decode(block).encode() if decoder is not None else block
    if decoder is not None:
        yield decoder.decode(b"", final=True).encode()


def _cut(data: bytes) -> int:
    """Where the last line at the margin begins, else the last line, else the last word."""
    found = 0
    for match in AT_MARGIN.finditer(data, max(0, len(data) - MARGIN)):
        found = match.end()
    if found:
        return found
    if len(data) < PIECE:
        return 0
    for mark in (b"\n", b";", b" "):
        place = data.rfind(mark)
        if place >= 0:
            return place + 1
    return len(data) if len(data) > LONGEST else 0


# --- diffs ---


def make_diffs(path: Path, name: str, rules: Rules, old_name: str, new_name: str) -> Iterator[str]:
    """A unified diff that `patch` takes, of one piece of the file after the other.

    Nothing for a file that stays, or cannot be read, which a run says.
    """
    old_lines = new_lines = 0
    has_head = False
    try:
        with open(path, "rb") as file:
            for old, new in _both(file, name, rules):
                if old != new:
                    diff = make_diff(old, new, old_name, new_name)
                    start = diff.find("@@")
                    yield ("" if has_head else diff[:start]) + _moved(
                        diff[start:], old_lines, new_lines
                    )
                    has_head = True
                old_lines += old.count(b"\n")
                new_lines += new.count(b"\n")
    except OSError:
        return


HUNK = re.compile(r"^@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@", re.MULTILINE)


def _moved(hunks: str, old_lines: int, new_lines: int) -> str:
    def moved(match: re.Match[str]) -> str:
        old, new = int(match[1]) + old_lines, int(match[3]) + new_lines
        return f"@@ -{old}{match[2] or ''} +{new}{match[4] or ''} @@"

    return HUNK.sub(moved, hunks)


def make_diff(old: bytes, new: bytes, old_name: str, new_name: str) -> str:
    """A unified diff that `patch` takes, "" for none. Texts are UTF-8, or nearly so."""
    if old == new:
        return ""
    lines = difflib.unified_diff(_lines(old), _lines(new), old_name, new_name)
    return "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines
    )


def _lines(text: bytes) -> list[str]:
    """As a diff wants them: only \\n ends a line, and is part of it. What is not UTF-8 becomes a
    replacement character."""
    return re.findall(r"[^\n]*\n|[^\n]+", text.decode("utf-8-sig", "replace"))
