"""Converts the arguments of SimplePorting, or raises an exception that names the argument."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core.arguments import check_choice
from . import _rules

StrPath = str | os.PathLike[str]


def folder(path: StrPath | None) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"cuda_dir_path must be the path of a folder, not {path!r}")
    root = Path(os.path.abspath(path))
    if not root.is_dir():
        raise ValueError(f"cuda_dir_path={os.fspath(path)!r}: there is no such folder")
    if not root.name:
        raise ValueError("cuda_dir_path: it must not be the root of the file system")
    return root


def path_list(name: str, paths: Any) -> list[str]:
    if paths is None:
        return []
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    if not isinstance(paths, Iterable):
        raise TypeError(f"{name} must be a list of paths, not {paths!r}")
    found = list(paths)
    for path in found:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"{name} must be a list of paths, not {path!r} in it")
    return [os.fspath(path) for path in found]


def mapping(rules: Any) -> dict[str, str]:
    if rules is None:
        return {}
    if not isinstance(rules, Mapping):
        raise TypeError(f"mapping_rule must be a mapping of str to str, not {rules!r}")
    for old, new in rules.items():
        if not isinstance(old, str) or not isinstance(new, str):
            raise TypeError(f"mapping_rule must be a mapping of str to str, not {old!r}: {new!r}")
        if not old:
            raise ValueError(f"mapping_rule: nothing to look for, to put {new!r} there")
    return dict(rules)


def platform(name: Any) -> _rules.Platform:
    return _rules.PLATFORMS[check_choice("platform", name, _rules.PLATFORMS)]
