"""A thread that writes the lines of a text log whose file system may stop answering.

The caller waits for its line for a second at most. From then on lines are queued in their order,
and nobody waits, until the file system answers again.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import deque
from collections.abc import Callable

WAIT_S = 1.0
LINES_MAX = 10_000

# Those that the C part writes to from step(), too.
_LOCAL = frozenset(
    ["bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"]
)


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
    """Runs tasks one after the other on a separate thread. Thread-safe.

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
