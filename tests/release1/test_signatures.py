"""Each public name of the first release is where it was, and takes what it took."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ..conftest import ROOT
from .signatures import describe

pytest.importorskip("torch", reason="torch is not installed")

BEFORE: dict[str, dict[str, list[Any]]] = json.loads(
    Path(__file__).with_name("signatures.json").read_text(encoding="utf-8")
)
WANTING = {"my_utils.main": "transformers", "my_utils.profiling.trainer_callback": "transformers"}


def split(parameters: list[str]) -> tuple[list[str], list[str], dict[str, str]]:
    """Names that can be given by position, those of them that cannot be given by name, and the
    default of each parameter, "" for none."""
    positional: list[str] = []
    only: list[str] = []
    defaults: dict[str, str] = {}
    is_positional = True
    for each in parameters:
        if each == "/":
            only = list(positional)
        elif each.startswith("*"):
            is_positional = is_positional and each.startswith("**")
            if each != "*":
                defaults[each] = ""
        else:
            name, _, default = each.partition("=")
            defaults[name] = default
            if is_positional:
                positional.append(name)
    return positional, only, defaults


def differences(old: list[str], new: list[str]) -> list[str]:
    """Why calls that worked with the old parameters may not with the new ones."""
    positional, only, defaults = split(old)
    new_positional, new_only, new_defaults = split(new)
    found = []
    if new_positional[: len(positional)] != positional and "*args" not in new:
        found.append(f"by position it took {positional}, and takes {new_positional}")
    for name, default in defaults.items():
        if name not in new_defaults:
            found.append(f"{name} is gone")
        elif default and new_defaults[name] != default:
            found.append(f"{name} was {default} by default, and is {new_defaults[name]}")
        elif name in new_only and name not in only:
            found.append(f"{name} cannot be given by name")
    required = {name for name, default in new_defaults.items() if not default and name[0] != "*"}
    found += [f"{name} is new, and required" for name in sorted(required - defaults.keys())]
    return found


@pytest.mark.parametrize("module", sorted(BEFORE))
def test_the_names_of(module: str) -> None:
    if module in WANTING:
        pytest.importorskip(WANTING[module], reason=f"{WANTING[module]} is not installed")
    loaded = importlib.import_module(module)
    names = list(dict.fromkeys(name.partition(".")[0] for name in BEFORE[module]))
    missing = [name for name in names if not hasattr(loaded, name)]
    assert not missing, f"{module} has no {', '.join(missing)}"
    now = describe(loaded, names)
    problems = []
    for name, (kind, parameters) in BEFORE[module].items():
        if name not in now:
            problems.append(f"{name} is gone")
        elif now[name][0] != kind:
            problems.append(f"{name} was {kind}, and is {now[name][0]}")
        elif parameters is not None:
            assert now[name][1] is not None, f"the parameters of {name} are not known any more"
            problems += [f"{name}: {text}" for text in differences(parameters, now[name][1])]
    assert not problems, f"{module}:\n" + "\n".join(problems)


@pytest.mark.parametrize("module", sorted(BEFORE))
def test_its_classes_say_that_they_are_public(module: str) -> None:
    """So that files may move: pickles name a class by its `__module__`."""
    if module in WANTING:
        pytest.importorskip(WANTING[module], reason=f"{WANTING[module]} is not installed")
    loaded = importlib.import_module(module)
    for name, (kind, _) in BEFORE[module].items():
        if kind != "class":
            continue
        cls = getattr(loaded, name)
        assert cls.__module__ in BEFORE, f"{name} says that it is of {cls.__module__}"
        assert getattr(importlib.import_module(cls.__module__), cls.__qualname__) is cls


def test_what_the_documents_name_is_listed() -> None:
    """docs/names.md: what users of earlier tools know."""
    missing = []
    for line in (ROOT / "docs/names.md").read_text(encoding="utf-8").splitlines():
        if not line.startswith("| `"):
            continue
        names, _, modules = re.sub(r"\(.*?\)|the command `[^`]*`", "", line).rpartition(" | ")
        for module in re.findall(r"`(my_utils[\w.]*)`", modules):
            wanted = re.findall(r"`(\w+)`", names)
            missing += [f"{module}.{name}" for name in wanted if name not in BEFORE[module]]
    assert not missing


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (["a", "b=1"], ["a", "b=1", "c=2"], ""),
        (["a", "b=1"], ["a", "b=1", "*", "c=2"], ""),
        (["a", "*", "b=1"], ["a", "b=1"], ""),
        (["a", "**options"], ["a", "*", "b=1", "**options"], ""),
        (["a", "b=1"], ["b=1", "a"], "by position"),
        (["a", "b=1"], ["a", "*", "b=1"], "by position"),
        (["a", "b=1"], ["a", "b=2"], "b was 1"),
        (["a", "b=1"], ["a", "b"], "b was 1"),
        (["a", "*", "b=1"], ["a"], "b is gone"),
        (["a"], ["a", "/"], "cannot be given by name"),
        (["a"], ["a", "b"], "b is new, and required"),
        (["a", "**options"], ["a"], "options is gone"),
    ],
)
def test_what_counts_as_a_difference(old: list[str], new: list[str], problem: str) -> None:
    found = differences(old, new)
    assert (problem in found[0]) if problem else not found
