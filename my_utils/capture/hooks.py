"""Hooks for capture windows without a controller in hand: `capture_hook`, and what it reports to.

A library marks its functions once. The program that wants windows chooses the controller to which
they report. Without a controller a marked function costs one more read of an attribute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from .._core import HookEvent
from ..common.arguments import check_int, check_str_or_none
from ..common.public import public
from ..common.ranks import check_rank, current_rank
from ..common.reprs import short_repr
from ..common.wrapping import Scope, decorate

if TYPE_CHECKING:
    from types import TracebackType

    from .controller import CaptureController

__all__ = [
    "Reported",
    "capture_hook",
    "default_controller",
    "set_default_controller",
    "set_position",
]

_F = TypeVar("_F", bound=Callable[..., Any])


class _Process:
    """What all hooks of the process share. Fields are replaced, never changed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.controller: CaptureController | None = None
        self.role: str | None = None
        self.rank: int | None = None
        self.position: Mapping[str, int] = {}

    def __reduce__(self) -> str:
        """By its name: Ray ships decorated functions with what they refer to."""
        return "_process"


_process = _Process()


def set_default_controller(
    controller: CaptureController | None, *, role: str | None = None, rank: int | None = None
) -> CaptureController | None:
    """Sets the controller that `capture_hook` reports to, None for none. Returns the one before.

    role, rank: of hooks that name none; the rank is this process's by default.
    """
    if controller is not None and not callable(getattr(controller, "on_enter", None)):
        raise TypeError(f"controller must be a CaptureController or None, not {controller!r:.100}")
    check_str_or_none("role", role)
    found = None if rank is None else check_rank("rank", rank)
    with _process.lock:
        before, _process.controller = _process.controller, controller
        _process.role, _process.rank = role, found
    return before


def default_controller() -> CaptureController | None:
    """The controller that `capture_hook` reports to."""
    return _process.controller


def _rank_for(controller: CaptureController) -> int | None:
    """This process's rank. It takes some microseconds, so it is read while windows are armed only.

    A rank of 0 is read again, because it is also the value before a rank is known.
    """
    if _process.rank is None and any(controller.pending()):
        rank = current_rank()
        _process.rank = rank or None
        return rank
    return _process.rank


def play_role(role: str) -> None:
    """Sets the role of hooks that name none, unless one is set already."""
    with _process.lock:
        _process.role = _process.role or role


def set_position(iter: int | None, microbatch_index: int | None = None) -> None:
    """The iteration and micro-batch of hooks that bring none, for this process.

    None takes it back. Cheap: call it at the top of the loop.
    """
    position = {}
    for name, value in (("iter", iter), ("microbatch_index", microbatch_index)):
        if value is not None:
            position[name] = check_int(name, value, or_none=True)
    _process.position = position


@public("my_utils.profiling.capture_controller")
class capture_hook:
    """Reports a function or a block to the process's controller, see `set_default_controller`.

    As a decorator, of a function or method of any kind, or with `with`:

        @capture_hook("generator.forward", meta=lambda self, batch: {"iter": batch.step})
        def forward(self, batch): ...

        with capture_hook("train.step", iter=step, microbatch_index=0): ...

    profile_name: what windows name. role, rank: of the event; by default those of
        `set_default_controller`.
    meta: for a decorated function; called with its arguments, returns the event's `meta`. What it
        raises goes through.
    Other keywords are the event's `meta`, on top of `set_position`'s and below those of `meta`.

    While no controller is set, nothing is made and `meta` is not called. Exceptions go through
    unchanged and close the window that the call opened. One object may be used any number of times,
    nested and from several threads.

    >>> from my_utils.profiling.backends import CaptureBackend
    >>> from my_utils.profiling.capture_controller import CaptureController
    >>> class Loud(CaptureBackend):
    ...     def start(self) -> None: print("start")
    ...     def stop(self) -> None: print("stop")
    >>> controller = CaptureController(Loud())
    >>> controller.arm({"window_id": "w", "start_profile_names": ["forward"], "start_iter": 1})
    >>> @capture_hook("forward")
    ... def forward() -> None: print("forward")
    >>> before = set_default_controller(controller)
    >>> for step in range(2):
    ...     set_position(step)
    ...     forward()
    forward
    start
    forward
    stop
    >>> _ = set_default_controller(before); set_position(None)
    """

    __slots__ = ("_entered", "_fixed", "_meta", "_name", "_rank", "_role")

    def __init__(
        self,
        profile_name: str,
        *,
        role: str | None = None,
        rank: int | None = None,
        meta: Callable[..., Mapping[str, Any]] | None = None,
        **fixed: Any,
    ) -> None:
        HookEvent(profile_name, fixed, role, rank)  # raises for what is none
        if meta is not None and not callable(meta):
            raise TypeError(f"meta must be a function or None, not {meta!r:.100}")
        self._name = profile_name
        self._role = role
        self._rank = rank
        self._meta = meta
        self._fixed = fixed
        self._entered: list[tuple[CaptureController, HookEvent] | None] = []

    def __repr__(self) -> str:
        return short_repr(self, "_name", "_role", "_rank")

    def _event(
        self, controller: CaptureController, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> HookEvent:
        return self._made(controller, {**_process.position, **self._fixed}, args, kwargs)

    def event(self, controller: CaptureController, **least: int) -> HookEvent:
        """What is reported; `least` is the `meta` that all other overrides."""
        return self._made(controller, {**least, **_process.position, **self._fixed}, (), {})

    def _made(
        self,
        controller: CaptureController,
        meta: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> HookEvent:
        if self._meta is not None:
            meta.update(self._meta(*args, **kwargs))
        role = _process.role if self._role is None else self._role
        rank = _rank_for(controller) if self._rank is None else self._rank
        return HookEvent(self._name, meta, role, rank)

    # --- with ---

    def __enter__(self) -> capture_hook:
        controller = _process.controller
        if controller is None:
            self._entered.append(None)
            return self
        event = self._event(controller, (), {}) if self._meta is None else self._without_call()
        controller.on_enter(event)
        self._entered.append((controller, event))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        entered = self._entered.pop()
        if entered is not None:
            controller, event = entered
            controller.on_exit(event, raised=error is not None)

    def _without_call(self) -> HookEvent:
        raise TypeError("meta is for a decorated function; give a block its meta by keywords")

    # --- decorator ---

    def __call__(self, function: _F) -> _F:
        decorated: _F = decorate(
            function, self._scope, decorator="capture_hook", plain=self._around_plain
        )
        return decorated

    def _around_plain(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            controller = _process.controller
            if controller is None:
                return function(*args, **kwargs)
            event = self._event(controller, args, kwargs)
            controller.on_enter(event)
            try:
                result = function(*args, **kwargs)
            except BaseException:
                controller.on_exit(event, raised=True)
                raise
            controller.on_exit(event)
            return result

        return wrapper

    def _scope(self, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Scope:
        controller = _process.controller
        if controller is None:
            return Scope()
        return Reported(controller, self._event(controller, args, kwargs))


class Reported(Scope):
    """One event, reported at both ends of a call or a block."""

    __slots__ = ("_controller", "_event")

    def __init__(self, controller: CaptureController, event: HookEvent) -> None:
        self._controller = controller
        self._event = event

    def __enter__(self) -> None:
        self._controller.on_enter(self._event)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._controller.on_exit(self._event, raised=error is not None)
