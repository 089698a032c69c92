"""Hooks for capture windows without a reference to a controller: `capture_hook`.

A library marks its functions once. The program that wants windows chooses the controller to which
they report. Without a controller a marked function costs one more read of an attribute.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ..._core import HookEvent
from ...core.arguments import check_int, check_str_or_none
from ...core.lazy_modules import lazy_module
from ...core.public import public
from ...core.ranks import check_rank, current_rank
from ...core.reprs import short_repr
from ...core.wrapping import Scope, decorate
from .controller import CaptureController
from .reports import Attachment, Reported, forward_name, marked_names, read_meta, report_passes

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_module("torch")

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
    controller: CaptureController | None,
    *,
    role: str | None = None,
    rank: int | None = None,
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
    """Sets the iteration and micro-batch of hooks that name none, for this process.

    None removes it. Cheap: call it at the top of the loop.
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
    meta: for a decorated function; called with its arguments, returns the event's `meta`. Where it
        raises, or returns something else, there is one warning, and the call counts as one without.
    Other keywords are the event's `meta`, which overrides `set_position`; what `meta` returns
    overrides both.

    While no controller is set, no event is made and `meta` is not called. Exceptions go through
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
        HookEvent(profile_name, fixed, role, rank)  # raises for invalid arguments
        if meta is not None and not callable(meta):
            raise TypeError(f"meta must be a function or None, not {meta!r:.100}")
        self._name = profile_name
        self._role = role
        self._rank = rank
        self._meta = meta
        self._fixed = fixed
        self._entered: list[_Block] = []
        marked_names.add(profile_name)

    def __repr__(self) -> str:
        return short_repr(self, "_name", "_role", "_rank")

    def event(
        self,
        controller: CaptureController,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        **least: int,
    ) -> HookEvent:
        """What is reported for a call; `least` is the `meta` that all other overrides."""
        meta = {**least, **_process.position, **self._fixed}
        if self._meta is not None:
            meta.update(read_meta(self._name, self._meta, args, kwargs or {}))
        role = _process.role if self._role is None else self._role
        rank = _rank_for(controller) if self._rank is None else self._rank
        return HookEvent(self._name, meta, role, rank)

    # --- with ---

    def __enter__(self) -> capture_hook:
        if self._meta is not None:
            raise TypeError("meta is for a decorated function; give a block its meta by keywords")
        controller = _process.controller
        report = None
        if controller is not None:
            event = self.event(controller)
            controller.on_enter(event)
            report = (controller, event)
        block = _Block(self, id(sys._getframe(1)), report, _blocks.get())
        self._entered.append(block)
        _blocks.set(block)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        report = self._left(id(sys._getframe(1)))
        if report is not None:
            controller, event = report
            controller.on_exit(event, raised=error is not None)

    def _left(self, frame: int) -> _Report:
        """Ends one of the blocks that were entered: that of the frame, else the innermost of the
        context, as an `ExitStack` enters and leaves from its own frames, else the last."""
        with _process.lock:
            entered = self._entered
            ended = next((block for block in reversed(entered) if block.frame == frame), None)
            ended = ended or _innermost(self) or entered[-1]
            entered.remove(ended)
        report, ended.report = ended.report, None
        ended.is_open = False
        return report

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
            event = self.event(controller, args, kwargs)
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
        return Reported(controller, self.event(controller, args, kwargs))


_Report = tuple[CaptureController, HookEvent] | None


class _Block:
    """A `with` block of a hook."""

    __slots__ = ("frame", "hook", "is_open", "outer", "report")

    def __init__(
        self, hook: capture_hook, frame: int, report: _Report, outer: _Block | None
    ) -> None:
        self.hook = hook
        self.frame = frame  # the id of the one that runs the block
        self.report = report
        self.is_open = True
        while outer is not None and not outer.is_open:
            outer = outer.outer
        self.outer: _Block | None = outer  # in the context


_blocks: contextvars.ContextVar[_Block | None] = contextvars.ContextVar(
    "my_utils.profilers.capture.blocks", default=None
)


def _innermost(hook: capture_hook) -> _Block | None:
    """The innermost open block of the hook in this context."""
    block = _blocks.get()
    while block is not None and not (block.is_open and block.hook is hook):
        block = block.outer
    return block


def attach(
    module: torch.nn.Module,
    profile_name: str | None = None,
    *,
    role: str | None = None,
    rank: int | None = None,
    meta: Callable[[], Mapping[str, Any]] | None = None,
) -> Attachment:
    """Reports every forward pass of a module to the process's controller, as `capture_hook` does
    for functions, until `stop()` of what is returned, a call of it, or the end of a `with` block.

    profile_name: what windows name; by default the module's class and ".forward".
    role, rank: of the event; by default those of `set_default_controller`.
    meta: called before each pass. What it returns overrides the position of `set_position`, which
        overrides `iter`, the number of the pass from 0.

    While no controller is set a pass is only counted. See `CaptureController.attach`.

    >>> import torch
    >>> model = torch.nn.Linear(2, 2)
    >>> with attach(model):  # reports "Linear.forward"
    ...     _ = model(torch.ones(1, 2))
    """
    hook = capture_hook(forward_name(module, profile_name), role=role, rank=rank, meta=meta)

    def event(controller: CaptureController, number: int) -> HookEvent:
        return hook.event(controller, iter=number)

    return report_passes(module, default_controller, event)
