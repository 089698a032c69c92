"""Hands messages to a command or an http(s) address from a thread: whoever sends waits for nothing.

Each message is tried twice, half a minute apart. A receiver that is gone or slow costs one warning,
and messages once 16 wait.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from .process_end import join_within, status_text

WAITING_MAX = 16
ANSWER_S = 10.0
AGAIN_S = 30.0
LAST_S = 5.0  # for all that is left at the end

Deliver = Callable[[bytes], object]


def deliver_to(target: str) -> tuple[str, Deliver]:
    """The target's name for warnings, without what may be secret, and what hands it a message: as
    the body of a POST, or on a command's standard input. That raises OSError where it fails.

    target: begins with http:// or https://, or is a command, split as in a shell but without one.
    ValueError for anything else.

    >>> deliver_to("https://hooks.example.com/services/SECRET")[0]
    'https://hooks.example.com'
    """
    if target.startswith(("http://", "https://")):
        address = urlsplit(target)
        is_plain = target.isascii() and target.isprintable() and " " not in target
        if not address.hostname or not is_plain:
            raise ValueError("must be an address without spaces that names a host")
        port = f":{address.port}" if address.port else ""
        name = f"{address.scheme}://{address.hostname}{port}"
        return name, lambda message: _post(target, message)
    words = shlex.split(target)
    if not words:
        raise ValueError("must be a command, or an address that begins with http:// or https://")
    return os.path.basename(words[0]), lambda message: _run(words, message)


class Receiver:
    """warn: called with one sentence at the first failure. Thread-safe. ValueError as
    `deliver_to`."""

    def __init__(self, target: str, warn: Callable[[str], object]) -> None:
        self._name, self._deliver = deliver_to(target)
        self._warn: Callable[[str], object] | None = warn
        self._queue: queue.Queue[bytes | None] = queue.Queue(WAITING_MAX)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="my_utils receiver", daemon=True)
        self._thread.start()

    def send(self, message: bytes) -> None:
        """Returns at once. Where 16 messages wait, this one is dropped."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(message)

    def close(self) -> None:
        """Tries what is left, for five seconds at most."""
        self._ends.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        join_within(self._thread, LAST_S)

    def _go_on(self) -> None:
        while (message := self._queue.get()) is not None:
            if not self._try(message):
                self._ends.wait(AGAIN_S)
                self._try(message)

    def _try(self, message: bytes) -> bool:
        try:
            self._deliver(message)
            return True
        except Exception as error:
            warn, self._warn = self._warn, None
            if warn is not None:
                warn(f"{self._name} took no message: {error or type(error).__name__}")
            return False


def _post(address: str, message: bytes) -> None:
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class Stay(HTTPRedirectHandler):
        """The message goes to the address that the user has named, and nowhere else."""

        def redirect_request(self, *args: Any) -> None:
            return None

    request = Request(address, message, {"Content-Type": "application/json"}, method="POST")
    with build_opener(Stay).open(request, timeout=ANSWER_S):
        pass


def _run(words: Sequence[str], message: bytes) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the command has it from this thread
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        process.communicate(message, ANSWER_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise TimeoutError(f"it had not ended after {ANSWER_S:g} s") from None
    if process.returncode:
        raise OSError(f"it ended {status_text(process.returncode)}")
