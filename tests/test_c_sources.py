"""What holds of the C sources as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import ROOT

pytestmark = pytest.mark.no_torch

BINDING = ROOT / "csrc" / "binding"
ENGINE = ROOT / "csrc" / "engine"
# What stands before the name of a function that takes a struct mu_error, with its name.
MAY_FAIL = re.compile(
    r"^((?:[\w*]+[ \n]+)+\**)(\w+)\([^;{}]*?struct mu_error \*\w*\)\s*[;{]", re.MULTILINE
)
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)


def system_headers(path: Path, seen: set[Path]) -> Iterator[str]:
    """The system headers that `path` includes, in the order in which a compiler meets them."""
    for kind, name in INCLUDE.findall(path.read_text(encoding="utf-8")):
        if kind == "<":
            yield name
            continue
        folders = (path.parent, BINDING, ENGINE)
        [header, *_] = [folder / name for folder in folders if (folder / name).is_file()]
        if header not in seen:
            seen.add(header)
            yield from system_headers(header, seen)


def test_python_h_comes_before_every_system_header() -> None:
    """It defines _POSIX_C_SOURCE, which a system header before it has defined to something else."""
    found = {path: list(system_headers(path, set())) for path in BINDING.rglob("*.[ch]")}
    with_python = {path: headers for path, headers in found.items() if "Python.h" in headers}
    assert len(with_python) > 40
    late = {path.name: headers[0] for path, headers in with_python.items()}
    assert {name: first for name, first in late.items() if first != "Python.h"} == {}


def returns_an_error(path: Path) -> Iterator[tuple[str, bool]]:
    """Each function of the engine that takes a struct mu_error and returns something, by name, and
    whether the compiler checks that callers use what it returns."""
    for head, name in MAY_FAIL.findall(path.read_text(encoding="utf-8")):
        if "void" not in head.split():
            yield f"{path.relative_to(ENGINE)}: {name}", "MU_MUST_CHECK" in head.split()


def test_no_caller_in_the_engine_can_ignore_an_error() -> None:
    """What a header declares is marked there; error.h has the functions that fill in an error."""
    product = [p for p in ENGINE.rglob("*.[ch]") if p.relative_to(ENGINE).parts[0] != "tests"]
    found = [
        (place, checked)
        for path in product
        if path.name not in {"error.h", "error.c"} and path.parent.name != "fuzz"
        for place, checked in returns_an_error(path)
        if path.suffix == ".h" or not place.split()[-1].startswith("mu_")
    ]
    assert len(found) > 150
    assert [place for place, checked in found if not checked] == []
