"""Reads Chrome's trace JSON in pieces: its events, and its metadata.

Internal. Both forms are read, an object with `traceEvents` and the bare list, which need not be
closed. Memory does not grow with the file. An event that cannot be read is left out and counted, up
to a bound: to find where what is bad ends takes a hundred times as long as to read what is good.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import json
import re
import zlib
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from ..core.bounded_read import GZIP_MAGIC, Unpacked
from ..core.trusted_open import open_filled_or_pipe

if TYPE_CHECKING:
    from collections.abc import Iterator


CHUNK = 1 << 16  # the decoder counts the lines before an error: it is given few
EVENT_MAX = 16 << 20  # characters; a longer event is left out
PERFETTO_HEAD = 64 << 10  # bytes in which the first packet of Perfetto's protobuf ends
VALUE_MAX = 1 << 25  # of a value beside the events, such as sources
BAD_AT_ONCE = 64  # events that are left out as one where the end of each is unknown
MARKS_AT_ONCE = 64
WORK_FREE = 4 << 20  # on what is bad, in brackets that are counted, a microsecond each
WORK_TIMES = 1 / 16  # and for each character of the file
MAY_BE_CUT = 16  # characters before the window's end where an error may come from that end
SHOWN = 80  # characters of what is left out

_SPACE = re.compile(r"[ \t\r\n,]*")
_FIRST_PACKET = re.compile(rb"\n([\x80-\xff]{0,3}[\0-\x7f])")
_NEXT_EVENT = re.compile(r"\}\s*,\s*(?=\{)")
_MARK = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[][{},]', re.DOTALL)
_AFTER_EVENT = re.compile(r"[ \t\r\n,]*[{\]]")
_UNREADABLE = (ValueError, RecursionError, InvalidOperation)
_Unreadable = ValueError | RecursionError | InvalidOperation


class TraceFileError(ValueError):
    """A file that is not a trace in Chrome's JSON; the text names it."""


class ChromeJson:
    """One file. Iterate over `events`, once; `metadata` and `left_out` are complete after that.

    metadata: the values beside the events, by their keys. left_out: by the reason, how many events
    and values could not be read, and the beginning of the first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.left_out: dict[str, tuple[int, str]] = {}
        self._window = ""
        self._at = 0
        self._is_last = False
        self._work = 0.0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._json = json.JSONDecoder(parse_float=Decimal, parse_constant=str, strict=False)

    def events(self) -> Iterator[Any]:
        """What is in the list of events. Numbers with a point are Decimal.

        Raises TraceFileError for another file, and, after the last good event, for a file that is
        damaged, cut off or continues after the trace; OSError when it cannot be read.
        """
        with _opened(self.path) as file:
            self._file = file
            first = self._peek()
            if first == "[":
                self._at += 1
                yield from self._list(may_be_cut=True)
            elif first == "{":
                self._at += 1
                yield from self._members()
            else:
                raise TraceFileError(f"{self.path}: {self._what_it_is(first)}")
            if self._peek():
                more = self._window[self._at : self._at + SHOWN]
                raise TraceFileError(f"{self.path}: data after the trace is left out: {more!r}")

    def _what_it_is(self, first: str) -> str:
        """Of a file that begins as no JSON does."""
        with _opened(self.path) as file:
            if _is_perfetto(file.read(PERFETTO_HEAD)):
                return (
                    "is Perfetto's protobuf, which cannot be merged: merge the JSON or the CSVs"
                    " that it was made from, or convert it with Perfetto's `traceconv json`"
                )
        return f"is not Chrome's JSON: it begins with {first!r}"

    def _more(self, size: int = CHUNK) -> bool:
        chunk = self._file.read(size)
        self._is_last = not chunk
        self._work -= len(chunk) * WORK_TIMES
        self._window = self._window[self._at :] + self._decode(chunk, self._is_last)
        self._at = 0
        return not self._is_last

    def _peek(self) -> str:
        """The next character that is neither space nor comma; "" at the end."""
        while True:
            found = _SPACE.match(self._window, self._at)
            self._at = found.end() if found else self._at
            if self._at == len(self._window):
                if not self._more():
                    return ""
            elif self._window[self._at] == "\ufeff":
                self._at += 1
            else:
                return self._window[self._at]

    def _members(self) -> Iterator[Any]:
        has_events = False
        while (first := self._peek()) == '"':
            key = self._value(CHUNK)
            if self._peek() != ":":
                raise self._cut()
            self._at += 1
            if key == "traceEvents" and self._peek() == "[":
                self._at += 1
                has_events = True
                yield from self._list(may_be_cut=False)
            else:
                self._peek()
                self.metadata[str(key)] = self._value(VALUE_MAX)
        if not has_events:
            raise TraceFileError(f"{self.path}: holds no traceEvents")
        if first != "}":
            raise self._cut()
        self._at += 1

    def _list(self, may_be_cut: bool) -> Iterator[Any]:
        while True:
            first = self._peek()
            if first == "]":
                self._at += 1
                return
            if first == "":
                if may_be_cut:
                    return
                raise self._cut()
            yield self._event()

    def _event(self) -> Any:
        """The next element; None for one that is left out."""
        while True:
            try:
                event, self._at = self._json.raw_decode(self._window, self._at)
                return event
            except _UNREADABLE as error:
                reason = _reason(error)
                is_cut = self._is_cut(error)
            length = len(self._window) - self._at
            if is_cut and length < EVENT_MAX:
                self._more(max(CHUNK, length))
                continue
            end = self._end()
            if end >= 0 and not _AFTER_EVENT.match(self._window, end):
                end = -1
            following = self._next_event(end if end >= 0 else len(self._window))
            end = following if following >= 0 else end
            if end < 0 and self._is_last:
                raise self._cut()
            if end >= 0 or length >= EVENT_MAX:
                self._leave_out(reason, end if end >= 0 else len(self._window))
                return None
            self._more(max(CHUNK, length))

    def _is_cut(self, error: _Unreadable) -> bool:
        """Whether a value here that cannot be read may be good and end beyond the window."""
        at = self._spend_on(error)
        if self._is_last or not isinstance(error, json.JSONDecodeError):
            return False
        return at > len(self._window) - MAY_BE_CUT or error.msg.startswith("Unterminated string")

    def _spend_on(self, error: _Unreadable) -> int:
        """Adds what the error took, which counts the lines before it. Returns where it is."""
        at = error.pos if isinstance(error, json.JSONDecodeError) else self._at + CHUNK
        self._spend(16 + (at >> 12) + ((at - self._at) >> 6))
        return at

    def _spend(self, work: float) -> None:
        self._work += work
        if self._work > WORK_FREE:
            raise TraceFileError(f"{self.path}: damaged: too much of it is not JSON")

    def _end(self) -> int:
        """Where the value here ends by its brackets, -1 for beyond the window."""
        depth = 0
        begin = self._at
        for count, found in enumerate(_MARK.finditer(self._window, begin)):
            depth += (found[0] in "[{") - (found[0] in "]}")
            if depth < 1 and found[0] in ",]}":
                return max(found.start() + (depth == 0 and found[0] != ","), begin + 1)
            if count % MARKS_AT_ONCE == MARKS_AT_ONCE - 1:
                self._spend(MARKS_AT_ONCE)
        return -1

    def _next_event(self, before: int) -> int:
        """Where the next good event begins in the window, -1 for nowhere. So what is bad is bad by
        itself, and not cut off by the window's end."""
        bad = 0
        for found in _NEXT_EVENT.finditer(self._window, self._at, before):
            try:
                event, end = self._json.raw_decode(self._window, found.end())
                self._spend(1 + ((end - found.end()) >> 6))
            except _UNREADABLE as error:
                self._spend_on(error)
                bad += 1
                event = None
            if bad == BAD_AT_ONCE or (isinstance(event, dict) and "ph" in event):
                return found.end()
        return -1

    def _leave_out(self, reason: str, end: int) -> None:
        count, first = self.left_out.get(reason, (0, self._window[self._at : self._at + SHOWN]))
        self.left_out[reason] = (count + 1, first)
        self._at = end

    def _value(self, longest: int) -> Any:
        """The value here; None for one that is left out."""
        while True:
            try:
                value, end = self._json.raw_decode(self._window, self._at)
                if end < len(self._window) or self._is_last:
                    self._at = end
                    return value
            except _UNREADABLE as error:
                length = len(self._window) - self._at
                if not self._is_cut(error) or length > longest:
                    end = self._end()
                    if end >= 0:
                        self._leave_out(_reason(error), end)
                        return None
                if self._is_last or length > longest:
                    raise self._cut() from None
            self._more(max(CHUNK, len(self._window) - self._at))

    def _cut(self) -> TraceFileError:
        return TraceFileError(f"{self.path}: the trace is cut off")


def number_within(value: Any, most: int) -> int | Decimal:
    """A number of a trace, exact; ValueError for another value and for a larger one. It is compared
    before it is taken apart, which takes as long as its exponent is large."""
    if type(value) in (int, Decimal) and -most <= value <= most:
        return cast("int | Decimal", value)
    raise ValueError


def _reason(error: _Unreadable) -> str:
    if isinstance(error, RecursionError):
        return "nested too deep"
    return "is not JSON" if isinstance(error, json.JSONDecodeError) else "has a number too long"


def _is_perfetto(head: bytes) -> bool:
    """Whether a file that begins so is a trace in Perfetto's protobuf: a packet, field 1, and where
    that ends another one, or the end of a short file."""
    found = _FIRST_PACKET.match(head)
    if found is None:
        return False
    length = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(found[1]))
    end = found.end() + length
    return head[end : end + 1] == b"\n" or end == len(head)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes] | Unpacked]:
    """The file, which need not be seekable, unpacked where it is of gzip."""
    with open(path, "rb", opener=open_filled_or_pipe) as file:
        if file.peek(2)[:2] == GZIP_MAGIC:
            try:
                yield Unpacked(file)
            except TraceFileError:
                raise
            except (gzip.BadGzipFile, zlib.error, EOFError) as error:
                raise TraceFileError(f"{path}: damaged or cut off: {error}") from error
            except ValueError as error:
                raise TraceFileError(f"{path}: {error}") from error
        else:
            yield file
