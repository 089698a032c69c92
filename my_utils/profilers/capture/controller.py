"""Capture windows: a profiler that starts at one call of one function and stops at another.

Functions report when they begin and end, by `on_enter` and `on_exit`. An armed window defines where
to start and where to stop. While none is armed, a report costs as much as an empty call.

>>> from my_utils.profiling.backends import CaptureBackend
>>> class Loud(CaptureBackend):
...     def start(self) -> None: print("start")
...     def stop(self) -> None: print("stop")
>>> controller = CaptureController(Loud())
>>> controller.arm({"window_id": "w1", "start_profile_names": ["forward"], "start_iter": 10})
>>> for step in (9, 10, 11):
...     with controller.hook("forward", iter=step):
...         print("step", step)
step 9
start
step 10
stop
step 11
"""

from __future__ import annotations

import contextlib
import difflib
import enum
import logging
import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar, get_type_hints

from ... import _core
from ..._core import HookEvent
from ...core.aliases import renamed_parameters
from ...core.arguments import wrong_type
from ...core.lazy_modules import lazy_module
from ...core.process_end import call_at_end
from ...core.public import public
from ...core.reprs import short_repr
from ...core.warnings import warn_once
from ...core.wrapping import Scope, decorate
from .backends import (
    CaptureBackend,
    begin_range,
    check_backend,
    list_files,
    make_backend,
    start_backend,
    stop_backend,
)
from .reports import (
    Attachment,
    Reported,
    forward_name,
    marked_names,
    read_meta,
    report_passes,
)
from .spec import CaptureSpec, StopPolicy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_module("torch")

_F = TypeVar("_F", bound=Callable[..., Any])
_package_logger = logging.getLogger("my_utils")


@public("my_utils.profiling.capture_controller")
class CaptureState(enum.StrEnum):
    """IDLE: nothing is armed. ARMED: a window waits. CAPTURING: one is open."""

    IDLE = "idle"
    ARMED = "armed"
    CAPTURING = "capturing"


@public("my_utils.profiling.capture_controller")
class CaptureController(_core.CaptureWindows):
    """Starts and stops a backend when hooks reach the armed windows.

    backend: what is started and stopped; see `my_utils.profiling.backends`.
    logger: for messages; the package's by default.

    `on_enter(event)` and `on_exit(event, raised=False)` are called by the profiled functions, or by
    `hook`, `wrap` and `attach`. They raise only TypeError, if the event is not a `HookEvent`, and
    let an exception of the function through.

    One window is open at a time. If several could open at the same moment, the one that was armed
    first opens. The outcome of a window, in the log and in `outcomes`:

        done        opened, and closed as its policy says
        raised      closed because its trigger, or its stop function, raised
        overrun     closed because its stop was missed, or after `max_iters` iterations
        abandoned   closed because the call that opened it cannot end any more
        disarmed    cancelled by `disarm`, or replaced by another of its id
        failed      the backend raised at the start, or could not record, and is not stopped then;
                    or it raised at the end: what it had captured is lost
        late        never opened: the iteration of its start gate was over
        overlapped  never opened: another window was open at its moment

    A window belongs to the call that opened it, in whatever thread or task that runs. The end of a
    call is found by its event, if the same object reported the beginning. Else it is found by the
    context (contextvars): the innermost call of that name whose iteration, micro-batch, role and
    rank fit.

    `outcomes` keeps the newest 1,000 windows that have ended, the latest at its end.

    Each window opens once. Arming an id that waits replaces it; one that is open stays, and `arm`
    raises RuntimeError. An open window is closed by `close`, at the end of a `with` block and when
    the process exits. A forked child has none.
    All methods may be called from any thread; hooks that the backend itself triggers are ignored.
    """

    @renamed_parameters(
        {
            "enable_nvtx_window": (False, "nvtx=True in the spec of a window makes its range"),
            "nvtx_domain": (None, "ranges of windows are in NVTX's default domain"),
        }
    )
    def __init__(self, backend: CaptureBackend, logger: logging.Logger | None = None) -> None:
        self.backend: CaptureBackend = check_backend("backend", backend)
        self.logger = _package_logger if logger is None else logger
        self.outcomes: dict[str, str] = {}
        self._specs: dict[str, CaptureSpec] = {}
        self._ranges: dict[str, Callable[[], object] | None] = {}  # end them
        self._details: dict[str, str] = {}  # why windows are not done
        self._opened: set[str] = set()  # ids of pending windows
        self._lost: set[str] = set()  # ids of windows whose backend raised at their end
        self._files_before: list[str] = []  # of its backend, as the open window began
        self._files: dict[str, list[str]] = {}  # that windows wrote, by their ids
        self._made: list[tuple[Mapping[str, Any], CaptureBackend]] = []
        _alive.add(self)

    def __repr__(self) -> str:
        return short_repr(self, "backend", "window", "armed")

    # --- arming ---

    def arm(self, spec: CaptureSpec | Mapping[str, Any]) -> None:
        """Arms a window, or raises TypeError or ValueError that names the field.

        RuntimeError when the window of that id is open, or 64 windows wait already.
        """
        if not isinstance(spec, CaptureSpec):
            if not isinstance(spec, Mapping):
                raise wrong_type("spec", "a mapping or a CaptureSpec", spec)
            spec = CaptureSpec.from_mapping(spec)
        call_at_end(_close_all)
        before = self._specs.get(spec.window_id)
        if self.window != spec.window_id:
            self._specs[spec.window_id] = spec  # first: another thread may open it at once
            self._opened.discard(spec.window_id)
            self._details.pop(spec.window_id, None)
        try:
            self.arm_spec(spec)
        except BaseException:
            if before is None:
                self._specs.pop(spec.window_id, None)
            else:
                self._specs[spec.window_id] = before
            raise
        known = self._known_names()
        for name in self.never_reported(spec):
            for likely in difflib.get_close_matches(name, known, n=1):
                self._warn_of_name(name, f"; is it {likely!r}?")

    def _warn_of_name(self, name: str, more: str) -> None:
        text = f"no hook of this process has reported {name!r}, which a capture window waits for"
        warn_once(f"capture_name:{name}", text + more, self.logger)

    def _known_names(self) -> set[str]:
        return self.reported() | marked_names

    def never_reported(self, spec: CaptureSpec) -> list[str]:
        """The functions of a window that no hook has reported while a window waited, and that no
        hook was made for: mostly misspelt names."""
        used = [*spec.start_profile_names]
        if spec.stop_policy == StopPolicy.ON_STOP_PROFILE_NAME:
            used += spec.stop_profile_names
        known = self._known_names()
        return [name for name in dict.fromkeys(used) if name not in known]

    def disarm(self, window_id: str | None = None) -> bool:
        """Cancels one window, or all by default, and closes an open one. Returns whether there was
        any."""
        if window_id is not None:
            return self.disarm_window(window_id)
        open_id, armed = self.pending()
        found = [name for name in (open_id, *armed) if name is not None]
        taken = [self.disarm_window(name) for name in found]
        return any(taken)

    def close(self) -> None:
        """Cancels all windows and closes the open one, as the end of the process does; others may
        be armed afterwards."""
        self.disarm()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def state(self) -> CaptureState:
        """Whether a window is open, or waits."""
        open_id, armed = self.pending()
        if open_id is not None:
            return CaptureState.CAPTURING
        return CaptureState.ARMED if armed else CaptureState.IDLE

    @property
    def window(self) -> str | None:
        """The id of the open window."""
        return self.pending()[0]

    @property
    def armed(self) -> list[str]:
        """The ids of the windows that wait."""
        return self.pending()[1]

    def state_of(self, window_id: str) -> str:
        """The outcome of a window, "open" or "armed" while it has none, or "unknown". After a
        colon comes why it is not done, if known."""
        open_id, armed = self.pending()
        if window_id == open_id or window_id in armed:
            spec = self._specs.get(window_id)
            names = [] if spec is None else self.never_reported(spec)
            return _stated("open" if window_id == open_id else "armed", _not_reported(names))
        outcome = self.outcomes.get(window_id)
        detail = self._details.get(window_id, "")
        return _stated(outcome, detail) if outcome else detail or "unknown"

    def take_files(self, window_id: str) -> list[str]:
        """The paths of what the backend of a window wrote each time that it was open, since this
        was called last."""
        return self._files.pop(window_id, [])

    def note(self, window_id: str, text: str) -> None:
        """Keeps why a window was not armed here, for `state_of`."""
        self._details[window_id] = text

    # --- what the C part calls ---

    def _open(self, window_id: str) -> bool:
        spec = self._specs.get(window_id)
        try:
            backend = self._choose_backend(spec)
            self._files_before = list_files(backend)
            reason = start_backend(backend, window_id)
        except Exception as error:
            self.logger.exception("capture window %s: the backend could not be started", window_id)
            self._details[window_id] = f"{type(error).__name__}: {error}"
            return False
        if reason is not None:
            self._details[window_id] = reason
            return False
        _capturing.add(self)
        self._opened.add(window_id)
        if spec is not None and spec.nvtx:
            name = spec.nvtx if isinstance(spec.nvtx, str) else window_id
            self._ranges[window_id] = begin_range(name)
        self.logger.info("capture window %s: open", window_id)
        return True

    def _close(self, window_id: str) -> None:
        _capturing.discard(self)
        end_range = self._ranges.pop(window_id, None)
        if end_range is not None:
            end_range()
        backend = self._choose_backend(self._specs.get(window_id))
        try:
            stop_backend(backend, window_id)
        except Exception as error:
            self.logger.exception("capture window %s: the backend could not be stopped", window_id)
            self._details[window_id] = f"{type(error).__name__}: {error}"
            self._lost.add(window_id)
        written = Counter(list_files(backend)) - Counter(self._files_before)
        self._files.setdefault(window_id, []).extend(written.elements())

    def _choose_backend(self, spec: CaptureSpec | None) -> CaptureBackend:
        """The window's own backend, or the controller's. Equal settings share one backend."""
        if spec is None or spec.backend is None:
            return self.backend
        for asked, backend in self._made:
            if asked == spec.backend:
                return backend
        self._made.append((spec.backend, make_backend(**spec.backend)))
        return self._made[-1][1]

    def _task(self) -> object:
        """The asyncio task in which a window opens; one that is done ends no call."""
        asyncio = sys.modules.get("asyncio")
        try:
            return None if asyncio is None else asyncio.current_task()
        except RuntimeError:  # no event loop runs here
            return None

    def _ended(self, window_id: str, outcome: str) -> None:
        if window_id in self._lost:
            self._lost.discard(window_id)
            outcome = "failed" if outcome in ("done", "disarmed") else outcome
        self._keep_outcome(window_id, outcome)
        if window_id not in self.armed and window_id != self.window:  # not armed again meanwhile
            spec, was_open = self._specs.pop(window_id, None), window_id in self._opened
            self._opened.discard(window_id)
            missed = outcome in _MISSED or (outcome == "disarmed" and not was_open)
            if spec is not None and missed:
                self._warn_of_unknown(spec)
        unlucky = outcome not in ("done", "disarmed")
        self.logger.log(
            logging.WARNING if unlucky else logging.INFO,
            "capture window %s: %s",
            window_id,
            _MEANING[outcome],
        )

    def _keep_outcome(self, window_id: str, outcome: str) -> None:
        self.outcomes.pop(window_id, None)
        self.outcomes[window_id] = outcome
        while len(self.outcomes) > _OUTCOMES_KEPT:
            oldest = next(iter(self.outcomes))
            del self.outcomes[oldest]
            if oldest not in self._specs:
                self._details.pop(oldest, None)
                self._files.pop(oldest, None)

    def _warn_of_unknown(self, spec: CaptureSpec) -> None:
        known = sorted(self._known_names())[:_NAMES_SHOWN]
        missing = self.never_reported(spec)
        if missing:
            self._details[spec.window_id] = _not_reported(missing)
        for name in missing:
            self._warn_of_name(name, f"; it knows {', '.join(known) or 'none'}")

    # --- hooks ---

    @contextlib.contextmanager
    def hook(
        self,
        profile_name: str,
        *,
        role: str | None = None,
        rank: int | None = None,
        **meta: Any,
    ) -> Iterator[None]:
        """Reports the beginning and the end of a block; keywords are the event's `meta`."""
        event = HookEvent(profile_name, meta, role, rank)
        self.on_enter(event)
        try:
            yield
        except BaseException:
            self.on_exit(event, raised=True)
            raise
        self.on_exit(event)

    def wrap(
        self,
        profile_name: str,
        *,
        role: str | None = None,
        rank: int | None = None,
        meta: Callable[..., dict[str, Any]] | None = None,
    ) -> Callable[[_F], _F]:
        """A decorator that reports every call of a function, a coroutine function or a generator.

        meta: called with the function's arguments, returns the event's `meta`. Where it raises, or
            returns something else, there is one warning, and the call counts as one without.
        """
        HookEvent(profile_name, None, role, rank)  # raises for invalid arguments
        marked_names.add(profile_name)

        def reported(function: _F) -> _F:
            def scope(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Scope:
                found = {} if meta is None else read_meta(profile_name, meta, args, kwargs)
                return Reported(self, HookEvent(profile_name, found, role, rank))

            decorated: _F = decorate(function, scope, decorator="CaptureController.wrap")
            return decorated

        return reported

    def attach(
        self,
        module: torch.nn.Module,
        profile_name: str | None = None,
        *,
        role: str | None = None,
        rank: int | None = None,
        meta: Callable[[], dict[str, Any]] | None = None,
    ) -> Attachment:
        """Reports every forward pass of a module, until `stop()` of what is returned, a call of it,
        or the end of a `with` block.

        profile_name: what windows name; by default the module's class and ".forward", such as
            "GPT2Model.forward".
        meta: called before each pass; by default `iter` counts the passes from 0.

        Passes may nest, and come from several threads. A copy of the module reports nothing. With
        `torch.compile`, attach to what it returns. TypeError if it is not a module.
        """
        name = forward_name(module, profile_name)
        HookEvent(name, None, role, rank)  # raises for invalid arguments
        marked_names.add(name)

        def event(controller: CaptureController, passes: int) -> HookEvent:
            found = {"iter": passes} if meta is None else read_meta(name, meta, (), {})
            return HookEvent(name, found, role, rank)

        return report_passes(module, lambda: self, event)


def _not_reported(names: list[str]) -> str:
    return f"no hook has reported {', '.join(map(repr, names))}" if names else ""


def _stated(state: str, detail: str) -> str:
    return f"{state}: {detail}" if detail else state


_MISSED = ("overrun", "late", "abandoned")
_NAMES_SHOWN = 10
_OUTCOMES_KEPT = 1000

_MEANING = {
    "done": "done",
    "raised": "closed by an exception",
    "overrun": "closed, its stop iteration was over, or its max_iters",
    "abandoned": "closed, the call that opened it cannot end any more",
    "disarmed": "disarmed",
    "failed": "failed",
    "late": "dropped, its start iteration was over",
    "overlapped": "dropped, another window was open",
}


# --- the process ---

_alive: weakref.WeakSet[CaptureController] = weakref.WeakSet()
_capturing: set[CaptureController] = set()  # those with an open window, which must be closed


def _close_all() -> None:
    for controller in list(_alive):
        controller.disarm()


def _forget_all() -> None:
    _capturing.clear()
    for controller in list(_alive):
        controller.forget_all()


os.register_at_fork(after_in_child=_forget_all)


@dataclass
class _HookEventFields:
    """The fields, for `dataclasses.fields`, `asdict` and `replace`, and for subclasses."""

    profile_name: str
    meta: dict[str, Any] | None = None
    role: str | None = None
    rank: int | None = None


for _name in ("__dataclass_fields__", "__dataclass_params__"):
    setattr(HookEvent, _name, getattr(_HookEventFields, _name))
HookEvent.__annotations__ = get_type_hints(_HookEventFields)
