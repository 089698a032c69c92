"""Runs a profiler from one forward pass of a model to another, without a change of the loop.

>>> import torch
>>> from my_utils.profiling.backends import CaptureBackend
>>> class Loud(CaptureBackend):
...     def start(self) -> None: print("start")
...     def stop(self) -> None: print("stop")
>>> model = torch.nn.Linear(2, 2)
>>> hook = ForwardProfilerHook(start_iter=1, stop_iter=3, backend=Loud()).attach(model)
>>> for step in range(5):
...     print("pass", step)
...     _ = model(torch.ones(1, 2))
pass 0
pass 1
start
pass 2
pass 3
stop
pass 4
>>> hook.outcome
'done'
>>> hook.stop()
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ... import _core
from ...core.arguments import check_bool, check_int, check_str_or_none
from ...core.lazy_modules import lazy_module
from ...core.process_end import call_at_end
from ...core.public import public
from ...core.ranks import check_ranks, is_chosen
from ...core.warnings import warn_once
from .backends import (
    CaptureBackend,
    CudaProfilerBackend,
    begin_range,
    check_backend,
    start_backend,
    stop_backend,
)

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_module("torch")


_logger = logging.getLogger("my_utils")


@public("my_utils.ForwardProfileHook")
class ForwardProfilerHook(_core.ForwardPasses):
    """Starts a profiler as one forward pass of a module begins, and stops it as another does.

    start_iter, stop_iter: the window is [start_iter, stop_iter), in passes since `attach`, counted
        from 0. It opens as pass start_iter begins and closes as pass stop_iter begins, so that
        it holds the passes start_iter … stop_iter − 1 whole, each with its backward pass and
        optimizer step.
    rank_only: the ranks that profile, an int or several; None for all. The rank is that of
        `GlobalLogger().setup`, torch.distributed or the launcher, at `attach`. `ranks` is another
        name for it.
    nvtx_range: the name of an NVTX range around the window; also what a backend names its files
        after.
    backend: what is started, see `my_utils.profiling.backends`; `CudaProfilerBackend()` by default,
        for `nsys --capture-range=cudaProfilerApi` and ncu.
    forward_only: close the window when pass stop_iter − 1 returns.

    A pass is a call of the module that is not made by another call of it in the same thread: a
    module that calls itself makes one. Passes of several threads count in the order in which they
    begin. Copies of the module are not counted; the replicas of DataParallel are copies, so attach
    to the DataParallel object, which makes one pass a step.

    The window opens once, and closes early when a pass raises, at `stop` or the end of a block
    `with hook.start(model):`, when the module is gone or when the process exits; `outcome` says
    which. torch calls no hook at a Ctrl-C: the window then closes at the next of these events or at
    the next pass. A forked child has no window and counts nothing. What the backend raises is
    logged, and the training continues. Outside the window a pass costs at most two times what an
    empty hook in Python does. All methods may be called from any thread.

    TypeError and ValueError name the argument.
    """

    def __init__(
        self,
        start_iter: int,
        stop_iter: int,
        rank_only: int | Iterable[int] | None = None,
        nvtx_range: str | None = None,
        backend: CaptureBackend | None = None,
        *,
        ranks: int | Iterable[int] | None = None,
        forward_only: bool = False,
    ) -> None:
        self.start_iter = _check_iter("start_iter", start_iter, 0)
        self.stop_iter = _check_iter("stop_iter", stop_iter, self.start_iter + 1)
        if rank_only is not None and ranks is not None:
            raise ValueError("rank_only and ranks are the same; give one of them")
        self.ranks = check_ranks("rank_only", rank_only if ranks is None else ranks)
        self.nvtx_range = check_str_or_none("nvtx_range", nvtx_range)
        self.forward_only = check_bool("forward_only", forward_only)
        self.backend: Any = check_backend(
            "backend", CudaProfilerBackend() if backend is None else backend
        )
        self.outcome: str | None = None
        """What became of the window: None while it waits, "open", "done", "raised" by a pass,
        "failed" to start, to record or to stop, "detached" while it was open, or "exited" with the
        process."""
        self._lock = threading.RLock()
        self._module: weakref.ref[torch.nn.Module] | None = None
        self._handles: list[Any] = []
        self._range: Callable[[], object] | None = None  # ends it
        _alive.add(self)

    @property
    def window_id(self) -> str:
        """Names the window, in messages and files of the backend."""
        return self.nvtx_range or f"forward_{self.start_iter}-{self.stop_iter}"

    def attach(self, model: torch.nn.Module) -> ForwardProfilerHook:
        """Another name for `start`."""
        return self.start(model)

    def start(self, model: torch.nn.Module) -> ForwardProfilerHook:
        """Counts the passes of a module from now on, from 0; returns this object, for `with`.

        On ranks that are not chosen nothing is attached. RuntimeError while it is attached already.
        With `torch.compile`, attach to what it returns.
        """
        if not callable(getattr(model, "register_forward_pre_hook", None)):
            raise TypeError(f"model must be a torch.nn.Module, not {model!r:.100}")
        with self._lock:
            if self._module is not None:
                raise RuntimeError("the hook is attached to a module; stop it first")
            if not is_chosen(self.ranks):
                return self
            self.outcome = None
            call_at_end(_close_all)
            self._module = weakref.ref(model, self._module_is_gone)
            self.count_passes(model, self.start_iter, self.stop_iter, self.forward_only)
            self._handles = [
                model.register_forward_pre_hook(self.before),
                model.register_forward_hook(self.after, always_call=True),
            ]
        return self

    def stop(self) -> None:
        """Closes the window if it is open, and removes the hooks; any number of times."""
        with self._lock:
            self._closes("detached")
            self._leave()

    def __enter__(self) -> ForwardProfilerHook:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def attached(self) -> bool:
        """Whether it counts the passes of a module."""
        return self._module is not None

    # --- what the C part calls ---

    def _opens(self) -> None:
        with self._lock:
            if self._module is None:  # detached by another thread meanwhile
                self.unwatch()
                return
            try:
                reason = start_backend(self.backend, self.window_id)
            except BaseException as error:
                self._fails()
                if not isinstance(error, Exception):
                    raise
                _logger.exception("%s: the backend could not be started", self)
                return
            if reason is not None:
                self._fails()
                _logger.warning("%s: failed: %s", self, reason)
                return
            self.outcome = "open"
            self._range = None if self.nvtx_range is None else begin_range(self.nvtx_range)
            _logger.info("%s: open", self)

    def _fails(self) -> None:
        """The window holds nothing, and there is no end to it."""
        self.unwatch()
        self.outcome = "failed"

    def _closes(self, outcome: str) -> None:
        with self._lock:
            if self.outcome != "open":
                return
            self.outcome = outcome
            self.unwatch()
            end_range, self._range = self._range, None
            if end_range is not None:
                end_range()
            try:
                stop_backend(self.backend, self.window_id)
            except Exception:
                _logger.exception("%s: the backend could not be stopped", self)
                self.outcome = outcome = "failed" if outcome == "done" else outcome
            level = logging.INFO if outcome == "done" else logging.WARNING
            _logger.log(level, "%s: %s", self, _MEANING[outcome])

    def _is_copy(self, module: object) -> bool:
        """Warns of a replica. Returns whether the module is one."""
        if getattr(module, "_is_replica", False):
            warn_once(
                "forward_hook_replica",
                f"{self}: replicas of DataParallel are not counted; attach the hook to the "
                "DataParallel object",
            )
            return True
        return False

    # --- ends ---

    def _leave(self) -> None:
        handles, self._handles, self._module = self._handles, [], None
        self.leave_module()
        for handle in handles:
            handle.remove()

    def _module_is_gone(self, reference: object) -> None:
        with self._lock:
            if reference is self._module:
                self.stop()

    def _forget(self) -> None:
        """In a forked child the window is the parent's."""
        self._lock = threading.RLock()
        self._range = None
        if self.outcome == "open":
            self.outcome = None
        self._leave()

    def __repr__(self) -> str:
        return f"ForwardProfilerHook({self.start_iter}, {self.stop_iter})"


_MEANING = {
    "done": "done",
    "failed": "failed",
    "raised": "closed, a pass raised",
    "detached": "closed, the hook was detached",
    "exited": "closed, the process ends",
}


def _check_iter(name: str, value: object, low: int) -> int:
    number = check_int(name, value, low)
    if number >= 2**63:
        raise ValueError(f"{name} must be below 2**63, not {number}")
    return number


# --- the process ---

_alive: weakref.WeakSet[ForwardProfilerHook] = weakref.WeakSet()


def _close_all() -> None:
    for hook in list(_alive):
        hook._closes("exited")


def _forget_all() -> None:
    for hook in list(_alive):
        hook._forget()


os.register_at_fork(after_in_child=_forget_all)
