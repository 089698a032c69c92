"""The leak cases of capture windows."""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from my_utils import _core
from my_utils.profiling.capture_controller import CaptureSpec

from .harness import case

FIELDS: dict[str, Any] = {
    "start_profile_names": ("f", "g"),
    "start_iter": 1,
    "roles": ("r",),
    "ranks": (0, 1),
    "max_iters": 9,
}


class Windows(_core.CaptureWindows):
    def _open(self, window_id: str) -> bool:
        return window_id != "broken"

    def _close(self, window_id: str) -> None:
        pass

    def _ended(self, window_id: str, outcome: str) -> None:
        pass

    def _task(self) -> None:
        pass


@case(
    "HookEvent",
    *(f"HookEvent.__{name}__" for name in ("eq", "ge", "gt", "le", "lt", "ne", "reduce", "repr")),
)
def hook_events(folder: Path) -> Iterator[Callable[[], object]]:
    meta = {"iter": 1}

    def action() -> None:
        event = _core.HookEvent(profile_name="f", meta=meta, role="r", rank=0)
        assert event == _core.HookEvent("f", meta, "r", 0)
        assert not event != _core.HookEvent("f", meta, "r", 0)  # noqa: SIM202
        for compare in (operator.lt, operator.le, operator.gt, operator.ge):
            with contextlib.suppress(TypeError):
                compare(event, event)  # type: ignore[arg-type]
        repr(event)
        event.__reduce__()
        with contextlib.suppress(TypeError):
            _core.HookEvent(name="f")  # type: ignore[call-arg]
        with contextlib.suppress(TypeError):
            _core.HookEvent("f", rank="0")  # type: ignore[arg-type]

    yield action


class OwnEvent(_core.HookEvent):
    pass


@case("HookEvent", repeat=500)
def more_hook_events_than_are_kept(folder: Path) -> Iterator[Callable[[], object]]:
    def action() -> None:
        events = [_core.HookEvent("f", {"iter": number}) for number in range(40)]
        events.append(OwnEvent("f", {"iter": -1}))
        for event in events[::2]:
            assert event.meta is not None
            event.meta["itself"] = event  # found by the collector, or it stays for ever

    yield action


@case(
    "CaptureWindows",
    "CaptureWindows.arm_spec",
    "CaptureWindows.disarm_window",
    "CaptureWindows.forget_all",
    "CaptureWindows.on_enter",
    "CaptureWindows.on_exit",
    "CaptureWindows.pending",
    "CaptureWindows.reported",
    repeat=500,
)
def capture_windows(folder: Path) -> Iterator[Callable[[], object]]:
    event = _core.HookEvent("f", {"iter": 1}, "r", 0)
    specs = [CaptureSpec(window_id=name, **FIELDS) for name in ("one", "broken", "one", "left")]
    wrong: list[Any] = [SimpleNamespace(window_id="bad", **FIELDS)]
    for change in ({"stop_policy": "NEVER"}, {"ranks": ("0",)}, {"roles": 1}, {"max_iters": 0}):
        wrong.append(SimpleNamespace(**{**dataclasses.asdict(specs[0]), **change}))

    def action() -> None:
        found = Windows()
        for spec in specs:
            found.arm_spec(spec)
        found.on_enter(event)
        found.on_enter(_core.HookEvent("f", {"iter": "1"}, "r", 0))  # nobody ends it
        found.pending()
        found.reported()
        found.on_exit(event, raised=True)
        found.disarm_window("left")
        for spec in wrong:
            with contextlib.suppress(AttributeError, TypeError, ValueError):
                found.arm_spec(spec)
        with contextlib.suppress(TypeError):
            found.on_enter("f")  # type: ignore[arg-type]

    yield action
