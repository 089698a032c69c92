"""The parent of a command: forwards signals to it, and exits like it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, TracebackType

from ..core.command_line import fail

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# A terminal sends these to all of its foreground group, the child included.
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as shells have it

_Handler = Callable[[int, FrameType | None], object] | int | None


class Child:
    """A command that runs in this process's terminal and group, in a block:

        with Child(command, environment) as child:
            child.wait()

    Meanwhile signals reach the command and not this process. A signal that this process ignores,
    as in `nohup`, the command ignores, too, and it is left so. OSError if the command cannot be
    started. Main thread only.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._before: dict[int, _Handler] = {}
        self._early: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self.was_signalled = False  # this process was, by a signal that the command gets
        self._install()
        try:
            self._process = subprocess.Popen(
                list(command),
                env=dict(environment),
                close_fds=False,  # the caller's are for the command; exec closes Python's own
                preexec_fn=_ignore_children if signal.SIGCHLD in self._before else None,
            )
        except BaseException:
            self._restore()
            raise
        for number in self._early:
            self._send(number)

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    def wait(self) -> int:
        """The exit status of the command once it has ended; -n where signal n ended it."""
        assert self._process is not None
        # It stays a zombie until its end is noted, so that no signal goes to another process.
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self._ended = True
        return self._process.wait()

    def _install(self) -> None:
        handlers = {
            **dict.fromkeys(FORWARDED, self._forward),
            **dict.fromkeys(FROM_TERMINAL, self._forward_unless_from_terminal),
        }
        for number, handler in handlers.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, handler)
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # the system would drop the status
            self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self.was_signalled = True
        if self._process is None:
            self._early.append(number)
        else:
            self._send(number)

    def _forward_unless_from_terminal(self, number: int, frame: FrameType | None) -> None:
        self.was_signalled = True
        if not _is_in_foreground():
            self._forward(number, frame)

    def _send(self, number: int) -> None:
        if self._process is not None and not self._ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._process.pid, number)


def _ignore_children() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def _is_in_foreground() -> bool:
    """Whether a terminal's keys send signals to this process, and so to its whole group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def cannot_run(command: Sequence[str], error: OSError) -> int:
    """Says so. The exit status that shells have for it."""
    missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    status = NOT_FOUND if missing else NOT_EXECUTABLE
    return fail("run", f"cannot run {command[0]}: {error.strerror}", status)


def end_as(status: int) -> int:
    """Ends this process by the signal that ended the command; else returns its exit status."""
    if status >= 0:
        return status
    number = -status
    _leave_no_core()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError, ValueError):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    return 128 + number  # a signal that ends nobody


def _leave_no_core() -> None:
    """The command's core is the one that counts; one of this process would hide it."""
    import ctypes
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError, AttributeError):
        not_dumpable = 0  # where cores go to a program, the limit alone does not hold them back
        ctypes.CDLL(None).prctl(4, not_dumpable, 0, 0, 0)  # PR_SET_DUMPABLE
