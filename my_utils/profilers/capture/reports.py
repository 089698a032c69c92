"""What reports events to a controller: calls and blocks of functions, and the forward passes of
modules."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._core import CaptureWindows, HookEvent
from ...core.lazy_modules import lazy_module
from ...core.running_frames import is_running
from ...core.warnings import warn_once
from ...core.wrapping import Scope

if TYPE_CHECKING:
    import torch
    import torch.utils.hooks
else:
    torch = lazy_module("torch")

marked_names: set[str] = set()
"""The names that hooks of this process were made for, whether they were called or not."""


def read_meta(
    name: str,
    meta: Callable[..., Mapping[str, Any] | None],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """What `meta` returns for a call; {} with one warning where that is not a mapping, or raises:
    the training continues."""
    try:
        found = meta(*args, **kwargs)
        return {} if found is None else dict(found)
    except Exception as error:
        text = f"capture hook {name!r}: its meta function gave no mapping"
        warn_once(f"capture_meta:{name}", f"{text}: {type(error).__name__}: {error}")
        return {}


class Reported(Scope):
    """One event, reported at both ends of a call or a block."""

    __slots__ = ("_controller", "_event")

    def __init__(self, controller: CaptureWindows, event: HookEvent) -> None:
        self._controller = controller
        self._event = event

    def __enter__(self) -> None:
        self._controller.on_enter(self._event)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._controller.on_exit(self._event, raised=error is not None)


# --- forward passes ---


def forward_name(module: torch.nn.Module, profile_name: str | None) -> str:
    """The name for the passes of a module; TypeError for anything else."""
    if not callable(getattr(module, "register_forward_pre_hook", None)):
        raise TypeError(f"module must be a torch.nn.Module, not {module!r:.100}")
    return f"{type(module).__name__}.forward" if profile_name is None else profile_name


def report_passes(
    module: torch.nn.Module,
    controller: Callable[[], CaptureWindows | None],
    event: Callable[[Any, int], HookEvent],
) -> Attachment:
    """Reports passes to the controller of their moment.

    event: makes what is reported, from the controller and the number of the pass.
    """
    passes = _Passes(controller, event)
    handles = (
        module.register_forward_pre_hook(passes.before),
        module.register_forward_hook(passes.after, always_call=True),
    )
    return Attachment(handles)


class Attachment:
    """A module whose passes are reported, until it is called, `stop()`, or the end of a `with`
    block; any number of times."""

    def __init__(self, handles: Sequence[torch.utils.hooks.RemovableHandle]) -> None:
        self._handles = handles

    def stop(self) -> None:
        """Takes the hooks off the module."""
        for handle in self._handles:
            handle.remove()

    __call__ = stop

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Pass(NamedTuple):
    """A pass that runs."""

    report: tuple[CaptureWindows, HookEvent] | None
    handled: BaseException | None  # which exception was handled as it began
    caller: FrameType  # torch's call of the module

    def end(self, *, raised: bool) -> None:
        if self.report is not None:
            controller, event = self.report
            controller.on_exit(event, raised=raised)


class _Running(threading.local):
    """The passes of a thread, the innermost last."""

    def __init__(self) -> None:
        self.passes: list[_Pass] = []


class _Passes:
    """The hooks of one module."""

    def __init__(
        self,
        controller: Callable[[], CaptureWindows | None],
        event: Callable[[Any, int], HookEvent],
    ) -> None:
        self._controller = controller
        self._event = event
        self._count = 0
        self._lock = threading.Lock()
        self._running = _Running()

    def before(self, *_: object) -> None:
        running = self._running.passes
        _end_the_interrupted(running)
        with self._lock:
            number, self._count = self._count, self._count + 1
        controller = self._controller()
        report = None if controller is None else (controller, self._event(controller, number))
        running.append(_Pass(report, sys.exception(), sys._getframe(1)))
        if report is not None:
            report[0].on_enter(report[1])

    def after(self, _: object, __: object, output: object) -> None:
        running = self._running.passes
        if running:  # else attached in the middle of it
            ended = running.pop()
            # torch hands None to hooks of a pass that raised, and a pass may return None.
            raised = output is None and sys.exception() is not ended.handled
            ended.end(raised=raised)

    def __reduce__(self) -> tuple[Callable[[], _Passes], tuple[()]]:
        """The hooks of a copy of the module, by deepcopy or pickle."""
        return _silent_passes, ()


def _silent_passes() -> _Passes:
    """Hooks that report nothing."""
    return _Passes(lambda: None, lambda controller, number: HookEvent("a copy"))


def _end_the_interrupted(running: list[_Pass]) -> None:
    """torch calls no hook after what is not an Exception, such as a Ctrl-C: ends the passes that
    run no more."""
    while running and not is_running(running[-1].caller):
        running.pop().end(raised=True)
