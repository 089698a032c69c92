"""The rule files in `rules/`: the name of each CUDA name on another platform.

A file holds the names of one library, by prefix, what is reported on each platform, and how the
names are called there:

    watch       beginnings of names; what begins so and has no rule is reported after porting.
                A platform may have more of them.
    families    beginnings of the names of libraries that have no rules at all, watched, too

    prefixes    a prefix of `names` and what takes its place
    without     names of these that the platform lacks; * stands for the rest of a name
    pairs       names that follow no prefix; they win over the others
    headers     what is between <> or "" after #include
    folders     beginnings of such paths; the rest follows, with .muh for .cuh and MUSA for CUDA
    absent      headers of these folders that the platform lacks
    watch_headers  patterns of headers; what matches and has no rule is reported
    relative    names that are torch's after `cuda::` alone
    documented  where the pairs of names can be looked up

>>> rules = load("musa")
>>> rules.pairs["cudaMalloc"], rules.pairs["<cuda_fp16.h>"]
('musaMalloc', '<musa_fp16.h>')
"""

from __future__ import annotations

import functools
import json
import operator
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from ..core.bounded_read import read_regular

RULES_DIR = Path(__file__).parent / "rules"


@dataclass(frozen=True)
class RuleSet:
    """The names and headers of one platform, and what is reported where it has no rule."""

    pairs: dict[str, str] = field(default_factory=dict)
    watches: frozenset[str] = frozenset()
    headers: dict[str, str] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    header_watches: frozenset[str] = frozenset()
    relative_names: frozenset[bytes] = frozenset()
    families: dict[str, str] = field(default_factory=dict)  # of beginnings

    def __or__(self, other: RuleSet) -> RuleSet:
        """Both; where they differ, the other's rules hold."""
        return RuleSet(
            **{one.name: getattr(self, one.name) | getattr(other, one.name) for one in fields(self)}
        )

    def family_of(self, name: str) -> str | None:
        """The library that a name or a header is of, if no rule covers that library."""
        bare = name.lstrip('<"')
        return next((of for prefix, of in self.families.items() if bare.startswith(prefix)), None)


@dataclass(frozen=True)
class Platform:
    """How the files of a port are called."""

    name: str
    suffixes: dict[str, str]  # of files that are renamed


PLATFORMS = {
    "musa": Platform("musa", {".cu": ".mu", ".cuh": ".muh"}),
    "hip": Platform("hip", {".cu": ".hip"}),
}


class _Section(msgspec.Struct):
    """How one platform calls the names. A text has words between spaces."""

    prefixes: dict[str, str] = {}
    without: str = ""
    pairs: dict[str, str] = {}
    headers: dict[str, str] = {}
    folders: dict[str, str] = {}
    absent: str = ""
    watch: str = ""
    watch_headers: str = ""
    relative: str = ""


class _File(msgspec.Struct):
    """A rule file. names: lines of words, by prefix."""

    watch: str = ""
    families: dict[str, str] = {}
    names: dict[str, list[str]] = {}
    musa: _Section = msgspec.field(default_factory=_Section)
    hip: _Section = msgspec.field(default_factory=_Section)


@functools.cache
def load(platform: str) -> RuleSet:
    """The rules of all libraries for "musa" or "hip". They are shared: do not change them."""
    files = (read_rule_file(path, platform) for path in sorted(RULES_DIR.glob("*.json")))
    return functools.reduce(operator.or_, files)


def read_rule_file(path: Path, platform: str) -> RuleSet:
    """The rules that one file has for a platform; ValueError with file and reason otherwise."""
    try:
        content = msgspec.json.decode(path.read_bytes(), type=_File)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None
    section: _Section = getattr(content, platform)
    pairs = dict(_prefixed(content.names, section)) | section.pairs | _quoted(section.headers)
    _check_names(path, pairs)
    families = {
        prefix: name for name, words in content.families.items() for prefix in words.split()
    }
    return RuleSet(
        pairs,
        frozenset([*content.watch.split(), *section.watch.split(), *families]),
        section.headers,
        section.folders,
        frozenset(section.absent.split()),
        frozenset(section.watch_headers.split()),
        frozenset(section.relative.encode().split()),
        families,
    )


def read_mapping_dir(folder: str | os.PathLike[str]) -> dict[str, str]:
    """The rules of a user: all *.json of a folder, each an object of strings, in order of name."""
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"mapping_dir_path={str(folder)!r}: there is no such folder")
    pairs: dict[str, str] = {}
    for path in sorted(root.glob("*.json")):
        pairs |= _read_strings(path)
        _check_names(path, pairs)
    return pairs


def _read_strings(path: Path) -> dict[str, str]:
    try:
        content = json.loads(read_regular(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: the file must be dict, not {type(content).__name__}")
    for key, value in content.items():
        if not isinstance(value, str):
            raise ValueError(
                f"{path}: the file: the value of {key!r} must be str, not {type(value).__name__}"
            )
    return content


def _check_names(path: Path, pairs: Mapping[str, str]) -> None:
    if "" in pairs:
        raise ValueError(f"{path}: a rule has nothing to look for")


def _prefixed(names: Mapping[str, list[str]], section: _Section) -> Iterator[tuple[str, str]]:
    without = frozenset(section.without.split())
    patterns = [word for word in without if "*" in word]
    for old, new in section.prefixes.items():
        for name in " ".join(names.get(old, ())).split():
            whole = old + name
            if whole not in without and not any(fnmatchcase(whole, each) for each in patterns):
                yield whole, new + name


def _quoted(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        left + old + right: left + new + right
        for old, new in headers.items()
        if old
        for left, right in (("<", ">"), ('"', '"'))
    }
