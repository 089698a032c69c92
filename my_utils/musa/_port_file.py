"""One file of a port: its new bytes, in the encoding that it had.

>>> from my_utils import _core
>>> rules = _core.Replacer((((("cudaFree".encode(), b"musaFree"), (b"cuda", None)), True),))
>>> ported = port_bytes("cudaFree(p); cudaPeek();\\r\\n".encode("utf-16"), rules)
>>> ported.data.decode("utf-16"), ported.replaced, ported.unmapped
('musaFree(p); cudaPeek();\\r\\n', 1, {'cudaPeek': (1, 1)})
"""

from __future__ import annotations

import codecs
import difflib
import re
from dataclasses import dataclass, field

from .. import _core

# The longer marks first: that of UTF-32-LE begins with that of UTF-16-LE.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
LOOKED_AT = 8192  # bytes in which a NUL makes a file a binary one


@dataclass
class Ported:
    """What became of one file; the data is as it was where nothing was replaced."""

    data: bytes
    replaced: int = 0
    is_binary: bool = False
    unmapped: dict[str, tuple[int, int]] = field(default_factory=dict)  # how often, first line


def port_bytes(data: bytes, replacer: _core.Replacer) -> Ported:
    """The file with all names replaced. Binary files stay as they are."""
    for mark, encoding in MARKS:
        if data.startswith(mark):
            return _port_wide(data, mark, encoding, replacer)
    if b"\0" in data[:LOOKED_AT]:
        return Ported(data, is_binary=True)
    return _port_text(data, replacer)


def _port_wide(data: bytes, mark: bytes, encoding: str, replacer: _core.Replacer) -> Ported:
    try:
        text = data[len(mark) :].decode(encoding)
        ported = _port_text(text.encode(), replacer)
    except UnicodeError:
        return Ported(data, is_binary=True)
    if ported.replaced:
        ported.data = mark + ported.data.decode().encode(encoding)
    else:
        ported.data = data
    return ported


def _port_text(data: bytes, replacer: _core.Replacer) -> Ported:
    text, count, unmapped = replacer.replace(data)
    return Ported(data if text is None else text, count, unmapped=unmapped)


def diff_of(old: bytes, new: bytes, old_name: str, new_name: str) -> str:
    """A unified diff that `patch` takes, "" for none."""
    if old == new:
        return ""
    lines = difflib.unified_diff(_lines(_text_of(old)), _lines(_text_of(new)), old_name, new_name)
    return "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines
    )


def _text_of(data: bytes) -> str:
    """To show it: text in its encoding, what is none of it as a replacement character."""
    for mark, encoding in MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, "replace")
    return data.decode("utf-8-sig", "replace")


def _lines(text: str) -> list[str]:
    """As a diff wants them: only \\n ends a line, and is part of it."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
