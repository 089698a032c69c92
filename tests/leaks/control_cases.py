"""The leak cases of requests from outside."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from my_utils import _core

from .harness import case


@case("set_step_hook", "take_control", "watch_steps", repeat=60)
def requests_that_are_read(folder: Path) -> Iterator[Callable[[], object]]:
    path = folder / "my_utils.control.json"
    path.write_bytes(b"x" * 5000)
    timer = _core.Timer("train")
    heard: list[tuple[object, ...] | None] = []

    def hook(timer: _core.Timer, step: int) -> None:
        heard[:] = [_core.take_control(), _core.take_control()]
        if step == 2:
            raise OSError

    def action() -> None:
        _core.set_step_hook(hook)
        _core.open_output(log_dir=folder)
        timer.set_step(1)
        assert heard == [(b"x" * 5000, "", True), None]
        _core.watch_steps(True)
        with contextlib.suppress(OSError):
            timer.set_step(2)
        _core.watch_steps(False)
        with contextlib.suppress(TypeError):
            _core.set_step_hook(3)  # type: ignore[arg-type]
        with contextlib.suppress(TypeError):
            _core.watch_steps(3)  # type: ignore[arg-type]
        _core.close_output()
        path.unlink()
        os.symlink("nowhere", path)
        _core.open_output(log_dir=folder)  # and what waits is dropped
        _core.close_output()
        path.unlink()
        path.write_bytes(b"x" * 5000)
        _core.set_step_hook(None)

    yield action
