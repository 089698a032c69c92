"""The outputs of the text log: a file, from which no line is dropped, and the console."""

from __future__ import annotations

import io
import logging
import os
import sys
from typing import IO, TextIO, cast

from ..common.public import public
from ..common.warnings import warn_once

__all__ = ["ConsoleHandler", "FallbackHandler", "FlushingFileHandler"]


@public("my_utils.logger")
class FlushingFileHandler(logging.FileHandler):
    """A file handler whose records reach the file one by one, so that a crash loses none of them.

    Each record is one write at the end of the file: nothing is buffered in the process, and lines
    of processes that share the file do not mix. Without an `encoding` it is UTF-8, with what cannot
    be encoded escaped. A write that fails is warned about once for each file and counted in
    `failed`; it does not raise. Thread-safe.

    >>> import logging, os, pathlib, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "run.log")
    >>> handler = FlushingFileHandler(path)
    >>> handler.emit(logging.makeLogRecord({"msg": "epoch 1"}))
    >>> pathlib.Path(path).read_text()
    'epoch 1\\n'
    >>> handler.close()
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        mode: str = "a",
        encoding: str | None = None,
        delay: bool = False,
        errors: str | None = None,
    ) -> None:
        self.failed = 0
        super().__init__(filename, mode, encoding or "utf-8", delay, errors or "backslashreplace")

    def _open(self) -> TextIO:  # type: ignore[override]
        raw = io.FileIO(self.baseFilename, self.mode.replace("t", ""))
        # TextIOWrapper takes a raw file where nothing is to be buffered, as for `python -u`.
        return io.TextIOWrapper(
            cast(IO[bytes], raw), encoding=self.encoding, errors=self.errors, write_through=True
        )

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if (record.levelno or 0) >= logging.WARNING and not self.is_in_place():
            self._show(record)

    def _show(self, record: logging.LogRecord) -> None:
        """Prints a warning that the file cannot take on stderr, unless a console shows it."""
        handlers = logging.getLogger("my_utils").handlers
        if not any(isinstance(handler, ConsoleHandler) for handler in handlers):
            console = ConsoleHandler()
            console.setFormatter(self.formatter)
            console.handle(record)

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        self.failed += 1
        shown = not self.is_in_place()  # by emit
        if isinstance(error, OSError) and (record.levelno or 0) >= logging.WARNING and not shown:
            self._show(record)
        if isinstance(error, OSError):
            warn_once(
                f"text_log:{self.baseFilename}",
                f"cannot write to the text log {self.baseFilename} ({reason(error)}); "
                "its messages are lost, the training goes on",
            )
        else:
            super().handleError(record)

    def is_in_place(self) -> bool:
        """Whether the file still stands under its name."""
        if self.stream is None:
            return False
        try:
            held = os.fstat(self.stream.fileno())
            named = os.stat(self.baseFilename)
        except (OSError, ValueError):
            return False
        return os.path.samestat(held, named)


class ConsoleHandler(logging.StreamHandler[TextIO]):
    """Writes to what sys.stderr is at the time of the message."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, stream: TextIO) -> None:
        raise AttributeError("the console handler follows sys.stderr")


class FallbackHandler(ConsoleHandler):
    """Shows messages before setup(), unless the program has set up logging by itself."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def reason(error: BaseException) -> str:
    """An error on one line; for the operating system's, what it says of which file."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__
