"""The folder that a port writes: atomic files, and never a folder of the user.

A marker in the folder lists what a port made there. Without it nothing is written into a folder
that has something in it; with it a further run rewrites what has changed, so that builds stay
incremental, and takes away what it made before and makes no longer.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from ..core.files import atomic_write, on_whole_path
from ._port_tree import MARKER, Entry, Plan

COPIED = 1 << 20  # bytes at a time


class Output:
    """The folder at `root`, which need not be there yet. `put` may be called from many threads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made_before = self._read_marker()

    def check_is_ours(self) -> None:
        """FileExistsError for a folder with something in it that no port has made."""
        if self.made_before is None and os.path.lexists(self.root) and not self._is_empty():
            raise FileExistsError(
                f"{self.root} is there, and was not made by simple_porting (it has no {MARKER}): "
                "nothing was written; move it away, or delete it yourself"
            )

    def begin(self, plan: Plan) -> None:
        """Makes the folders. From here on the marker says that the output is a port's."""
        self.check_is_ours()
        self.root.mkdir(parents=True, exist_ok=True)
        self._write_marker({*plan.made, *(self.made_before or ())})
        for folder in plan.folders:
            path = self.root / folder.new
            path.mkdir(exist_ok=True)
            path.chmod(folder.mode | stat.S_IRWXU)

    def put(self, entry: Entry, pieces: Iterable[bytes]) -> bool:
        """Writes a file with its mode, unless it is there like that; whether it did.

        Nothing is written as long as the pieces are equal. After an exception the file is as it
        was.
        """
        path, left, same = self.root / entry.new, iter(pieces), 0
        with _opened(path, entry.mode) as old:
            for piece in left:
                if old is None or old.read(len(piece)) != piece:
                    left = itertools.chain([piece], left)
                    break
                same += len(piece)
            else:
                if old is not None and not old.read(1):
                    return False
            with on_whole_path(path, entry.mode) as temporary, open(temporary, "wb") as new:
                if old is not None:
                    old.seek(0)
                    for start in range(0, same, COPIED):
                        new.write(old.read(min(COPIED, same - start)))
                new.writelines(left)
        return True

    def holds(self, entry: Entry, pieces: Iterable[bytes]) -> bool:
        """Whether the file is there with these bytes and its mode; takes all pieces."""
        is_same = True
        with _opened(self.root / entry.new, entry.mode) as old:
            for piece in pieces:
                is_same = is_same and old is not None and old.read(len(piece)) == piece
            return is_same and old is not None and not old.read(1)

    def put_link(self, entry: Entry) -> bool:
        """Makes a link, unless it is there; whether it did."""
        path = self.root / entry.new
        if self.holds_link(entry):
            return False
        assert entry.link is not None
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        os.symlink(entry.link, temporary)
        os.replace(temporary, path)
        return True

    def holds_link(self, entry: Entry) -> bool:
        try:
            return os.readlink(self.root / entry.new) == entry.link
        except OSError:
            return False

    def stale(self, plan: Plan) -> list[str]:
        """What an earlier port made and this one does not."""
        return sorted(set(self.made_before or ()) - set(plan.made))

    def finish(self, plan: Plan) -> list[str]:
        """Takes away what is stale, sets the modes of folders; returns what was taken away."""
        stale = self.stale(plan)
        for name in stale:
            with contextlib.suppress(OSError):
                (self.root / name).unlink()
            self._remove_empty_folders(Path(name).parent, {folder.new for folder in plan.folders})
        self._write_marker(plan.made)
        for folder in reversed(plan.folders):
            (self.root / folder.new).chmod(folder.mode)
        return stale

    def _remove_empty_folders(self, folder: Path, kept: set[str]) -> None:
        while str(folder) != "." and str(folder) not in kept:
            try:
                (self.root / folder).rmdir()
            except OSError:  # something of the user's own is in it
                return
            folder = folder.parent

    def _is_empty(self) -> bool:
        if not self.root.is_dir():
            return False
        with os.scandir(self.root) as entries:
            return next(entries, None) is None

    def _read_marker(self) -> list[str] | None:
        try:
            made = json.loads((self.root / MARKER).read_bytes())["made"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if not isinstance(made, list) or not all(isinstance(name, str) for name in made):
            return None
        # A marker that somebody changed must not lead out of the folder.
        return [
            name for name in made if not os.path.isabs(name) and os.pardir not in Path(name).parts
        ]

    def _write_marker(self, made: Iterable[str]) -> None:
        content = {"made_by": "my_utils.musa.simple_porting", "made": sorted(made)}
        with atomic_write(self.root / MARKER) as file:
            file.write(json.dumps(content, indent=0).encode())


@contextlib.contextmanager
def _opened(path: Path, mode: int) -> Iterator[BinaryIO | None]:
    """A regular file with this mode; None for anything else."""
    try:
        info = path.lstat()
        if not stat.S_ISREG(info.st_mode) or stat.S_IMODE(info.st_mode) != mode:
            raise FileNotFoundError
        file = open(path, "rb")  # noqa: SIM115
    except OSError:
        yield None
        return
    with file:
        yield file
