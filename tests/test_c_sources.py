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
