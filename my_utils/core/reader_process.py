"""Reads files in child processes: untrusted ones with limits, and many of them side by side.

A file that makes the parser crash, hang or ask for memory without end costs a child, and is
reported. A child is started at its first file, and again after one that ended it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from .bounded_read import GZIP_MAGIC
from .process_end import status_text
from .reader_child import OUT_OF_MEMORY
from .trusted_open import open_without_waiting

BYTES_AT_LEAST = 512 << 20  # of memory
BYTES_AT_MOST = 4 << 30
BYTES_A_BYTE = 24  # of memory for one of the file
SECONDS_AT_LEAST = 2  # of the processor
FILE_BYTES_A_SECOND = 2 << 20
SECONDS_WAITED = 120  # for a child that does nothing, besides those that a busy machine takes for
WAIT_MS_MAX = (1 << 31) - 1  # that poll takes
BUSY = 10  # times the seconds of the processor
PACKED = 10  # times as many bytes are in a file of gzip

_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
    "from my_utils.core.reader_child import serve; serve(sys.argv[2], int(sys.argv[3]))"
)


class ReaderError(ValueError):
    """The file was not read. The message says why."""


class Readers:
    """Calls a function in so many children, with limits of memory and time if it is bounded. From
    that many threads at once, which live as long as the children.

    A context manager that ends the children; after an exception it kills them, so that nobody waits
    for what they read."""

    def __init__(self, function: Callable[..., Any], count: int, *, bounded: bool) -> None:
        self._readers = [_Reader(function, bounded) for _ in range(count)]
        self._free: queue.SimpleQueue[_Reader] = queue.SimpleQueue()
        for reader in self._readers:
            self._free.put(reader)

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            for reader in self._readers:
                reader.kill()
        for _ in self._readers:
            self._free.get().end()

    def read(self, path: str, *arguments: Any) -> Any:
        """What the function returns for `*arguments, path`. Numbers and texts are passed, and plain
        classes come back. ReaderError where the function raised, or the file crashed the child or
        took more than its size allows."""
        reader = self._free.get()
        try:
            return reader.read(path, *arguments)
        finally:
            self._free.put(reader)


class _Reader:
    """One child."""

    def __init__(self, function: Callable[..., Any], bounded: bool) -> None:
        self._function = f"{function.__module__}:{function.__name__}"
        self._bounded = bounded
        self._child: subprocess.Popen[bytes] | None = None

    def read(self, path: str, *arguments: Any) -> Any:
        bounds = _bounds(path) if self._bounded else None
        request = json.dumps({"arguments": [*arguments, path], "bounds": bounds})
        try:
            response = self._response(request.encode() + b"\n", bounds)
        except BaseException:
            self.end()  # what is left in the pipe belongs to this request
            raise
        if response is None:
            raise ReaderError(_reason(self.end(), self._bounded))
        error, returned = pickle.loads(response)
        if error is not None:
            raise ReaderError(f"reading it fails with {error}")
        return returned

    def _response(self, request: bytes, bounds: tuple[int, int] | None) -> bytes | None:
        """None where the child ended. ReaderError where it does nothing: libraries wait for threads
        of theirs that there was no memory for."""
        child = self._child = self._child or self._start()
        assert child.stdin is not None and child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(request)
            child.stdin.flush()
            if bounds is not None:
                seconds = SECONDS_WAITED + BUSY * bounds[1]
                responses = select.poll()
                responses.register(child.stdout, select.POLLIN)
                if not responses.poll(min(1000 * seconds, WAIT_MS_MAX)):
                    child.kill()
                    raise ReaderError(f"its reader does nothing, and was ended after {seconds} s")
            head = child.stdout.read(8)
            length = int.from_bytes(head, "little")
            response = child.stdout.read(length)
            if len(head) == 8 and len(response) == length:
                return response
        return None

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", "-c", _CHILD),
                *(json.dumps(sys.path), self._function, str(os.getpid())),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        """For other threads than the one that reads, which then has no response."""
        if (child := self._child) is not None:
            child.kill()

    def end(self) -> int:
        """Ends the child; its exit status."""
        child, self._child = self._child, None
        if child is None:
            return 0
        with contextlib.suppress(OSError):  # it may have ended in the middle of a request
            assert child.stdin is not None and child.stdout is not None
            child.stdout.close()
            child.stdin.close()
        try:
            return child.wait(timeout=1)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()


def _bounds(path: str) -> tuple[int, int]:
    """Bytes of memory and seconds of the processor."""
    size = unpacked_bytes(path)
    memory = min(BYTES_AT_MOST, BYTES_AT_LEAST + BYTES_A_BYTE * size)
    return memory, SECONDS_AT_LEAST + size // FILE_BYTES_A_SECOND


def unpacked_bytes(path: str) -> int:
    """About; 0 where there is no file, or it cannot be read."""
    try:
        with open(path, "rb", buffering=0, opener=open_without_waiting) as file:
            times = PACKED if file.read(2) == GZIP_MAGIC else 1
            return times * os.fstat(file.fileno()).st_size
    except OSError:  # its reader says so
        return 0


def _reason(status: int, bounded: bool) -> str:
    if status == -signal.SIGXCPU:
        return "it takes more time to read than a file of its size may"
    if status < 0:
        return f"reading it was ended {status_text(status)}"
    if status == OUT_OF_MEMORY:
        return "it takes more memory to read than " + (
            "a file of its size may" if bounded else "there is"
        )
    return f"its reader ended {status_text(status)}"
