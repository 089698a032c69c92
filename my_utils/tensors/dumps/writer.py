"""Writes a tree to a folder that is either complete or missing.

The files go into a folder `.unfinished-<name>`, which is renamed when all of them are written; a
dump that was killed or ran out of space is never found under the name of a whole one. Making that
folder is what reserves the name, so two dumps in the same instant, of two processes too, get two.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.ranks import host_name
from .form import FORMAT, MANIFEST, TENSORS, TREE, UNFINISHED, VERSION, digest, safe_name, seal

if TYPE_CHECKING:
    from .tree import Tree


_NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Place:
    """A reserved name: `unfinished` exists and is empty, `final` does not exist yet."""

    final: str
    unfinished: str
    time_ns: int  # Unix, of the name


def reserve(root: str, data_id: object, stage: object, branch: object) -> Place:
    """A place that nothing else gets. Raises OSError."""
    sample = os.path.join(root, f"sample_{safe_name(data_id)}")
    os.makedirs(sample, exist_ok=True)
    time_ns = time.time_ns()
    while True:
        name = f"{_stamp(time_ns)}__{safe_name(stage)}__{safe_name(branch)}"
        place = Place(os.path.join(sample, name), os.path.join(sample, UNFINISHED + name), time_ns)
        try:
            os.mkdir(place.unfinished)
        except FileExistsError:
            time_ns += 1
            continue
        if not os.path.lexists(place.final):
            return place
        os.rmdir(place.unfinished)
        time_ns += 1


def _stamp(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, _NS_PER_S)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{rest:09d}Z"


@dataclass
class Job:
    """A dump that is ready to be written, by whichever thread."""

    place: Place
    tree: Tree
    about: dict[str, Any]  # for the manifest
    fsync: bool

    @property
    def size(self) -> int:
        """Bytes of memory that it holds, about."""
        files = sum(len(data) for data in self.tree.files.values() if isinstance(data, bytes))
        return self.tree.blobs.size + files + 64 * len(self.tree.out)

    def write(self) -> None:
        """Writes all and renames. On any error the unfinished folder is removed, and it raises."""
        try:
            self._write_files()
            os.rename(self.place.unfinished, self.place.final)
        except BaseException:
            shutil.rmtree(self.place.unfinished, ignore_errors=True)
            raise
        if self.fsync:
            _sync_folder(os.path.dirname(self.place.final))

    def _write_files(self) -> None:
        folder = self.place.unfinished
        self.tree.blobs.wait()
        text = self._head() + self.tree.text(self.tree.blobs.digests()) + "\n}\n"
        files = {TREE: self._write(TREE, text.encode("utf-8"))}
        if self.tree.blobs.sources:
            metadata = {"format": FORMAT, "version": str(VERSION)}
            with open(os.path.join(folder, TENSORS), "xb") as file:
                files[TENSORS] = self.tree.blobs.write(file, metadata)
                if self.fsync:
                    os.fsync(file.fileno())
        for name, content in self.tree.files.items():
            files[name] = self._write(name, content if isinstance(content, bytes) else content())
        self._write(MANIFEST, seal({**self.about, "files": files}))
        if self.fsync:
            _sync_folder(folder)

    def _head(self) -> str:
        about = {"format": FORMAT, "version": VERSION}
        about |= {key: self.about[key] for key in ("stage", "branch", "data_id", "time")}
        lines = [f' "{key}": {json.dumps(value)},\n' for key, value in about.items()]
        return "{\n" + "".join(lines) + ' "root": '

    def _write(self, name: str, data: bytes) -> dict[str, Any]:
        path = os.path.join(self.place.unfinished, name)
        with open(path, "xb", buffering=0) as file:
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            if self.fsync:
                os.fsync(file.fileno())
        return {"bytes": len(data), "digest": digest(data)}


def describe(
    place: Place, tree: Tree, stage: object, data_id: object, branch: object, rank: int
) -> dict[str, Any]:
    """The manifest's head. Texts are ASCII there: what is odd in them is escaped."""
    moment = datetime.datetime.fromtimestamp(place.time_ns / _NS_PER_S, datetime.UTC)
    return {
        "format": FORMAT,
        "version": VERSION,
        "stage": _text(stage),
        "branch": _text(branch),
        "data_id": data_id if type(data_id) is int else _text(data_id),
        "time": moment.isoformat(),
        "time_ns": place.time_ns,
        "host": host_name(),
        "pid": os.getpid(),
        "rank": rank,
        "tensors": len(tree.slots),
        "truncated": tree.counts["truncated"],
        "pickles": tree.counts["pickle"],
        "unsupported": tree.counts["unsupported"],
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _sync_folder(path: str | Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
