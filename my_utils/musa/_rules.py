"""The rule files in `rules/`: what each name of CUDA is called on another platform.

A file holds the names of one library, by prefix, and for each platform how they are called there:

    prefixes    a prefix of `names` and what takes its place
    without     names of these that the platform lacks; * stands for the rest of a name
    pairs       names that follow no prefix; they win over the others
    headers     what stands between <> or "" after #include
    watch       beginnings of names; what begins so and has no rule is reported after porting
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

RULES_DIR = Path(__file__).parent / "rules"


@dataclass(frozen=True)
class RuleSet:
    """The names of one platform, and the beginnings of names that are reported."""

    pairs: dict[str, str] = field(default_factory=dict)
    watches: tuple[str, ...] = ()


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
    pairs: dict[str, str] = {}
    watches: list[str] = []
    for path in sorted(RULES_DIR.glob("*.json")):
        rules = read_rule_file(path, platform)
        pairs |= rules.pairs
        watches += rules.watches
    return RuleSet(pairs, tuple(dict.fromkeys(watches)))


def read_rule_file(path: Path, platform: str) -> RuleSet:
    """The rules that one file has for a platform; ValueError with file and reason otherwise."""
    content = _read_json(path)
    try:
        section = _checked(content.get(platform, {}), dict, platform)
        names = _names(_checked(content.get("names", {}), dict, "names"))
        pairs = dict(_prefixed(names, section))
        pairs |= _strings(_checked(section.get("pairs", {}), dict, "pairs"), "pairs")
        pairs |= _headers(
            _strings(_checked(section.get("headers", {}), dict, "headers"), "headers")
        )
        watches = _checked(section.get("watch", ""), str, "watch").split()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    if "" in pairs:
        raise ValueError(f"{path}: a rule has nothing to look for")
    return RuleSet(pairs, tuple(watches))


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
        content = json.loads(path.read_bytes())
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
