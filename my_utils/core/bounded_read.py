"""Reading files that other processes wrote: bounded, and without waiting."""

from __future__ import annotations

import os

from .trusted_open import open_without_waiting


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


def describe(error: BaseException) -> str:
    """What is wrong with a file, without its name."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.strerror or os.strerror(error.errno)
    if isinstance(error, KeyError):
        return f"no {error.args[0]!r} in it"
    return str(error) or type(error).__name__
