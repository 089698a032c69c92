"""Says, while a command runs, which of its processes have torch and are not recorded.

What a program does to PYTHONPATH is not known before. Otherwise one would learn after the training
that nothing was recorded.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from .closing import print_lines
from .environment import SITE_FOLDER
from .parent import FORWARDED, FROM_TERMINAL
from .report_file import read_reports

AFTER_S = 30.0  # of the command's begin, and again as long as nothing has reported
LIBRARY = b"/libtorch_cpu."
WORDS_MAX = 80  # characters of a command


class Lookout:
    """Looks at the processes below this one, in a thread of its own, from its creation on until
    `end`, or until it has said something, or one of them has reported that it has torch.

    report: the file in which they report.
    """

    def __init__(self, report: Path, after_s: float = AFTER_S) -> None:
        self._report = report
        self._after_s = after_s
        self._over = threading.Event()
        name = "my_utils unreached processes"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()

    def join(self) -> None:
        """Until it has nothing more to say."""
        self._thread.join()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, (*FORWARDED, *FROM_TERMINAL))
        while not self._over.wait(self._after_s):
            with contextlib.suppress(OSError):
                if read_reports(self._report).torches:
                    return
            lines = [f"my_utils run: {reason}" for reason in unreached(os.getpid())]
            if lines and not self._over.is_set():
                print_lines(lines[:1])
                return


def unreached(root: int) -> Iterator[str]:
    """Of each process below `root` that has loaded torch, why it is not recorded; a sentence
    each. Of processes that have reported nothing."""
    for pid in _below(root):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            folder = Path("/proc", str(pid))
            if LIBRARY not in (folder / "maps").read_bytes():
                continue
            variables = dict(
                pair.split(b"=", 1)
                for pair in (folder / "environ").read_bytes().split(b"\0")
                if b"=" in pair
            )
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            path = os.fsdecode(variables.get(b"PYTHONPATH", b""))
            yield (
                f"nothing is recorded of process {pid} ({words.strip()[:WORDS_MAX]}): {_why(path)}"
            )


def _why(path: str) -> str:
    auto = "or put `import my_utils; my_utils.auto()` into the script"
    if SITE_FOLDER in path.split(os.pathsep):
        return f"leave out Python's options -I, -E and -S, {auto}"
    now = f"PYTHONPATH={path}" if path else "no PYTHONPATH"
    then = f"PYTHONPATH={path}:$PYTHONPATH" if path else "the PYTHONPATH of `my_utils run`"
    return f"it was started with {now}; start it with {then}, {auto}"


def _below(root: int) -> Iterator[int]:
    """All processes below, the nearest first."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(name))
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(0), [])
        yield from below
        waiting += below
