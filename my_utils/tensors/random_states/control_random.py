"""Reuses the random numbers of one run in another: to compare two runs, or to resume one.

>>> import tempfile, torch
>>> folder = tempfile.TemporaryDirectory()
>>> ControlRandom.setup(folder.name)
>>> noise = ControlRandom.deal_with_random(True, "noise", torch.randn(4))
>>> went_on = torch.rand(2)

In the other run, or later:

>>> torch.equal(ControlRandom.deal_with_random(False, "noise"), noise)
True
>>> torch.equal(torch.rand(2), went_on)
True
>>> folder.cleanup()
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, ClassVar

from ...core.arguments import check_path
from ...core.plain_files import PlainFileError, load_plain, save_plain
from ...core.ranks import check_rank, current_rank
from ...core.reprs import short_repr
from ...core.warnings import warn_once
from ..dumps.form import key_name
from ._states import capture, decoded, encoded, restore

__all__ = ["ControlRandom"]

FORMAT = "my_utils.control_random"
VERSION = 1


class ControlRandom:
    """Saves and restores random states and data by a tag; all methods are of the class.

    A tag is a file, `<folder>/rank_<rank>/<tag>.pt`, which is complete or missing and which
    `torch.load(weights_only=True)` reads. It holds the states of the generators of Python, numpy,
    torch on the CPU and on its accelerator (at the time of `save_random`), and the data given.

    Data are None, numbers, text, bytes, tensors, numpy arrays, generators (`random.Random`,
    `numpy.random.Generator`, `torch.Generator`), and dicts, lists and tuples of those. Tensors
    come back on the CPU, generators as new ones in the same state.

    Thread-safe, except for the generators of Python, numpy and torch themselves, which threads
    share.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _folder: ClassVar[Path] = Path("control_random")
    _rank: ClassVar[int | None] = None
    _database: ClassVar[dict[str, dict[str, Any]]] = {}

    @classmethod
    def setup(
        cls, folder: str | os.PathLike[str] = "control_random", rank: int | None = None
    ) -> None:
        """Sets the folder of the files, and drops what `read_database` read.

        rank: that of this process; by default of the logger, torch.distributed or the launcher.
        """
        found = check_path("folder", folder)
        with cls._lock:
            cls._rank = None if rank is None else check_rank("rank", rank)
            cls._folder = found
            cls._database = {}

    @classmethod
    def save_random(cls, tag: str | int, random_data: Any = None) -> Path | None:
        """Saves the states of all generators and the data; returns the path.

        TypeError for data that cannot be saved. A file that cannot be written warns once, and
        None is returned.
        """
        payload = {
            "format": FORMAT,
            "version": VERSION,
            "tag": str(_check_tag(tag)),
            "rank": cls._own_rank(),
            "states": capture(),
            "data": encoded(random_data, "random_data"),
        }
        with cls._lock:
            cls._database.pop(str(tag), None)
        path = cls._path(tag)
        try:
            return save_plain(payload, path)
        except OSError as error:
            warn_once("control_random", f"random states could not be saved to {path}: {error}")
            return None

    @classmethod
    def read_database(cls, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Reads all files of this rank, and returns the data by their tags.

        path: a folder that `setup` was given in another run, the folder of one rank in it, or one
            file; by default the folder of this run. `load_random` searches first what was read
            here.

        FileNotFoundError if there is nothing, ValueError for a file that is none of these.
        """
        place = cls._folder if path is None else Path(path)
        files = [place] if place.is_file() else sorted(cls._home(place).glob("*.pt"))
        files = files or sorted(place.glob("*.pt"))
        if not files:
            raise FileNotFoundError(f"no random states of rank {cls._own_rank()} in {place}")
        found = {payload["tag"]: payload for payload in map(_read, files)}
        with cls._lock:
            cls._database = {**cls._database, **found}
        return {tag: decoded(payload["data"]) for tag, payload in found.items()}

    @classmethod
    def load_random(cls, tag: str | int, restore_states: bool = True) -> Any:
        """The data of a tag; the generators continue as they did after `save_random`.

        restore_states: False leaves the generators alone.

        KeyError for a tag that was not saved, ValueError for a file that is damaged.
        """
        with cls._lock:
            payload = cls._database.get(str(_check_tag(tag)))
        if payload is None:
            payload = cls._read_tag(tag)
        data = decoded(payload["data"])
        missing = restore(payload["states"]) if restore_states else []
        if missing:
            warn_once(
                "control_random devices",
                f"random states of {', '.join(missing)} are not restored: not here, or not in use",
            )
        return data

    @classmethod
    def deal_with_random(cls, save: bool, tag: str | int, random_data: Any = None) -> Any:
        """`save_random` and the data given when `save`, else the data that were saved.

        When loading, `random_data` may be the tensor that this run would have used: what was saved
        is then put on its device.
        """
        if save:
            cls.save_random(tag, random_data)
            return random_data
        data = cls.load_random(tag)
        device = getattr(random_data, "device", None)
        return data.to(device) if device is not None and hasattr(data, "to") else data

    # --- files ---

    @classmethod
    def _own_rank(cls) -> int:
        return current_rank() if cls._rank is None else cls._rank

    @classmethod
    def _home(cls, folder: Path) -> Path:
        return folder / f"rank_{cls._own_rank()}"

    @classmethod
    def _path(cls, tag: str | int) -> Path:
        return cls._home(cls._folder) / f"{key_name(tag)}.pt"

    @classmethod
    def _read_tag(cls, tag: str | int) -> dict[str, Any]:
        path = cls._path(tag)
        try:
            return _read(path)
        except FileNotFoundError:
            there = sorted(file.stem for file in path.parent.glob("*.pt"))
            raise KeyError(
                f"no random states were saved as {tag!r} in {path.parent}, "
                f"which has {', '.join(there) or 'none'}"
            ) from None

    def __repr__(self) -> str:
        return short_repr(self, "_folder", "_rank")


def _read(path: Path) -> dict[str, Any]:
    payload = load_plain(path, FORMAT, VERSION, "file of random states")
    for key, kind in (("tag", str), ("states", dict)):
        if not isinstance(payload.get(key), kind):
            raise PlainFileError(f"{path}: has no {key}")
    return {"data": None, **payload}


def _check_tag(tag: object) -> str | int:
    if isinstance(tag, bool) or not isinstance(tag, str | int):
        raise TypeError(f"tag must be a str or an int, not {tag!r:.100}")
    if tag == "":
        raise ValueError("tag must not be empty")
    return tag
