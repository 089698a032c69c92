"""Runs parsers of other packages on untrusted files: in a child process, with limits.

A file that makes the parser crash, hang or ask for memory without end costs a child, and is
reported. The child is started at the first file, and again after one that ended it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
from typing import Any

BYTES_AT_LEAST = 512 << 20  # of memory
BYTES_AT_MOST = 4 << 30
BYTES_A_BYTE = 24  # of memory for one of the file
SECONDS_AT_LEAST = 2  # of the processor
FILE_BYTES_A_SECOND = 4 << 20
RESPONSE_BYTES_MAX = 1 << 30

_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
    "from my_utils.core.reader_child import serve; serve(sys.argv[2])"
)


class ReaderEnded(ValueError):
    """The child did not live to read the file. The message says why."""


class Reader:
    """Calls a function in a child, such as "my_utils.analysis.live.flight_files:read_dump". One
    thread at a time; a context manager that ends the child."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def read(self, path: str, *arguments: Any) -> Any:
        """What the function returns for `*arguments, path`. Numbers and texts are passed, and plain
        classes come back. ReaderEnded where the file took more than its size allows, or crashed
        the child."""
        child = self._child = self._child or self._start()
        request = {"arguments": [*arguments, path], **_bounds(path)}
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
            head = child.stdout.read(8)
            length = int.from_bytes(head, "little")
            if len(head) == 8 and length <= RESPONSE_BYTES_MAX:
                response = child.stdout.read(length)
                if len(response) == length:
                    return pickle.loads(response)
        except BrokenPipeError:
            pass
        except BaseException:
            self._end()  # what is left in the pipe belongs to this request
            raise
        raise ReaderEnded(_reason(self._end()))

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CHILD, json.dumps(sys.path), self._function],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def _end(self) -> int:
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


def _bounds(path: str) -> dict[str, int]:
    try:
        size = os.stat(path).st_size
    except OSError:  # the child says so
        size = 0
    return {
        "bytes": min(BYTES_AT_MOST, BYTES_AT_LEAST + BYTES_A_BYTE * size),
        "seconds": SECONDS_AT_LEAST + size // FILE_BYTES_A_SECOND,
    }


def _reason(status: int) -> str:
    if status == -signal.SIGXCPU:
        return "it takes more time to read than a file of its size may"
    if status < 0:
        return f"reading it ends in {signal.Signals(-status).name}"
    return "it takes more memory to read than a file of its size may"
