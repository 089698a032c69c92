"""Opens a dump from an untrusted source: everything is checked before use.

Every name is one of a few forms without separators, every file is opened without following links
and must be a plain one, sizes are compared with the manifest before anything is read, and the
index of the safetensors file must cover its bytes once, without gaps.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ... import _core
from ..dtypes import STORED
from .blobs import HEADER_BYTES_MAX
from .form import (
    FILE_NAME,
    FORMAT,
    MANIFEST,
    TENSORS,
    TREE,
    UNFINISHED,
    VERSION,
    DumpError,
    digest,
    parse_json,
    unseal,
)

MANIFEST_BYTES_MAX = 64 << 20
DIMS_MAX = 64
_DIGEST = re.compile(r"[0-9a-f]{32}")
_CODE_BYTES = {each.code: each.item_bytes // (each.last or 1) for each in STORED.values()}


class Entry(NamedTuple):
    """Where a blob is in the bytes after the header."""

    code: str
    shape: tuple[int, ...]
    begin: int
    end: int


@contextmanager
def open_dump(root: str, dump_dir: str | os.PathLike[str]) -> Iterator[DumpFolder]:
    """The folder of a dump, with a checked manifest. Raises DumpError, FileNotFoundError.

    dump_dir: as given, from the working directory; else from the root.
    """
    path = os.fspath(dump_dir)
    if not os.path.isabs(path) and not os.path.lexists(path):
        path = os.path.join(root, path)
    path = os.path.abspath(path)
    handle = _open_folder(root, path)
    try:
        yield DumpFolder(handle, path)
    finally:
        os.close(handle)


def _open_folder(root: str, path: str) -> int:
    """Walks down from the root, which may be a link itself, without following any."""
    real_root, given = Path(os.path.realpath(root)), Path(path)
    for base, target in (
        (Path(os.path.abspath(root)), given),
        (real_root, given),
        (real_root, Path(os.path.realpath(path))),
    ):
        if target.is_relative_to(base):
            parts = target.relative_to(base).parts
            break
    else:
        raise DumpError(path, f"is outside of root_dir, {root}")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(real_root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        try:
            inner = os.open(part, flags, dir_fd=handle)
        except NotADirectoryError:
            raise DumpError(path, f"{part} is a link or no folder") from None
        finally:
            os.close(handle)
        handle = inner
    if os.path.basename(path).startswith(UNFINISHED):
        os.close(handle)
        raise DumpError(path, "was not finished: its writer was killed, or is still at it")
    return handle


class DumpFolder:
    """An open dump. `manifest` is checked; the sizes of all files are those that it says."""

    def __init__(self, handle: int, path: str) -> None:
        self._handle = handle
        self.path = path
        data = self._read_whole(MANIFEST, MANIFEST_BYTES_MAX)
        self.manifest = unseal(data, self.file(MANIFEST))
        self._check_manifest()
        for name in self.manifest["files"]:
            os.close(self._open(name))

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _check_manifest(self) -> None:
        path, manifest = self.file(MANIFEST), self.manifest
        if manifest.get("format") != FORMAT:
            raise DumpError(path, "is not a manifest of a dump")
        if type(manifest.get("version")) is not int or manifest["version"] < 1:
            raise DumpError(path, "has no version")
        if manifest["version"] != VERSION:
            raise DumpError(path, f"has version {manifest['version']}; {VERSION} is known here")
        files = manifest.get("files")
        if not isinstance(files, dict) or TREE not in files:
            raise DumpError(path, f"names no {TREE}")
        for name, entry in files.items():
            if FILE_NAME.fullmatch(name) is None:
                raise DumpError(path, f"names a file {name!r}, which no dump has")
            if not _is_file_entry(entry, name == TENSORS):
                raise DumpError(path, f"has no size and digest of {name}")

    def _open(self, name: str) -> int:
        """A plain file of the size that the manifest says."""
        path = self.file(name)
        try:
            handle = _open_plain(name, path, self._handle)
        except FileNotFoundError:
            raise DumpError(path, "is missing: the dump is incomplete") from None
        if name != MANIFEST:
            size, wanted = os.fstat(handle).st_size, self.manifest["files"][name]["bytes"]
            if size != wanted:
                os.close(handle)
                raise DumpError(path, f"has {size} bytes, not {wanted}")
        return handle

    def _read_whole(self, name: str, most: int) -> bytes:
        with os.fdopen(self._open(name), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise DumpError(self.file(name), f"has {size} bytes, more than {most}")
            data = file.readall()
        if len(data) != size:
            raise DumpError(self.file(name), "changed while it was read")
        return data

    def read(self, name: str, most: int, *, verify: bool) -> bytes:
        """A file of the manifest, whole."""
        data = self._read_whole(name, most)
        if verify and digest(data) != self.manifest["files"][name]["digest"]:
            raise DumpError(self.file(name), "does not match its digest: it was changed")
        return data

    def read_blobs(self, *, verify: bool) -> tuple[dict[str, Entry], dict[str, Any]]:
        """The index of the safetensors file, and the bytes of each blob as a uint8 array.

        They are in separate memory where `verify` is set, else in the file, mapped privately: pages
        are read when they are touched, and what is written to them stays in this process.
        """
        if TENSORS not in self.manifest["files"]:
            return {}, {}
        path, entry = self.file(TENSORS), self.manifest["files"][TENSORS]
        with os.fdopen(self._open(TENSORS), "rb", buffering=0) as file:
            header, _ = read_header(file.fileno(), entry["header_bytes"], path)
            if verify and digest(header) != entry["header_digest"]:
                raise DumpError(path, "its header does not match its digest: it was changed")
            index = read_index(header[8:], entry["bytes"] - len(header), path)
            if verify:
                return index, read_into_memory(file, index, len(header), path)
            return index, _map(file.fileno(), index, len(header))

    def verify_blobs(self, blobs: dict[str, Any], wanted: dict[str, str]) -> None:
        """Raises for the first blob whose bytes are not those of the digest in the tree."""
        path = self.file(TENSORS)
        for name in blobs.keys() - wanted.keys():
            raise DumpError(path, f"holds {name!r}, which the tree does not name")
        names = sorted(blobs)
        found = _core.tensor_hash([blobs[name] for name in names])
        for name, result in zip(names, found, strict=True):
            if result.content != wanted[name]:
                raise DumpError(path, f"{name!r} does not match its digest: it was changed")


def _open_plain(name: str, path: str, folder: int | None = None) -> int:
    """Opens neither links nor pipes, devices and folders."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DumpError(path, f"cannot be opened as a plain file: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise DumpError(path, "is not a regular file")
    return handle


def open_plain(path: str) -> io.FileIO:
    """A file that is opened without following a link at its end."""
    return io.FileIO(_open_plain(path, path), "rb")


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_digest(value: object) -> bool:
    return type(value) is str and _DIGEST.fullmatch(value) is not None


def _is_file_entry(entry: object, is_tensors: bool) -> bool:
    if not isinstance(entry, dict) or not _is_size(entry.get("bytes")):
        return False
    if is_tensors:
        return _is_size(entry.get("header_bytes")) and _is_digest(entry.get("header_digest"))
    return _is_digest(entry.get("digest"))


def read_header(handle: int, wanted: int | None, path: str) -> tuple[bytes, int]:
    """The header of a safetensors file with its length in front, and the size of the file."""
    size = os.fstat(handle).st_size
    length = int.from_bytes(os.pread(handle, 8, 0), "little")
    if size < 8 or length > min(HEADER_BYTES_MAX, size - 8):
        raise DumpError(
            path, f"says that its header has {length} bytes: it is truncated or changed"
        )
    header = os.pread(handle, 8 + length, 0)
    if len(header) != (8 + length if wanted is None else wanted):
        raise DumpError(path, f"its header has {len(header)} bytes, not {wanted}")
    return header, size


def read_index(header: bytes, data_bytes: int, path: str) -> dict[str, Entry]:
    """The index of a safetensors file, from its JSON header; DumpError for what does not add up."""
    found = parse_json(header, path)
    if not isinstance(found, dict):
        raise DumpError(path, "its header is not a JSON object")
    index = {name: _entry(name, e, path) for name, e in found.items() if name != "__metadata__"}
    at = 0
    for name, entry in sorted(index.items(), key=lambda item: item[1][2:]):
        if entry.begin != at:
            raise DumpError(path, f"{name!r} begins at {entry.begin}, not at {at}")
        at = entry.end
    if at != data_bytes:
        raise DumpError(path, f"its index covers {at} bytes of {data_bytes}")
    return index


def _entry(name: str, found: object, path: str) -> Entry:
    wrong = DumpError(path, f"its index has no type, shape and place of {name[:200]!r}")
    if not isinstance(found, dict) or found.keys() != {"dtype", "shape", "data_offsets"}:
        raise wrong
    code, shape, offsets = found["dtype"], found["shape"], found["data_offsets"]
    if type(code) is not str or code not in _CODE_BYTES:
        raise wrong
    if not isinstance(shape, list) or len(shape) > DIMS_MAX or not all(map(_is_size, shape)):
        raise wrong
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise wrong
    if offsets[1] - offsets[0] != math.prod(shape) * _CODE_BYTES[code]:
        raise DumpError(path, f"{name[:200]!r}: shape and length do not agree")
    return Entry(code, tuple(shape), offsets[0], offsets[1])


def read_into_memory(file: Any, index: dict[str, Entry], start: int, path: str) -> dict[str, Any]:
    import numpy

    blobs = {}
    file.seek(start)
    for name, entry in sorted(index.items(), key=lambda item: item[1][2:]):
        blob = numpy.empty(entry.end - entry.begin, dtype=numpy.uint8)
        left = memoryview(blob)  # type: ignore[arg-type]  # numpy has no __buffer__ for mypy
        while left:
            count = file.readinto(left)
            if not count:
                raise DumpError(path, "was cut off while it was read")
            left = left[count:]
        blobs[name] = blob
    return blobs


def _map(handle: int, index: dict[str, Entry], start: int) -> dict[str, Any]:
    import numpy

    memory = numpy.frombuffer(mmap.mmap(handle, 0, access=mmap.ACCESS_COPY), dtype=numpy.uint8)
    return {name: memory[start + entry.begin : start + entry.end] for name, entry in index.items()}
