"""Opening files in directories that other users can write to as well.

A file is ours if its owner is that of a new file that this process makes there, as in
csrc/engine/base/own_files.h.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import stat

HOLES_FREE = 64 << 20  # bytes that any file may have
HOLES_TIMES = 50  # and for each that is on the disk
_PIECES_MAX = 10_000  # of a file between its holes that are counted
_NO_FILE = "no regular file"


def own_user(folder: str | os.PathLike[str]) -> int:
    """The number of the owner of new files in the folder: the server of a network file system may
    have another one for the process. The process's own where no file can be made."""
    import tempfile  # readers of files do without it, and it takes its time

    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_uid
    except OSError:
        return os.geteuid()


def own_temporary_folder() -> str:
    """The folder `my_utils-UID` of this user in that for temporary files, with mode 0700. All
    processes of the user find the same one: where another user has taken the name, or others can
    write to the folder, it is the first of `my_utils-UID-1`, `my_utils-UID-2` … that is ours.
    OSError if none can be made."""
    import tempfile

    first = os.path.join(tempfile.gettempdir(), f"my_utils-{os.geteuid()}")
    for turn in itertools.count():
        path = f"{first}-{turn}" if turn else first
        try:
            os.mkdir(path, 0o700)
            return path
        except FileExistsError:
            if is_own_folder(path):
                return path
    raise AssertionError("the names have no end")


def is_own_folder(path: str) -> bool:
    """Whether it is a folder of ours, no link to one, to which no other user can write."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and not found.st_mode & 0o022
        and _is_ours(found, os.path.dirname(path))
        and os.access(path, os.W_OK | os.X_OK)
    )


def open_without_waiting(path: str | os.PathLike[str], flags: int) -> int:
    """As `os.open` and as an opener, for readers of a regular file, whoever owns it. OSError for
    any other, such as a FIFO, whose writer one would wait for, or a device, which may have no end
    and which is not opened at all."""
    _check_regular(os.stat(path), path)
    file = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _check_regular(os.fstat(file), path)
    except BaseException:
        os.close(file)
        raise
    return file


def open_filled(path: str | os.PathLike[str], flags: int) -> int:
    """As `open_without_waiting`, for a file that is read from end to end: OSError for one that is
    next to all holes, too."""
    file = open_without_waiting(path, flags)
    try:
        _check_filled(file, path)
    except BaseException:
        os.close(file)
        raise
    return file


def open_filled_or_pipe(path: str | os.PathLike[str], flags: int) -> int:
    """As `open_filled`, for what a user names, which may be a pipe too, such as that of a shell's
    `<(…)`, whose writer is waited for. OSError for a device, which is not opened at all."""
    if not stat.S_ISFIFO(os.stat(path).st_mode):
        return open_filled(path, flags)
    file = os.open(path, flags | os.O_NOCTTY)
    try:
        if not stat.S_ISFIFO(os.fstat(file).st_mode):  # it has another name by now
            raise OSError(errno.EINVAL, _NO_FILE, os.fspath(path))
    except BaseException:
        os.close(file)
        raise
    return file


def _check_filled(file: int, path: str | os.PathLike[str]) -> None:
    """OSError for an open file that is next to all holes: it takes no disk, and as long to read as
    if it were full."""
    size, on_disk = _bytes_of(file)
    if size > HOLES_FREE + HOLES_TIMES * on_disk:
        reason = f"of its {size} bytes only {on_disk} are on the disk"
        raise OSError(errno.EFBIG, reason, os.fspath(path))


def _bytes_of(file: int) -> tuple[int, int]:
    """Of the whole file, and of what is no hole. A file system that packs files has fewer blocks
    for one, and says where its holes are; one that does not know says that there are none."""
    found = os.fstat(file)
    filled = found.st_blocks * 512
    if found.st_size <= HOLES_FREE + HOLES_TIMES * filled:
        return found.st_size, filled
    filled = end = 0
    for _ in range(_PIECES_MAX):
        try:
            begin = os.lseek(file, end, os.SEEK_DATA)
            end = os.lseek(file, begin, os.SEEK_HOLE)
        except OSError:  # a hole up to the end
            break
        filled += end - begin
    os.lseek(file, 0, os.SEEK_SET)
    return found.st_size, filled


def _check_regular(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, _NO_FILE, os.fspath(path))


def open_own(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """As `os.open` and as an opener, for a regular file of ours. PermissionError for a symbolic
    link, and for a file that is not regular, has another name too, or belongs to another user."""
    try:
        file = above_streams(
            os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, mode)
        )
    except OSError as error:
        if error.errno not in _KINDS:
            raise
        raise _refusal(path, _KINDS[error.errno]) from None
    try:
        reason = _foreign(os.fstat(file), path)
        if reason:
            raise _refusal(path, reason)
    except BaseException:
        os.close(file)
        raise
    return file


def above_streams(file: int) -> int:
    """The same file under a number above those of the standard streams. Where a program has closed
    a stream, what it prints would get into the file."""
    if file > _STDERR:
        return file
    try:
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
    finally:
        os.close(file)


_STDERR = 2
_KINDS = {errno.ELOOP: "a symbolic link", errno.ENXIO: _NO_FILE}


def _foreign(found: os.stat_result, path: str | os.PathLike[str]) -> str:
    """Why a file is not ours to write to, "" where it is."""
    if not stat.S_ISREG(found.st_mode):
        return _NO_FILE
    if found.st_nlink > 1:
        return "a hard link: it has another name too"
    if not _is_ours(found, os.path.dirname(path)):
        return f"of another user (uid {found.st_uid})"
    return ""


def _is_ours(found: os.stat_result, folder: str | os.PathLike[str]) -> bool:
    return found.st_uid == os.geteuid() or found.st_uid == own_user(folder or ".")


def _refusal(path: str | os.PathLike[str], reason: str) -> PermissionError:
    return PermissionError(errno.EPERM, f"not ours to write to: {reason}", os.fspath(path))
