"""The leak cases of `my_utils._core`: at least one for every entry point.

A case is a generator: it sets up, yields the callable to repeat, and cleans up. `@case` names the
entry points that the callable runs through: `function`, `Type` for a constructor, `Type.method`.
Paths that end in an exception deserve a case of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from my_utils import _core

from .harness import case


@case("FormatError")
def format_error(folder: Path) -> Iterator[Callable[[], object]]:
    yield lambda: _core.FormatError("line 1: no comma")
