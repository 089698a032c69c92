"""Places that fsspec reaches: `s3://bucket/run`, `gs://…`, `hdfs://…`, `file://…`, and folders."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import re

from ..extras import require
from ..files import atomic_write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.*", re.DOTALL)
_USER = re.compile(r"//[^/@]*@")
_OF_ONE_PROCESS = ("memory",)


def is_address(text: str) -> bool:
    """
    >>> is_address("s3://bucket/run"), is_address("logs/run")
    (True, False)
    """
    return _ADDRESS.fullmatch(text) is not None and not os.path.lexists(text)


def shown(address: str) -> str:
    """Without a user and a password.

    >>> shown("sftp://me:secret@host/runs")
    'sftp://host/runs'
    """
    return _USER.sub("//", address)


def check_address(address: str) -> None:
    """ValueError with the reason where no file can be written to such an address, whatever is
    there. ImportError where a package is missing. Nothing is connected."""
    if not address:
        raise ValueError("must be an address such as s3://bucket/run, or a folder")
    if not is_address(address):
        return
    require("fsspec", f"the address {shown(address)}")
    from fsspec.registry import known_implementations, registry

    protocol = address.partition("://")[0]
    known = known_implementations.get(protocol)
    if (known is None and protocol not in registry) or protocol in _OF_ONE_PROCESS:
        raise ValueError(f"must be an address that fsspec writes to, not {protocol}://")
    if known is not None and protocol not in registry:
        package = known["class"].partition(".")[0]
        if importlib.util.find_spec(package) is None:
            require(package, f"the address {shown(address)}")


@contextlib.contextmanager
def _as_os_error(*passed: type[Exception]) -> Iterator[None]:
    """Each library of a file system has errors of its own. Those of the types `passed` stay."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (OSError, *passed)):
            raise
        raise OSError(f"{type(error).__name__}: {error}") from error


class Store:
    """One address. root: of it, as its file system names things. Thread-safe for names that differ.

    ImportError where a package is missing, OSError where the place cannot be used.
    """

    def __init__(self, address: str) -> None:
        self.shown = shown(address)
        try:
            check_address(address)
        except ValueError as error:
            raise OSError(errno.EINVAL, str(error), self.shown) from None
        fsspec = require("fsspec", f"the address {self.shown}")
        with _as_os_error(ImportError):
            self._fs, root = fsspec.core.url_to_fs(
                address if is_address(address) else os.path.abspath(address),
                use_listings_cache=False,
            )
        self._root = str(root).rstrip("/")
        self._is_local = type(self._fs).__name__ == "LocalFileSystem"

    def write(self, name: str, data: bytes) -> None:
        """OSError if it cannot be written."""
        path = f"{self._root}/{name}"
        with _as_os_error():
            if self._is_local:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with atomic_write(path) as file:
                    file.write(data)
            else:
                self._write_there(path, data)

    def _write_there(self, path: str, data: bytes) -> None:
        try:
            self._fs.pipe_file(path, data)
        except FileNotFoundError:
            # Object stores, whose libraries are asynchronous, have no folders: there is no bucket.
            if self._fs.async_impl:
                raise
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(path, data)

    def read(self, name: str, most: int) -> bytes:
        """The first bytes of it, at most so many. OSError if it cannot be read."""
        with _as_os_error():
            data: bytes = self._fs.cat_file(f"{self._root}/{name}", start=0, end=most)
        return data[:most]

    def lacks(self, name: str) -> bool:
        """Whether it is certain that there is no such file."""
        try:
            self._fs.info(f"{self._root}/{name}")
        except FileNotFoundError:
            return True
        except Exception:  # each library has errors of its own
            return False
        return False

    def written_s(self, name: str) -> float | None:
        """Unix time of the last write, by the store's clock; None where it does not say."""
        try:
            return float(self._fs.modified(f"{self._root}/{name}").timestamp())
        except Exception:
            return None

    def names(self) -> list[str]:
        """What is at the address, one level deep. OSError if it cannot be listed."""
        with _as_os_error():
            entries = self._fs.ls(self._root, detail=False)
        found = {str(one).rstrip("/").rpartition("/")[2] for one in entries}
        return sorted(found - {""})

    def remove(self, name: str) -> None:
        """If it can be removed."""
        try:
            self._fs.rm_file(f"{self._root}/{name}")
        except Exception:
            return


def describe_error(error: BaseException) -> str:
    """Of an error of a store, in one line.

    >>> describe_error(PermissionError(13, "Access Denied", "bucket"))
    'Access Denied'
    """
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:300]
