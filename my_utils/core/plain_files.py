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
import re
import zipfile
from pathlib import Path
from typing import Any

from .extras import needs_torch
from .files import atomic_write
from .pickle_bounds import OutOfBounds, check_pickle
from .printable import printable
from .trusted_open import open_without_waiting


class PlainFileError(ValueError):
    """A file that is not what was asked for. The message names the file and the reason."""


def save_plain(payload: dict[str, Any], path: str | os.PathLike[str]) -> Path:
    """Writes the file next to its place under another name, then renames it. Folders are made as
    needed. OSError if it cannot be written. The values: see `_plain_copy`."""
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
        _check_zip(file, what)
        return _read_pickle(file, format, version, what)
    except PlainFileError as error:
        raise PlainFileError(f"{file}: {error}") from None


def _check_zip(file: Path, what: str) -> None:
    """torch's reader trusts the file, so its entries are checked first."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise PlainFileError("has compressed entries, which torch.save does not write")
            if sum(entry.file_size for entry in entries) > file.stat().st_size:
                raise PlainFileError("has entries that are longer than the file")
            bad = archive.testzip()
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
        foreign = re.search(r"GLOBAL (\S+)", str(error))
        if foreign is not None:
            raise PlainFileError(f"is not a {what}: it holds objects of {foreign[1]}") from None
        reason = printable(str(error).strip().partition("\n")[0][:300])
        raise PlainFileError(f"cannot be read as plain data ({reason})") from None
    if not isinstance(payload, dict) or payload.get("format") != format:
        raise PlainFileError(f"is not a {what}: it has no format {format!r}")
    version = payload.get("version")
    if type(version) is not int or version < 1:
        raise PlainFileError(f"has the version {version!r}, which is not a number above 0")
    if version > newest:
        raise PlainFileError(f"has version {version}; this my_utils reads {newest} and below")
    return payload
