"""`.pt` files of plain values: complete or missing, and read without executing any code.

Such a file is what `torch.save` writes for a dict with the keys `format` and `version`; later
versions only add keys.

>>> import os, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = save_plain({"format": "example", "version": 1, "x": 2}, os.path.join(folder, "x.pt"))
...     load_plain(path, "example", 1, "example")["x"]
2
"""

from __future__ import annotations

import os
import pickletools
import re
import zipfile
from pathlib import Path
from typing import IO, Any

from .extras import needs_torch
from .files import atomic_write
from .printable import printable
from .trusted_open import open_without_waiting

DEPTH_MAX = 300
EXPANDED_MAX = 1 << 28  # values, each counted as often as it is reached
KEY_MAX = 1000  # values in one key


class PlainFileError(ValueError):
    """A file that is not what was asked for. The message names the file and the reason."""


def save_plain(payload: dict[str, Any], path: str | os.PathLike[str]) -> Path:
    """Writes the file next to its place under another name, then renames it. Folders are made as
    needed. OSError if it cannot be written. The values: see `plain_copy`."""
    import torch

    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as out:
        torch.save(payload, out)
        out.flush()
        os.fsync(out.fileno())
    return target


def load_plain(
    path: str | os.PathLike[str], format: str, version: int, what: str
) -> dict[str, Any]:
    """The dict of a file of this format; tensors come to the CPU.

    version: the newest that is understood. what: the word for such a file in messages.

    PlainFileError for a file that is cut short, damaged (every entry has a CRC-32), of another
    kind, or of a later version; OSError if there is no such file.
    """
    file = Path(path)
    with open(file, "rb", opener=open_without_waiting):
        pass  # what the system has to say about it comes first
    try:
        with open(file, "rb", opener=open_without_waiting) as opened:
            check_archive(opened, what)
        return _read_pickle(file, format, version, what)
    except PlainFileError as error:
        raise PlainFileError(f"{file}: {error}") from None


def check_archive(file: IO[bytes], what: str, *, with_crc: bool = True) -> None:
    """torch's reader trusts the file, so its entries are checked first. PlainFileError, without the
    file's name. with_crc: reads all of it for that; False reads its pickle only."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise PlainFileError("has compressed entries, which torch.save does not write")
            if sum(entry.file_size for entry in entries) > file.seek(0, os.SEEK_END):
                raise PlainFileError("has entries that are longer than the file")
            bad = archive.testzip() if with_crc else None
            if bad is None:
                _check_pickles(archive, entries)
    except PlainFileError:
        raise
    except OutOfBounds as error:
        raise PlainFileError(f"is not a {what}, damaged, or malicious: {error}") from None
    except Exception as error:  # zipfile has many ways to say that it is not a zip
        raise PlainFileError(f"is cut short, damaged or no {what} ({error})") from None
    if bad is not None:
        raise PlainFileError(f"is damaged: {bad} does not have the CRC-32 that is noted for it")


def _check_pickles(archive: zipfile.ZipFile, entries: list[zipfile.ZipInfo]) -> None:
    """torch finds entries without regard to upper and lower case."""
    names = [entry.filename.lower() for entry in entries]
    if len(set(names)) < len(names):
        raise PlainFileError("has two entries of one name")
    for entry in entries:
        if entry.filename.lower().endswith(".pkl"):
            check_pickle(archive.read(entry))


def _read_pickle(file: Path, format: str, newest: int, what: str) -> dict[str, Any]:
    with needs_torch(f"a {what}"):
        import torch

    try:
        payload = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # what its parser raises depends on where the damage is
        foreign = foreign_class(error)
        if foreign:
            raise PlainFileError(f"is not a {what}: it holds objects of {foreign}") from None
        raise PlainFileError(f"cannot be read as plain data ({first_line(error)})") from None
    if not isinstance(payload, dict) or payload.get("format") != format:
        raise PlainFileError(f"is not a {what}: it has no format {format!r}")
    version = payload.get("version")
    if type(version) is not int or version < 1:
        raise PlainFileError(f"has the version {version!r}, which is not a number above 0")
    if version > newest:
        raise PlainFileError(f"has version {version}; this my_utils reads {newest} and below")
    return payload


def foreign_class(error: Exception) -> str:
    """The class for which torch refuses to load a file as plain data, "" if there is none."""
    found = re.search(r"GLOBAL (\S+)", str(error))
    return printable(found[1]) if found else ""


def first_line(error: Exception) -> str:
    return printable(str(error).strip().partition("\n")[0][:300])


# --- the pickle in it ---


class OutOfBounds(ValueError):
    """A pickle that would take too much memory, time or depth, or is none of plain data."""


class _Value:
    """What an operation made: how deep it is nested, and of how many values it consists."""

    __slots__ = ("depth", "expanded", "held", "kind")

    def __init__(self, kind: str = "") -> None:
        self.depth = 1
        self.expanded = 1
        self.held = False  # in another one: it must not grow any more
        self.kind = kind

    def add(self, part: _Value) -> None:
        if self.held:
            raise OutOfBounds("a value in it contains itself, or grows after its container")
        part.held = True
        self.depth = max(self.depth, part.depth + 1)
        self.expanded += part.expanded
        if self.depth > DEPTH_MAX:
            raise OutOfBounds(f"it is nested more than {DEPTH_MAX} deep")
        if self.expanded > EXPANDED_MAX:
            raise OutOfBounds(f"it has more than {EXPANDED_MAX} values")


_NUMBERS = frozenset(["BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG"])
_LEAVES = _NUMBERS | {
    *["NONE", "NEWTRUE", "NEWFALSE", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"],
    *["SHORT_BINSTRING", "BINSTRING", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "EMPTY_TUPLE"],
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Machine:
    """The stack and the memo of an unpickler, without the values."""

    def __init__(self) -> None:
        self.stack: list[_Value] = []
        self.marks: list[int] = []
        self.memo: dict[int, _Value] = {}

    def do(self, name: str, argument: Any) -> None:
        if name in _LEAVES:
            self.stack.append(_Value("number" if name in _NUMBERS else ""))
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = self.stack[-1]
        elif name == "MARK":
            self.marks.append(len(self.stack))
        elif name == "GLOBAL":
            self.stack.append(_Value(argument.rpartition(" ")[2]))
        elif name in _TUPLES:
            self._tuple(len(self.stack) - _TUPLES[name])
        elif name == "TUPLE":
            self._tuple(self.marks.pop())
        else:
            self._grow(name)

    def _tuple(self, first: int) -> None:
        parts = self._taken(first)
        made = _Value(parts[0].kind if len(parts) == 1 else "")
        for part in parts:
            made.add(part)
        self.stack.append(made)

    def _taken(self, first: int) -> list[_Value]:
        if first < 0:
            raise OutOfBounds("it is damaged")
        parts = self.stack[first:]
        del self.stack[first:]
        return parts

    def _grow(self, name: str) -> None:
        if name in ("APPENDS", "SETITEMS", "ADDITEMS"):
            parts = self._taken(self.marks.pop())
        elif name in ("APPEND", "BUILD", "REDUCE", "NEWOBJ", "BINPERSID"):
            parts = self._taken(len(self.stack) - 1)
        elif name == "SETITEM":
            parts = self._taken(len(self.stack) - 2)
        else:
            raise OutOfBounds(f"{name} is in it, which torch.save does not write")
        if name == "BINPERSID":
            self.stack.append(_Value())
        elif name in ("REDUCE", "NEWOBJ"):
            self._call(parts[0])
        else:
            self._put(name, parts)

    def _call(self, arguments: _Value) -> None:
        function = self.stack.pop()
        if function.kind == "bytearray" and arguments.kind == "number":
            raise OutOfBounds("a bytearray in it is made from a size")
        made = _Value()
        made.add(arguments)
        self.stack.append(made)

    def _put(self, name: str, parts: list[_Value]) -> None:
        into = self.stack[-1]
        for place, part in enumerate(parts):
            is_key = name == "ADDITEMS" or (name.startswith("SETITEM") and place % 2 == 0)
            if is_key and part.expanded > KEY_MAX:
                raise OutOfBounds(f"a key in it has more than {KEY_MAX} values")
            into.add(part)


_NEWER_LEAVES = frozenset(["BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BINUNICODE8"])


class _NewerMachine(_Machine):
    """Of protocol 4, in which `pickle.dump` writes. It takes only what values of torch need, and
    objects if they are allowed."""

    def __init__(self, objects: bool) -> None:
        super().__init__()
        self._refused = {"BINPERSID", "GLOBAL"} | (set() if objects else {"BUILD", "NEWOBJ"})

    def do(self, name: str, argument: Any) -> None:
        if name in self._refused:
            raise OutOfBounds(f"{name} is in it, which no plain value needs")
        if name in _NEWER_LEAVES:
            self.stack.append(_Value())
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name == "STACK_GLOBAL":
            self._taken(len(self.stack) - 2)
            self.stack.append(_Value())
        elif name != "FRAME":
            super().do(name, argument)


def check_pickle(data: bytes, *, newer: bool = False, objects: bool = False) -> None:
    """Whether torch's loader for weights can read a pickle of plain data without harm: OutOfBounds
    for one that is nested too deep, is too large, or has operations that `torch.save` does not
    write.

    That loader trusts the file in depth and size. A deeply nested tuple as a key ends the process,
    and one that holds itself twice in each of forty steps takes forever to hash. This reads only
    the pickle's operations, and makes nothing.

    newer: it is of protocol 4 instead, and not in a file of `torch.save`. objects: it may make
    objects of the classes that its reader allows.

    >>> import pickle
    >>> check_pickle(pickle.dumps({"x": [1.5, ("y",)]}, protocol=2))
    >>> deep = b")" + b"\\x85" * 1000  # an empty tuple in a tuple in a tuple …
    >>> check_pickle(b"\\x80\\x02}" + deep + b"K\\x01s.")
    Traceback (most recent call last):
    my_utils.core.plain_files.OutOfBounds: it is nested more than 300 deep
    """
    machine = _NewerMachine(objects) if newer else _Machine()
    try:
        for operation, argument, _ in pickletools.genops(data):
            if operation.name == "STOP":
                return
            if operation.name != "PROTO":
                machine.do(operation.name, argument)
    except OutOfBounds:
        raise
    except (IndexError, KeyError, ValueError, OverflowError, UnicodeError) as error:
        raise OutOfBounds(f"it is damaged ({error})") from None
