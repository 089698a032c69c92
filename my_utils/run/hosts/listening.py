"""Waits for a rank to name the meeting point of several hosts, and only then loads the rest."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.process_end import join_within
from ..parent import FORWARDED, FROM_TERMINAL
from .meeting import BACKLOG, MESSAGE_MAX, socket_path

if TYPE_CHECKING:
    from .parent import Parent

MESSAGE_S = 1.0
PAUSE_S = 0.1
END_S = 5.0


class Hosts:
    """Of the parent of a command: where its ranks reach it, from its creation on until `end`.
    report: the file in which they report. OSError where no socket can be made beside it."""

    def __init__(self, report: Path) -> None:
        self._report = report
        self._parent: Parent | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()  # guards the two above
        self._thread: threading.Thread | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(socket_path(report))
            self._listener.listen(BACKLOG)
        except BaseException:
            self._listener.close()
            raise

    def start(self) -> None:
        """Once the command runs. RuntimeError where no more threads may be started."""
        thread = threading.Thread(target=self._run, name="my_utils ranks", daemon=True)
        thread.start()
        self._thread = thread

    def end(self) -> None:
        """The command has ended. Where others ran elsewhere, as `Parent.end`."""
        with self._lock:
            self._over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which ends `accept`
        if self._thread is not None:
            join_within(self._thread, END_S)
        self._listener.close()
        if self._parent is not None:
            self._parent.end()

    @property
    def judges(self) -> bool | None:
        """After `end`, as `Parent.judges`; None where no rank has named a meeting point."""
        return None if self._parent is None else self._parent.judges

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, (*FORWARDED, *FROM_TERMINAL))
        while not self._over.is_set():
            try:
                connection, _ = self._listener.accept()
                with connection:
                    connection.settimeout(MESSAGE_S)
                    data, ports, _, _ = socket.recv_fds(connection, MESSAGE_MAX, 1)
                self._pass_on(data, socket.socket(fileno=ports[0]) if ports else None)
            except (OSError, ValueError, RuntimeError):  # no descriptors or threads, or no rank
                self._over.wait(PAUSE_S)

    def _pass_on(self, data: bytes, port: socket.socket | None) -> None:
        with self._lock:
            if self._parent is None and not self._over.is_set():
                from .parent import Parent

                self._parent = Parent(self._report)
            if self._parent is not None:
                self._parent.hear(data, port)
