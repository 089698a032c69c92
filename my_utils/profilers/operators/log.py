"""The log of the comparison tools: to the console directly, or to a file in a separate thread.

The training thread only appends to a list. Another thread joins the lines and writes them: a few
times a second, after an error, and at the end.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any, TextIO

from ...core.warnings import warn_once

_WAIT_S = 0.2
_LINES_MAX = 100_000  # then the training waits: the disk is slower than the run


class OpLog:
    """Takes lines as tuples of texts, which are joined when they are written.

    path: the file, which is appended to, in a folder that is made; None for standard output.
    prefix: the beginning of every line that is not empty, such as the rank.
    Thread-safe. A full disk, or an output that is closed, is one warning and a count in `lost`.
    """

    def __init__(self, path: str | os.PathLike[str] | None, prefix: str = "") -> None:
        self.path = None if path is None else Path(path)
        self.prefix = prefix
        self.lost = 0
        self._pending: deque[tuple[str, ...]] = deque()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._file: TextIO | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._printed = 0  # lines that Python may still hold back

    def open(self) -> None:
        """OSError if the file cannot be opened."""
        if self.path is None or self._file is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
        self._closing.clear()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._work, name="my_utils op log", daemon=True)
        self._thread.start()

    def line(self, *parts: str) -> None:
        if self.path is None:
            self._print(parts)
            return
        self._pending.append(parts)
        if len(self._pending) > _LINES_MAX:
            self.flush()

    def _print(self, parts: tuple[str, ...]) -> None:
        self._printed += 1
        try:
            print(self._text(parts), file=_output())
        except (OSError, ValueError) as error:
            self._lose_printed(error)

    def _flush_printed(self) -> None:
        if not self._printed:
            return
        try:
            _output().flush()
            self._printed = 0
        except (OSError, ValueError) as error:
            self._lose_printed(error)

    def _lose_printed(self, error: Exception) -> None:
        lines, self._printed = self._printed, 0
        self._lose(lines, error)

    def _lose(self, lines: int, error: Exception) -> None:
        self.lost += lines
        name = "standard output" if self.path is None else self.path
        warn_once("op_log", f"{name} cannot be written ({error}); lines are lost")

    def _text(self, parts: tuple[str, ...]) -> str:
        text = "".join(parts)
        if not self.prefix:
            return text
        return "\n".join([line and self.prefix + line for line in text.split("\n")])

    def flush(self) -> None:
        """Writes all that there is, and returns when the system has it."""
        if self._file is None:
            self._flush_printed()
            return
        with self._lock:
            if self._pid != os.getpid():  # a forked child: the rows are its parent's
                self._pending.clear()
                return
            # One by one: what is appended meanwhile comes next time.
            pending = [self._pending.popleft() for _ in range(len(self._pending))]
            if not pending:
                return
            try:
                self._file.write("".join([self._text(parts) + "\n" for parts in pending]))
                self._file.flush()
            except (OSError, ValueError) as error:
                self._lose(len(pending), error)

    def close(self) -> None:
        """Writes the rest. The log can be opened again."""
        thread, self._thread = self._thread, None
        if thread is not None and self._pid == os.getpid():
            self._closing.set()
            thread.join(timeout=10)
        self.flush()
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self._lose(0, error)

    def _work(self) -> None:
        while not self._closing.wait(_WAIT_S):
            self.flush()

    def __reduce__(self) -> Any:
        raise TypeError("a log that is written to cannot be copied")


def _output() -> TextIO:
    """Standard output, or ValueError where the process was started without one."""
    if sys.stdout is None:
        raise ValueError("it is closed")
    return sys.stdout
