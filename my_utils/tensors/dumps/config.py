"""The settings of a dump: what it contains and where it goes."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ...core.arguments import check_bool, check_choice, check_int, check_str
from ...core.public import public
from .images import IMAGE_MODES

DEFAULT_ROOT = "./dump_dataset"
_LIMITS = ("max_string", "max_items", "max_tensor_elements")


def path_text(name: str, value: object) -> str:
    """The path as a text; TypeError or ValueError names the argument."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} must be a str or a path, not {value!r}")
    path = os.fspath(value)
    if not isinstance(path, str) or not path or "\0" in path:
        raise ValueError(f"{name} must be a path that is not empty and has no NUL, not {path!r}")
    return path


@public("my_utils.dump_utils")
@dataclass
class DumpConfig:
    """What a `UniversalDumper` writes, where and how.

    root_dir: folder of the dumps; it is made when the first one is written.
    enable: False makes `dump` do nothing and return None.
    save_tensor_cpu: tensors come back on the CPU. With False the device of a tensor is stored, and
        the loader puts the tensor there if the device exists.
    max_string: characters of a str, and bytes of a bytes, beyond which it is cut; None: never.
    max_items: the same for the items of lists, tuples, sets and dicts, and of what derives from
        them.
    max_tensor_elements: the same for the elements of a tensor or an array, of which the first ones
        in row-major order are kept, as a tensor of one dimension.
    max_depth: how deep containers may be nested; a note replaces what is deeper, as it does a value
        that cannot be dumped.
    image_format: "png", "tiff", "bmp", "webp" (all of them without loss) or "jpeg", for PIL images.
        Modes that the format lacks are stored as plain pixels.
    asynchronous: `dump` copies, and a thread hashes and writes; see `UniversalDumper`.
    queue_bytes: memory of the dumps that wait to be written, beyond which `dump` waits.
    fsync: wait until the disk has a dump, so that it survives a loss of power, too. Without it a
        dump survives the death of the process, but not a power loss.
    strict: raise instead of one warning and a count.

    What was cut is marked in the tree and counted in the manifest, and the loader warns of it.

    >>> DumpConfig(root_dir="./dump_dataset", enable=True, save_tensor_cpu=True).image_format
    'png'
    >>> DumpConfig(max_items=0)
    Traceback (most recent call last):
    ValueError: max_items must be at least 1, not 0
    """

    root_dir: str | os.PathLike[str] = DEFAULT_ROOT
    enable: bool = True
    save_tensor_cpu: bool = True
    max_string: int | None = None
    max_items: int | None = None
    max_tensor_elements: int | None = None
    max_depth: int = 100
    image_format: str = "png"
    asynchronous: bool = False
    queue_bytes: int = 1 << 30
    fsync: bool = False
    strict: bool = False

    def __post_init__(self) -> None:
        path_text("root_dir", self.root_dir)
        for name in ("enable", "save_tensor_cpu", "asynchronous", "fsync", "strict"):
            check_bool(name, getattr(self, name))
        for name in _LIMITS:
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), 1, or_none=True)
        check_int("max_depth", self.max_depth, 1)
        check_int("queue_bytes", self.queue_bytes, 1)
        self.image_format = (
            check_str("image_format", self.image_format).lower().replace("jpg", "jpeg")
        )
        check_choice("image_format", self.image_format, IMAGE_MODES)
