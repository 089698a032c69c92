"""The new names of a port's includes.

A file of the tree follows its new name; any other header has a rule, or stays and is reported.

>>> tree = Tree(Path("/p/src"), {"k/sum.cuh": "k/sum.muh", "cuda_utils.h": "cuda_utils.h"})
>>> tree.new_path("k/a.cu", "sum.cuh"), tree.new_path("a.cu", "src/k/sum.cuh")
('sum.muh', 'src/k/sum.muh')
>>> tree.new_path("a.cu", "cuda_utils.h"), tree.new_path("a.cu", "cub/block/sum.cuh")
('cuda_utils.h', None)
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# Begins with a literal, by which it is found fast; what is before is checked afterwards.
INCLUDE = re.compile(rb'include(?:_next)?[ \t]*(?:\([ \t]*)?([<"])([^>"\r\n]{1,1024})[>"]')
BEFORE = re.compile(rb"(?:#[ \t]*|__has_)$")
# How many bytes may be between # and include.
AROUND = 32


@dataclass(frozen=True)
class Include:
    """One directive: its place in the text, and the path with what is around it."""

    start: int  # of the whole directive
    path_start: int  # of the opening quote
    end: int
    quote: bytes
    path: bytes


def find_includes(text: bytes) -> Iterator[Include]:
    """All `#include` and `__has_include` with a path, in order."""
    for match in INCLUDE.finditer(text):
        before = BEFORE.search(text, max(0, match.start() - AROUND), match.start())
        if before is not None:
            yield Include(before.start(), match.start(1), match.end(), match[1], match[2])


class Tree:
    """The files of a tree by their paths.

    Parameters:
        root: the folder.
        names: the new path of each file, by its old one; both from the root.
    """

    def __init__(self, root: Path, names: Mapping[str, str]) -> None:
        self._names = names
        self._above = [part for part in root.parts if part != os.sep]
        self._by_base: dict[str, list[str]] = {}
        for name in names:
            self._by_base.setdefault(posixpath.basename(name), []).append(name)

    def new_path(self, includer: str, path: str) -> str | None:
        """What an include is called afterwards; None if it is not a file of the tree.

        A file is meant where its path, from a folder above the tree on, ends with that of the
        include; the file beside the one that includes it goes first.
        """
        found = self._found(includer, path)
        if found is None:
            return None
        folder, _, base = path.rpartition("/")
        new_base = posixpath.basename(self._names[found])
        return path if base == new_base else f"{folder}/{new_base}" if folder else new_base

    def _found(self, includer: str, path: str) -> str | None:
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(includer), path))
        if beside in self._names:
            return beside
        wanted = [part for part in posixpath.normpath(path).split("/") if part != ".."]
        for name in self._by_base.get(wanted[-1], ()):
            whole = [*self._above, *name.split("/")]
            if whole[-len(wanted) :] == wanted:
                return name
        return None
