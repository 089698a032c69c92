"""Reading files that other processes wrote: bounded, and without waiting."""

from __future__ import annotations

import gzip
import os
from typing import IO, cast

from .trusted_open import open_filled, open_without_waiting

GZIP_MAGIC = b"\x1f\x8b"
UNPACKED_FREE = 16 << 20  # bytes that any file of gzip may hold
UNPACKED_TIMES = 50  # and for each of its own; traces have 22 at most, and zeros 1,030


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file of any size. OSError for one that is next to all holes, and for
    all else, such as a device without an end."""
    with open(path, "rb", opener=open_filled) as file:
        return file.read()


def read_whole(path: str | os.PathLike[str], bytes_max: int, what: str) -> tuple[bytes, float]:
    """The bytes of a regular file that is not larger than it may be, and when it was written.
    OSError if it cannot be read, ValueError where it is too large."""
    with open(path, "rb", opener=open_without_waiting) as file:
        status = os.fstat(file.fileno())
        data = file.read(min(status.st_size, bytes_max) + 1)
        if data and len(data) > status.st_size:  # it has grown
            data += file.read(bytes_max + 1 - len(data))
    if len(data) > bytes_max:
        raise ValueError(f"larger than {bytes_max} bytes: not {what}")
    return data, status.st_mtime


class Unpacked:
    """A file of gzip, read from its beginning; it need not be seekable. Has what `gzip` raises, and
    ValueError where it holds far more than traces and texts of its size do."""

    def __init__(self, file: IO[bytes]) -> None:
        self._packed = _Counted(file)
        self._unpacked = gzip.GzipFile(fileobj=cast("IO[bytes]", self._packed))
        self._bytes = 0

    def read(self, size: int) -> bytes:
        data = self._unpacked.read(size)
        self._bytes += len(data)
        if self._bytes > UNPACKED_FREE + UNPACKED_TIMES * self._packed.bytes:
            raise ValueError(f"unpacks to more than {UNPACKED_TIMES} times its size")
        return data


class _Counted:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.bytes = 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.bytes += len(data)
        return data


def describe(error: BaseException) -> str:
    """What is wrong with a file, without its name."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.strerror or os.strerror(error.errno)
    if isinstance(error, KeyError):
        return f"no {error.args[0]!r} in it"
    return str(error) or type(error).__name__
