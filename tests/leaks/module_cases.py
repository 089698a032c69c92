"""The leak cases of the times of modules."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from my_utils import _core

from .harness import case


@case(
    "ModuleTimes",
    "ModuleTimes.after_fork",
    "ModuleTimes.collect",
    "ModuleTimes.counts",
    "ModuleTimes.figures",
    "ModuleTimes.has_gpu",
    "ModuleTimes.hooks",
    "ModuleTimes.on",
    "ModuleTimes.watch",
)
def module_times(folder: Path) -> Iterator[Callable[[], object]]:
    def watch(slot: int, result: object, first: int) -> None:
        if result == "raise":
            raise ArithmeticError

    def action() -> None:
        times = _core.ModuleTimes(2, use_cuda=False)
        before, after = times.hooks(0, 1)
        times.watch(lambda: -1, lambda: 1 << 40, watch)
        times.on = True
        for result in ("ok", None, "raise"):
            before("module", ())
            with contextlib.suppress(ArithmeticError):
                after("module", (), result)
        before()
        before()
        times.collect()
        assert times.figures(0)[0][0] == 3 and not times.has_gpu and times.on
        assert times.counts()["dropped"] == 0
        times.after_fork()
        with contextlib.suppress(TypeError):
            times.watch(1, 2, 3)  # type: ignore[arg-type]
        for slot in (2, -1, "0"):
            with contextlib.suppress(TypeError, ValueError):
                times.hooks(slot)  # type: ignore[arg-type]
            with contextlib.suppress(TypeError, ValueError):
                times.figures(slot)  # type: ignore[arg-type]
        with contextlib.suppress(ValueError):
            _core.ModuleTimes(0)

    yield action


@case("ModuleHook", "ModuleHook.__call__", "ModuleHook.__reduce__")
def module_hooks(folder: Path) -> Iterator[Callable[[], object]]:
    times = _core.ModuleTimes(1)
    times.on = True

    def action() -> None:
        for hook in (_core.ModuleHook(), *times.hooks(0, once=True)):
            hook("module", (), None)
            copied, arguments = hook.__reduce__()
            copied(*arguments)("module")

    yield action
