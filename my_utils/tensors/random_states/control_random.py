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
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from ...core.arguments import check_path, check_switch
from ...core.extras import needs_torch
from ...core.plain_copy import plain_copy
from ...core.plain_files import PlainFileError, load_plain, save_plain
from ...core.ranks import check_rank, current_rank
from ...core.reprs import short_repr
from ...core.warnings import warn_once
from ..dumps.form import key_name

FORMAT = "my_utils.control_random"
VERSION = 1
KIND = "__kind__"


class ControlRandom:
    """Saves and restores random states and data by a tag; all methods are class methods.

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

        path: a folder that was passed to `setup` in another run, the folder of one rank in it, or
            one file; by default the folder of this run. `load_random` searches first what was read
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
        """With `save`, calls `save_random` and returns the data given; else returns the saved data.

        When loading, `random_data` may be the tensor that this run would have used: what was saved
        is then put on its device. TypeError unless `save` is, or stands for, a bool.
        """
        if check_switch("save", save):
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


# --- the states of all random generators of the process ---


def capture() -> dict[str, Any]:
    """The states of Python, of numpy where it is loaded, of torch on the CPU and on accelerators
    that are in use.

    >>> import random
    >>> states = capture()
    >>> first = random.random()
    >>> restore(states)
    []
    >>> random.random() == first
    True
    """
    with needs_torch("ControlRandom"):
        import torch

    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = encoded(numpy.random.get_state(legacy=False), "numpy")
    for kind, module in _accelerators():
        states[kind] = module.get_rng_state_all()
    return states


def restore(states: dict[str, Any]) -> list[str]:
    """Puts the states back; says which could not be."""
    with needs_torch("ControlRandom"):
        import torch

    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        import numpy

        numpy.random.set_state(decoded(states["numpy"]))
    modules = dict(_accelerators())
    troubles = []
    for kind in states.keys() - {"python", "torch", "numpy"}:
        saved, here = states[kind], modules.get(kind)
        count = 0 if here is None else min(len(saved), here.device_count())
        for device in range(count):
            modules[kind].set_rng_state(saved[device], device)
        if count < len(saved):
            troubles.append(f"{len(saved) - count} of {len(saved)} {kind} devices")
    return troubles


def _accelerators() -> list[tuple[str, Any]]:
    """The kind of device and torch's module for it, where it has generators and is in use."""
    import torch

    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return []
    module = torch.get_device_module(accelerator)
    in_use = getattr(module, "is_initialized", bool)()
    return [(accelerator.type, module)] if in_use and hasattr(module, "get_rng_state_all") else []


# --- values that a file of `core.plain_files` does not know, as dicts with the key `__kind__` ---


def encoded(value: Any, name: str) -> Any:
    """The value as `plain_copy` makes it, with arrays and generators marked."""
    return plain_copy(_marked(value, name), name)


def _marked(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        items = {key: _marked(item, f"{name}[{key!r}]") for key, item in value.items()}
        return {KIND: "dict", "items": items} if KIND in value else items
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_marked(item, f"{name}[{i}]") for i, item in enumerate(value))
    if isinstance(value, random.Random):
        return {KIND: "random.Random", "state": value.getstate()}
    return _marked_of_packages(value, name)


def _marked_of_packages(value: Any, name: str) -> Any:
    import torch

    if isinstance(value, torch.Generator):
        return {KIND: "torch.Generator", "device": str(value.device), "state": value.get_state()}
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return value
    if isinstance(value, numpy.ndarray):
        if value.dtype.hasobject or value.dtype.names is not None:
            raise TypeError(f"{name} is an array of {value.dtype}, which cannot be saved")
        array = numpy.ascontiguousarray(value)
        raw = torch.frombuffer(bytearray(array.tobytes()), dtype=torch.uint8) if array.size else 0
        return {KIND: "ndarray", "dtype": array.dtype.str, "shape": value.shape, "bytes": raw}
    if isinstance(value, numpy.random.Generator):
        return {KIND: "numpy.Generator", "state": _marked(value.bit_generator.state, name)}
    return value


def decoded(value: Any) -> Any:
    """What `encoded` was given; tensors are on the CPU, generators are new ones."""
    if isinstance(value, list | tuple):
        return type(value)(map(decoded, value))
    if not isinstance(value, dict):
        return value
    make = _MAKERS.get(str(value.get(KIND)))
    return _dict(value) if make is None else make(value)


def _dict(value: dict[str, Any]) -> dict[str, Any]:
    """One that has the key `__kind__` itself is among the items of another."""
    items = value["items"] if value.get(KIND) == "dict" else value
    return {key: decoded(item) for key, item in items.items()}


def _python_generator(value: dict[str, Any]) -> random.Random:
    generator = random.Random()
    version, words, gauss = value["state"]
    generator.setstate((version, tuple(words), gauss))
    return generator


def _torch_generator(value: dict[str, Any]) -> Any:
    import torch

    generator = torch.Generator(value["device"])
    generator.set_state(value["state"])
    return generator


def _numpy_generator(value: dict[str, Any]) -> Any:
    import numpy

    state = decoded(value["state"])
    kinds = {kind.__name__: kind for kind in numpy.random.BitGenerator.__subclasses__()}
    bits = kinds[state["bit_generator"]]()
    bits.state = state
    return numpy.random.Generator(bits)


def _array(value: dict[str, Any]) -> Any:
    import numpy

    dtype = numpy.dtype(value["dtype"])
    raw = b"" if isinstance(value["bytes"], int) else value["bytes"].numpy().tobytes()
    return numpy.frombuffer(raw, dtype).reshape(value["shape"]).copy()


_MAKERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "random.Random": _python_generator,
    "torch.Generator": _torch_generator,
    "numpy.Generator": _numpy_generator,
    "ndarray": _array,
}
