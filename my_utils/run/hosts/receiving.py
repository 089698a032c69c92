"""The files of another host, as they come in: in one folder, bounded, and of known names only."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...core.run_files.hosts import HOST_FILE, HOSTS_FOLDER, host_file
from ...core.run_files.sent_list import GROWING, WHOLE
from .wire import Refused

FILES_MAX = 20_000  # of a host
OTHERS_MAX = 256 << 20  # bytes of a host beside its rows
FREE_LEAST = 1 << 30  # bytes that a disk keeps
ID = re.compile(r"[0-9a-f]{16}")
_STATE = re.compile(r"run\.json|rank_\d+(?:\.w\d+)?\.heartbeat\.json")  # small: how ranks ended
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class HostFolder:
    """The folder of one sender in that of the run, which is made. All names are looked up in the
    folder itself, so that nothing is written anywhere else. OSError where the disk does not take
    it, Refused for what no sender asks. Not thread-safe.

    id, place: of the sender, and the number of its folder. rows_max: bytes of rows.
    """

    def __init__(self, run: Path, host: str, id: str, place: int, rows_max: int) -> None:
        if not ID.fullmatch(id):
            raise Refused("no id of a host")
        plain = _UNFIT.sub("_", host).strip("._-")[:64] or "host"
        self._host = host
        self._most = rows_max + OTHERS_MAX
        self._sizes: dict[str, int] = {}
        self._path = (str(run), HOSTS_FOLDER, f"{plain}-{id[:12]}{f'.{place}' if place else ''}")
        with self._opened():
            pass

    def put(self, name: str, at: int, data: bytes, *, fresh: bool, last: bool) -> bool:
        """Whether it was taken; False where that would exceed a bound. fresh: of a new file, which
        has no name for readers before its `last` piece."""
        self._check(name)
        target = f"{name}.new" if fresh else name  # which no reader takes for a file of a run
        is_first = fresh and not at
        size = 0 if is_first else self._sizes.get(target, 0)
        if at > size:  # less is one that came before, of which the sender has not heard
            raise Refused(f"a piece of {name} at {at}, after {size} bytes")
        new_size = max(size, at + len(data))
        others = sum(self._sizes.values()) - self._sizes.get(target, 0)
        if others + new_size > self._most or len(self._sizes) >= FILES_MAX:
            return False
        with self._opened() as folder:
            if not (_has_space(folder) or _STATE.fullmatch(name)):
                return False
            _write(folder, target, at, data, anew=is_first)
            self._sizes[target] = new_size
            if fresh and last:
                os.replace(target, name, src_dir_fd=folder, dst_dir_fd=folder)
                self._sizes[name] = self._sizes.pop(target)
        return True

    def drop(self, name: str) -> None:
        """The sender's oldest rows, which have no space any more."""
        self._check(name)
        if self._sizes.pop(name, None) is not None:
            with self._opened() as folder, contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)

    def note(self, ranks: Sequence[int], left_out: int, pause_s: float, *, complete: bool) -> None:
        """The sender has sent all that there is now, or for ever."""
        about = host_file(self._host, ranks, time.time(), left_out, pause_s, complete=complete)
        with self._opened() as folder:
            _write(folder, f"{HOST_FILE}.new", 0, about, anew=True)
            os.replace(f"{HOST_FILE}.new", HOST_FILE, src_dir_fd=folder, dst_dir_fd=folder)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The folder, which is made. It is not kept open: there may be more hosts than files that a
        process may have open."""
        folder = os.open(self._path[0], _FOLDER & ~os.O_NOFOLLOW)
        try:
            for name in self._path[1:]:
                above, folder = folder, _made_folder(name, folder)
                os.close(above)
            yield folder
        finally:
            os.close(folder)

    def _check(self, name: str) -> None:
        if not is_taken(name):
            raise Refused(f"no name of a file of a run: {name[:100]!r}")


def is_taken(name: str) -> bool:
    """Whether it is a file of a run that a host gives away as it grows.

    >>> is_taken("profile_rank_3.csv"), is_taken("run.json"), is_taken("replicas/rank_3.1.json")
    (True, True, True)
    >>> is_taken("../run.json"), is_taken("rank_3.12.34.journal")
    (False, False)
    """
    return (GROWING.fullmatch(name) or WHOLE.fullmatch(name)) is not None


def _has_space(folder: int) -> bool:
    found = os.fstatvfs(folder)
    return found.f_bavail * found.f_frsize > FREE_LEAST


def _write(folder: int, name: str, at: int, data: bytes, *, anew: bool) -> None:
    below, _, _ = name.rpartition("/")
    if below:
        os.close(_made_folder(below, folder))
    file = os.open(name, _WRITE | os.O_TRUNC if anew else _WRITE, 0o644, dir_fd=folder)
    try:
        view = memoryview(data)
        while view:
            view = view[os.pwrite(file, view, at + len(data) - len(view)) :]
    finally:
        os.close(file)


def _made_folder(name: str, above: int) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=above)
    return os.open(name, _FOLDER, dir_fd=above)
