"""Opens the output that the user named: one function for files, pipes and devices.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     with open_output(f"{folder}/report.html") as file:
...         _ = file.write(b"<p>fine")
...     open(f"{folder}/report.html").read()
'<p>fine'
>>> check_suffix("report.pdf", (".html", ".json"))
Traceback (most recent call last):
    ...
ValueError: report.pdf: unknown suffix '.pdf'; known are .html and .json
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import IO, Any

    StrPath = str | os.PathLike[str]


STANDARD_OUTPUT = "-"
LINKS_MAX = 40  # as many as the kernel follows

_DESCRIPTORS = re.compile(r"/proc/\d+(?:/task/\d+)?/fd")


@contextlib.contextmanager
def open_output(path: StrPath) -> Iterator[IO[bytes]]:
    """A file to write bytes to, for a path that a user gave.

    path: a regular file, or a name that is free, gets its content once the block has ended, and
        only if nothing was raised: before that the old content stays. Links are followed to their
        file. Devices, FIFOs and descriptors (`/dev/stdout`) are written to directly, and so is
        standard output, which `-` names.

    Raises OSError with the path as it was given, IsADirectoryError for a directory. The file has a
    descriptor. Thread-safe.
    """
    given = os.fspath(path)
    check_output(given)
    direct = _opened_directly(given)
    if direct is not None:
        with _buffered(direct, given) as file:
            yield file
        return
    from .files import on_whole_path  # which brings pathlib, and that takes its time

    target = os.path.realpath(given)
    in_block = False
    try:
        with on_whole_path(target, _mode_of(target)) as temporary:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CLOEXEC)
            with _buffered(descriptor, given) as file:
                in_block = True
                yield file
                in_block = False
    except OSError as error:
        if in_block:  # its own, which may be about another file
            raise
        raise _named(error, given) from error


def check_output(path: StrPath) -> None:
    """Raises OSError for a path to which nothing can be written, before work is spent on it: a
    directory, a link to itself, a folder that is not there.

    >>> check_output("/tmp")
    Traceback (most recent call last):
        ...
    IsADirectoryError: [Errno 21] Is a directory: '/tmp'
    """
    given = os.fspath(path)
    if given == STANDARD_OUTPUT:
        return
    try:
        is_folder = stat.S_ISDIR(os.stat(given).st_mode)
    except FileNotFoundError:
        is_folder = given.endswith("/")
        if not is_folder:
            _check_parent(given)
    if is_folder:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), given)


def check_suffix(path: StrPath, known: Sequence[str]) -> str:
    """The one of the suffixes `known` with which the path ends; "" for standard output, pipes and
    devices, whose names say nothing. ValueError lists the known ones."""
    given = os.fspath(path)
    if is_stream(given):
        return ""
    name = os.path.basename(given).lower()
    for suffix in sorted(known, key=len, reverse=True):
        if name.endswith(suffix) and name != suffix:
            return suffix
    found = os.path.splitext(name)[1]
    what = f"unknown suffix {found!r}" if found else "a suffix is missing"
    listed = " and ".join(filter(None, [", ".join(known[:-1]), *known[-1:]]))
    raise ValueError(f"{given}: {what}; known are {listed}")


def is_stream(path: StrPath) -> bool:
    """Whether it is standard output, or exists and is neither a file nor a directory."""
    given = os.fspath(path)
    if given == STANDARD_OUTPUT:
        return True
    try:
        mode = os.stat(given).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or _own_descriptor(given) is not None


def _check_parent(given: str) -> None:
    folder = os.path.dirname(os.path.realpath(given))
    try:
        is_folder = stat.S_ISDIR(os.stat(folder).st_mode)
    except OSError as error:
        raise _named(error, given) from error
    if not is_folder:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), given)


def _opened_directly(given: str) -> int | None:
    """A descriptor of what must not be replaced; None for regular files and free names."""
    try:
        if given == STANDARD_OUTPUT:
            return _own_copy(1)
        number = _own_descriptor(given)
        if number is not None:
            return _own_copy(number)
        if is_stream(given):
            return os.open(given, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise _named(error, given) from error
    return None


def _own_copy(number: int) -> int:
    import sys

    if number == 1 and sys.stdout is not None:
        sys.stdout.flush()  # what was printed before comes first
    return os.dup(number)


def _own_descriptor(path: str) -> int | None:
    """The number that a path such as /dev/stdout or /dev/fd/3 leads to."""
    for _ in range(LINKS_MAX):
        folder, name = os.path.split(path)
        if name.isdecimal() and _DESCRIPTORS.fullmatch(os.path.realpath(folder)):
            return int(name)
        try:
            path = os.path.join(folder, os.readlink(path))
        except OSError:  # no link
            return None
    return None


def _mode_of(target: str) -> int | None:
    try:
        return stat.S_IMODE(os.stat(target).st_mode)
    except OSError:
        return None


def _buffered(descriptor: int, given: str) -> io.BufferedWriter:
    return io.BufferedWriter(_NamedFile(descriptor, given))


class _NamedFile(io.FileIO):
    """A file whose errors name the path that the user gave."""

    def __init__(self, descriptor: int, given: str) -> None:
        super().__init__(descriptor, "wb")
        self._given = given

    def write(self, data: Any) -> int:
        written: int = self._call(lambda: super(_NamedFile, self).write(data))
        return written

    def close(self) -> None:
        self._call(super().close)

    def _call(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except OSError as error:
            raise _named(error, self._given) from error


def _named(error: OSError, given: str) -> OSError:
    if error.errno is None:
        return error
    return OSError(error.errno, os.strerror(error.errno), given)
