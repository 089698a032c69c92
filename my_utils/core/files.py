"""Files that are complete or missing: written under another name, then renamed; and names of
folders for libraries that take only UTF-8."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .printable import escaped

NAME_END = 48  # letters, of which UTF-8 makes four bytes each
RANDOM_BYTES = 8


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file that is at `path` once the block has ended, and only if nothing was raised."""
    with on_whole_path(path) as temporary, open(temporary, "wb") as file:
        yield file


@contextlib.contextmanager
def on_whole_path(path: str | os.PathLike[str], mode: int | None = None) -> Iterator[Path]:
    """An empty file to write by its name, which ends as `path` does; as `atomic_write` otherwise.

    mode: the permissions of the file, by default those of a new one.
    """
    target = Path(path)
    name = _new_file(target)
    try:
        yield Path(name)
        os.chmod(name, 0o666 & ~_umask() if mode is None else mode)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


@contextlib.contextmanager
def utf8_path(folder: str) -> Iterator[str]:
    """A path of the folder that is UTF-8, for this process and while the block runs."""
    if escaped(folder) == folder:
        yield folder
        return
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def _new_file(target: Path) -> str:
    """An empty file next to `target`, which only its owner may read. tempfile would make it too,
    but brings every kind of compression."""
    ending = f".{target.name}"[-NAME_END:]  # a name may be as long as the file system allows
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        name = os.path.join(target.parent, f".{os.urandom(RANDOM_BYTES).hex()}{ending}")
        with contextlib.suppress(FileExistsError):
            os.close(os.open(name, flags, 0o600))
            return name


def _umask() -> int:
    """Reads it from Linux. os.umask() would set it, which another thread would notice."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022
