"""The leak cases of the stacks of the own process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from my_utils import _core

from .harness import case


@case("read_stacks", "stacks_off", repeat=200)
def stacks_that_are_read(folder: Path) -> Iterator[Callable[[], object]]:
    def action() -> None:
        assert _core.stacks_off() == ""
        assert _core.read_stacks(3)
        with contextlib.suppress(ValueError):
            _core.read_stacks(0)
        with contextlib.suppress(TypeError):
            _core.read_stacks(1, 2)  # type: ignore[call-arg]

    yield action
