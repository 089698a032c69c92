"""The outputs of the text log: a file that drops no line, and the console."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import IO, Any, TextIO, cast

from ...core.public import public
from ...core.trusted_open import above_streams, open_own
from ...core.warnings import warn_once

WAIT_S = 1.0  # for a line
CLOSE_WAIT_S = 0.5
LINES_MAX = 10_000  # that wait

# Those that the C part writes to from step(), too.
_LOCAL = frozenset(
    ["bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"]
)


@public("my_utils.logger")
class FlushingFileHandler(logging.FileHandler):
    """A file handler whose records reach the file one by one, so that a crash loses none of them.

    Each record is one write at the end of the file: nothing is buffered in the process, and lines
    of processes that share the file do not mix. Without an `encoding` it is UTF-8, with what cannot
    be encoded escaped. A write that fails is warned about once for each file and counted in
    `failed`; it does not raise. On a file system that is not known to be local, `emit` waits for
    its line for a second at most: if the file system stops answering, lines are counted in
    `delayed` and follow in their order when it answers, warnings are shown on stderr as well, and
    the end of the process says how many are left. Thread-safe.

    >>> import logging, os, pathlib, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "run.log")
    >>> handler = FlushingFileHandler(path)
    >>> handler.emit(logging.makeLogRecord({"msg": "epoch 1"}))
    >>> pathlib.Path(path).read_text()
    'epoch 1\\n'
    >>> handler.close()
    """

    _opener: Callable[[str, int], int] | None = None

    def __init__(
        self,
        filename: str | os.PathLike[str],
        mode: str = "a",
        encoding: str | None = None,
        delay: bool = False,
        errors: str | None = None,
    ) -> None:
        self.failed = 0
        self.delayed = 0
        self._is_local = True
        self._writer: LineWriter | None = None
        super().__init__(filename, mode, encoding or "utf-8", delay, errors or "backslashreplace")

    def _open(self) -> io.TextIOWrapper:
        raw = _OpenFile(self.baseFilename, self.mode.replace("t", ""), opener=self._opener)
        self._is_local = not may_hang(raw.fileno())
        # TextIOWrapper takes a raw file where nothing is buffered, as for `python -u`.
        return io.TextIOWrapper(
            cast(IO[bytes], raw), encoding=self.encoding, errors=self.errors, write_through=True
        )

    def emit(self, record: logging.LogRecord) -> None:
        warns = (record.levelno or 0) >= logging.WARNING
        if self.stream is None and (self.mode != "w" or not getattr(self, "_closed", False)):
            self.stream = self._open()
        if self._choose_writer() is None:
            super().emit(record)
            if warns and not self.is_in_place():
                self._show(record)
            return
        try:
            self._emit_on_thread(record, warns)
        except Exception:  # as logging's own handlers do
            self.handleError(record)

    def _choose_writer(self) -> LineWriter | None:
        """The thread that writes where the file system may hang; a forked child makes its own."""
        if self._writer is None and self.stream is not None and not self._is_local:
            self._writer = LineWriter()
        if self._writer is not None and self._writer.pid != os.getpid():
            self._writer = LineWriter()
        return self._writer

    def _emit_on_thread(self, record: logging.LogRecord, warns: bool) -> None:
        writer, stream = self._writer, self.stream
        text = self.format(record) + self.terminator
        if writer is None or stream is None:
            return

        def write() -> bool:
            stream.write(text)
            return not warns or self._stands_under_its_name()

        task = writer.run(write)
        if task is not None and task.error is not None:
            raise task.error
        if task is None or not task.done.is_set():
            self._count_delayed(lost=task is None)
        if warns and (task is None or not task.done.is_set() or not task.result):
            self._show(record)

    def _count_delayed(self, lost: bool) -> None:
        self.delayed += not lost
        self.failed += lost
        if self.delayed == 1:
            self._show_text(
                f"the text log {self.baseFilename} does not answer; its lines wait in memory, the "
                "training goes on"
            )

    def flush(self) -> None:
        """Does nothing: each line is written at once."""

    def close(self) -> None:
        """Closes the file. If it does not answer, logs how many lines are left."""
        writer, stream = self._writer, self.stream
        if writer is None or writer.pid != os.getpid() or stream is None:
            super().close()
            return
        self._writer = self.stream = None

        def close_stream() -> bool:
            stream.close()
            return True

        writer.run(close_stream, CLOSE_WAIT_S)
        left = writer.waiting - 1
        if left > 0:
            self._show_text(
                f"{left} lines of the text log {self.baseFilename} are not written: it does not "
                "answer"
            )
        super().close()

    def _show_text(self, text: str) -> None:
        self._show(logging.LogRecord("my_utils", logging.WARNING, "", 0, text, None, None))

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
        """Whether the file still has its name, as far as is known within a second."""
        if self._writer is None or self._writer.pid != os.getpid():
            return self._stands_under_its_name()
        task = self._writer.run(self._stands_under_its_name)
        return task is None or not task.done.is_set() or task.result

    def _stands_under_its_name(self) -> bool:
        if self.stream is None:
            return False
        try:
            held = os.fstat(self.stream.fileno())
            named = os.stat(self.baseFilename)
        except (OSError, ValueError):
            return False
        return os.path.samestat(held, named)


class _OpenFile(io.FileIO):
    """Writes to and closes nothing but the file that it has opened: a program may close descriptors
    that it has not opened, and open another file under the same number."""

    def __init__(
        self, path: str, mode: str, opener: Callable[[str, int], int] | None = None
    ) -> None:
        with io.FileIO(path, mode, opener=opener) as file:
            fd = above_streams(os.dup(file.fileno()))
        super().__init__(fd, mode, closefd=False)
        self._opened = os.fstat(fd)

    def write(self, data: Any) -> int:
        if not self._is_open():
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return super().write(data)

    def close(self) -> None:
        if not self.closed and self._is_open():
            os.close(self.fileno())
        super().close()

    def _is_open(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self.fileno()), self._opened)
        except OSError:
            return False


class RankFileHandler(FlushingFileHandler):
    """For a directory that others can write to as well: PermissionError for a file that is not
    ours, for then others chose what the lines go into."""

    _opener = staticmethod(open_own)


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

    def handleError(self, record: logging.LogRecord) -> None:
        """Shows the message alone where no memory was left for the rest of the line."""
        if not isinstance(sys.exc_info()[1], MemoryError):
            super().handleError(record)
            return
        with contextlib.suppress(OSError, ValueError, MemoryError):
            self.stream.write(f"{record.getMessage()}\n")


class FallbackHandler(ConsoleHandler):
    """Shows messages before setup(), unless the program has set up logging by itself."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def may_hang(fd: int) -> bool:
    """Whether the open file is on a file system that is not known to be local."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        return False
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            fields = [line.split() for line in mounts]
    except OSError:
        return False
    kinds = {line[line.index("-") + 1] for line in fields if line[2] == device}
    return not kinds & _LOCAL


class Task:
    """Something to do on the thread; what it raised is in `error`."""

    def __init__(self, work: Callable[[], bool]) -> None:
        self.work = work
        self.done = threading.Event()
        self.result = True
        self.error: OSError | ValueError | None = None

    def run(self) -> None:
        try:
            self.result = self.work()
        except (OSError, ValueError) as error:
            self.error = error
        self.done.set()


class LineWriter:
    """A thread that writes the lines of a text log whose file system may stop answering: it runs
    tasks one after the other. Thread-safe.

    The caller waits for its line for a second at most. From then on lines are queued in their
    order, and nobody waits, until the file system answers again.

    A forked child has no such thread and needs a separate writer: see `pid`.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._tasks: deque[Task] = deque()
        self._changed = threading.Condition()
        self._hangs = False
        self._thread: threading.Thread | None = None

    def run(self, work: Callable[[], bool], wait_s: float = WAIT_S) -> Task | None:
        """Runs `work` after what was given before, and waits for it unless the writer hangs.

        None when too many wait already. Whether it is done says `done` of the task. Where the
        process can start no thread the task waits for a later one that can.
        """
        task = Task(work)
        with self._changed:
            if len(self._tasks) >= LINES_MAX:
                return None
            self._tasks.append(task)
            waits = self._start() and not self._hangs
            self._changed.notify()
        if waits and not task.done.wait(wait_s):
            with self._changed:
                self._hangs = not task.done.is_set()
        return task

    @property
    def waiting(self) -> int:
        """Tasks that are not done, the present one included."""
        with self._changed:
            return len(self._tasks)

    def _start(self) -> bool:
        """Whether there is a thread; without memory for its stack there is none yet."""
        if self._thread is None:
            # A daemon: the end of the process does not wait for a dead mount.
            thread = threading.Thread(target=self._loop, name="my_utils text log", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        return True

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._tasks:
                    self._changed.wait()
                task = self._tasks[0]
            task.run()
            with self._changed:
                self._tasks.popleft()
                self._hangs = self._hangs and bool(self._tasks)


def reason(error: BaseException) -> str:
    """An error on one line; for the operating system's, what it says of which file."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__
