"""The response of this rank to a request for a capture: a small file, and a key of the store.

Files are written by a separate thread, since the log directory may hang.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ....core.files import atomic_write
from ....core.process_end import join_within
from ....core.ranks import host_name
from ....core.warnings import warn_once
from .control_file import response_path
from .result import Response, State

EXIT_WAIT_S = 5.0  # for a directory that hangs

Listener = Callable[[str, int, Response], object]


class _Writer:
    """Writes small files in the background, the newest content of each."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pending: dict[Path, bytes] = {}
        self.thread: threading.Thread | None = None

    def put(self, path: Path, content: bytes) -> None:
        with self.lock:
            self.pending[path] = content
            if self.thread is not None:
                return
            self.thread = threading.Thread(
                target=self.write_all, name="my_utils-captures", daemon=True
            )
            try:
                self.thread.start()
                return
            except RuntimeError:  # the interpreter ends and starts no threads any more
                pass
        self.write_all()

    def write_all(self) -> None:
        while True:
            with self.lock:
                if not self.pending:
                    self.thread = None
                    return
                path = next(iter(self.pending))
                content = self.pending.pop(path)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(path) as file:
                    file.write(content)
            except OSError as error:
                warn_once("capture_response", f"a capture's state could not be written: {error}")

    def finish(self) -> None:
        thread = self.thread
        if thread is not None:
            join_within(thread, EXIT_WAIT_S)


def respond(
    id: str,
    rank: int,
    log_dir: str,
    state: State,
    reason: str = "",
    files: list[str] | None = None,
    opened_at: int | None = None,
) -> None:
    """Sends the response to a request; log_dir "" for no file."""
    response: Response = {
        "version": 1,
        "id": id,
        "rank": rank,
        "host": host_name(),
        "pid": os.getpid(),
        "state": state,
        "reason": reason,
        "opened_at_step": opened_at,
        "files": files or [],
        "time": time.time(),
    }
    if log_dir:
        _writer.put(response_path(log_dir, id, rank), json.dumps(response).encode() + b"\n")
    if _also is not None:
        _also(id, rank, response)


def add_listener(listener: Listener) -> None:
    """Sets a function that also gets every response from now on: (id, rank, response)."""
    global _also
    _also = listener


_writer = _Writer()
_also: Listener | None = None
atexit.register(lambda: _writer.finish())


def _start_anew_in_child() -> None:
    """In a forked child: responses that are not written yet belong to the parent."""
    global _also, _writer
    _writer, _also = _Writer(), None


os.register_at_fork(after_in_child=_start_anew_in_child)
