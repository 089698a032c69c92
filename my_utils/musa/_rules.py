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

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from ..core.bounded_read import read_regular

RULES_DIR = Path(__file__).parent / "rules"


@dataclass(frozen=True)
class RuleSet:
    """The names and headers of one platform, and what is reported where it has no rule."""

    pairs: dict[str, str] = field(default_factory=dict)
    watches: tuple[str, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    header_watches: tuple[str, ...] = ()
    relative_names: frozenset[bytes] = frozenset()
    families: dict[str, str] = field(default_factory=dict)  # of beginnings

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


@cache
def load(platform: str) -> RuleSet:
    """The rules of all libraries for "musa" or "hip". They are shared: do not change them."""
    whole = RuleSet()
    for path in sorted(RULES_DIR.glob("*.json")):
        rules = read_rule_file(path, platform)
        whole = RuleSet(
            whole.pairs | rules.pairs,
            tuple(dict.fromkeys(whole.watches + rules.watches)),
            whole.headers | rules.headers,
            whole.folders | rules.folders,
            whole.absent | rules.absent,
            tuple(dict.fromkeys(whole.header_watches + rules.header_watches)),
            whole.relative_names | rules.relative_names,
            whole.families | rules.families,
        )
    return whole


def read_rule_file(path: Path, platform: str) -> RuleSet:
    """The rules that one file has for a platform; ValueError with file and reason otherwise."""
    content = _read_json(path)
    try:
        section = _checked(content.get(platform, {}), dict, platform)
        names = _names(_checked(content.get("names", {}), dict, "names"))
        pairs = dict(_prefixed(names, section))
        pairs |= _strings(_checked(section.get("pairs", {}), dict, "pairs"), "pairs")
        headers = _strings(_checked(section.get("headers", {}), dict, "headers"), "headers")
        pairs |= _headers(headers)
        folders = _strings(_checked(section.get("folders", {}), dict, "folders"), "folders")
        watches = [*_words(content, "watch"), *_words(section, "watch")]
        words = {key: _words(section, key) for key in ("watch_headers", "absent", "relative")}
        known = _strings(_checked(content.get("families", {}), dict, "families"), "families")
        families = {prefix: name for name, prefixes in known.items() for prefix in prefixes.split()}
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    if "" in pairs:
        raise ValueError(f"{path}: a rule has nothing to look for")
    return RuleSet(
        pairs, (*watches, *families), headers, folders, frozenset(words["absent"]),
        words["watch_headers"], frozenset(name.encode() for name in words["relative"]),
        families,
    )  # fmt: skip


def read_mapping_dir(folder: str | os.PathLike[str]) -> dict[str, str]:
    """The rules of a user: all *.json of a folder, each an object of strings, in order of name."""
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"mapping_dir_path={str(folder)!r}: there is no such folder")
    pairs: dict[str, str] = {}
    for path in sorted(root.glob("*.json")):
        try:
            pairs |= _strings(_read_json(path), "the file")
        except TypeError as error:
            raise ValueError(f"{path}: {error}") from None
        if "" in pairs:
            raise ValueError(f"{path}: a rule has nothing to look for")
    return pairs


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_regular(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    try:
        return dict(_checked(content, dict, "the file"))
    except TypeError as error:
        raise ValueError(f"{path}: {error}") from None


def _checked(value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be {kind.__name__}, not {type(value).__name__}")
    return value


def _words(section: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(_checked(section.get(key, ""), str, key).split())


def _strings(pairs: Mapping[str, object], what: str) -> dict[str, str]:
    for key, value in pairs.items():
        _checked(value, str, f"{what}: the value of {key!r}")
    return dict(pairs)  # type: ignore[arg-type]


def _names(groups: Mapping[str, object]) -> dict[str, list[str]]:
    """The names of each prefix, without it."""
    return {
        prefix: [
            name
            for line in _checked(lines, list, f"names: {prefix!r}")
            for name in _checked(line, str, f"names: {prefix!r}: a line").split()
        ]
        for prefix, lines in groups.items()
    }


def _prefixed(
    names: Mapping[str, Iterable[str]], section: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    without = _checked(section.get("without", ""), str, "without").split()
    plain = {pattern for pattern in without if "*" not in pattern}
    patterns = [pattern for pattern in without if "*" in pattern]
    prefixes = _strings(_checked(section.get("prefixes", {}), dict, "prefixes"), "prefixes")
    for old, new in prefixes.items():
        for name in names.get(old, ()):
            whole = old + name
            if whole not in plain and not any(fnmatchcase(whole, each) for each in patterns):
                yield whole, new + name


def _headers(pairs: Mapping[str, str]) -> dict[str, str]:
    quoted = (("<", ">"), ('"', '"'))
    return {
        left + old + right: left + new + right
        for old, new in pairs.items()
        if old
        for left, right in quoted
    }
