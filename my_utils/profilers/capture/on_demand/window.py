"""A capture window of a running job: its backend, and its states from armed to done or failed.
With `every` it opens several times, a capture each.

The thread that opens a window closes it. Errors go into the response and into the log; the training
continues.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .... import _core
from .control_file import Request, captures_folder
from .responses import respond

if TYPE_CHECKING:
    from ..controller import CaptureController
    from .result import State


_logger = logging.getLogger("my_utils")


class _Refused(Exception):
    """Why a window cannot be opened, or holds nothing but `files`, which may be parts."""

    def __init__(self, reason: str, files: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.files = files


class _Profiler:
    """A window that a backend of ours fills."""

    def __init__(self, request: Request, name: str, folder: Path, rank: int) -> None:
        from .. import backends

        self.request = request
        self.name = name  # of its file
        self.note = ""
        tool = "torch_memory" if request.backend == "memory" else request.backend
        options = {"torch": dict.fromkeys(request.options, True)} if tool == "torch" else None
        self.backend = backends.make_backend(tool, folder, options, rank)

    def open(self) -> None:
        from ...torch_profiler import slot as _slot

        if self.request.backend == "torch":
            holder = _slot.holder()
            if holder is not None:
                raise _Refused(f"{holder} is profiling, and torch has one profiler a process")
        elif self.request.backend in ("cuda", "memory"):
            _need_cuda()
        if self.request.backend == "cuda" and "NSYS_PROFILING_SESSION_ID" not in os.environ:
            self.note = "nsys did not start this process; ncu may have"
        self.backend.start_window(self.name)

    def next_step(self) -> bool:
        """A step begins within the window. Returns whether there is nothing left to capture."""
        return False

    def close(self) -> list[str]:
        from ..backends import list_files

        self.backend.stop_window(self.name)
        files = list_files(self.backend)
        if not files and self.request.backend in ("torch", "memory"):
            raise _Refused("the profiler was taken away, and wrote nothing; the log may say why")
        return files


def _need_cuda() -> None:
    try:
        import torch
    except ImportError:
        raise _Refused("torch is not installed") from None
    if not torch.cuda.is_available():
        raise _Refused("CUDA is not available")


class _Controllers:
    """A window that is armed at the capture controllers of the program, anew in each step: it
    captures one call of its functions a step, or what its own gates say."""

    def __init__(self, request: Request) -> None:
        assert request.window is not None
        self.id = request.id
        self.spec = {**request.window, "window_id": request.id}
        self.note = ""
        self.armed: list[CaptureController] = []
        self.outcomes: set[str] = set()  # of the steps that are over
        self.names_an_iteration = request.window.get("start_iter") is not None

    def open(self) -> None:
        from ..hooks import default_controller

        controllers = set(registered)
        if (default := default_controller()) is not None:
            controllers.add(default)
        if not controllers:
            raise _Refused(
                "no CaptureController is registered; see "
                "my_utils.profilers.capture.register(controller)"
            )
        try:
            for controller in controllers:
                controller.outcomes.pop(self.id, None)
                controller.take_files(self.id)
                controller.arm(self.spec)
                self.armed.append(controller)
        except (TypeError, ValueError, RuntimeError) as error:
            self.disarm()
            raise _Refused(str(error)) from error

    def disarm(self) -> set[str]:
        """The outcomes; a window that was open at its end is done."""
        found = set()
        for controller in self.armed:
            was_open = controller.window == self.id
            with contextlib.suppress(RuntimeError):
                controller.disarm(self.id)
            outcome = controller.outcomes.get(self.id, "disarmed")
            found.add("done" if outcome == "disarmed" and was_open else outcome)
        return found

    def next_step(self) -> bool:
        """Arms the window again where it ended in the step before. Returns whether it cannot open
        any more, as its iteration is named and over."""
        ended = [item for item in self.armed if self.id in item.outcomes]
        if self.names_an_iteration:
            return len(ended) == len(self.armed)
        for controller in ended:
            self.outcomes.add(controller.outcomes.pop(self.id))
            controller.arm(self.spec)
        return False

    def close(self) -> list[str]:
        outcomes = self.disarm() | self.outcomes
        files = [path for controller in self.armed for path in controller.take_files(self.id)]
        if outcomes == {"disarmed"}:
            names = ", ".join(self.spec["start_profile_names"])
            raise _Refused(f"none of {names} was called in these steps, or none that fits")
        if "done" not in outcomes:
            raise _Refused(f"the window ended as {', '.join(sorted(outcomes))}", files)
        return files


# --- windows ---


class Window:
    """A request that this process obeys, from armed to done or failed."""

    def __init__(self, request: Request, log_dir: str, rank: int) -> None:
        self.request = request
        self.rank = rank
        self.log_dir = log_dir
        self.state: State | Literal["opening", "closing"] = "armed"
        self.opened_at: int | None = None
        self.steps_done = 0  # since it opened
        self.times_done = 0
        self.files: list[str] = []
        self._first = request.first_step  # None until it is known
        self._last_step = 0
        self._thread = 0
        self._timer: weakref.ref[_core.Timer] | None = None
        self._is_heard = False  # a timer that counts has begun a step since the request was read
        self._capture: _Profiler | _Controllers | None = None

    # Several threads may set steps; one opens the window, and the same one closes it.

    def opens_at(self, timer: _core.Timer, step: int) -> bool:
        """Whether the calling thread has to open it now; no other thread does."""
        if self.state != "armed" or not self._is_of(timer) or not self._is_asked_for(step):
            return False
        self.state = "opening"
        self._thread = threading.get_ident()
        self._timer = weakref.ref(timer)
        return True

    def fails_late(self, timer: _core.Timer, step: int) -> bool:
        """Fails if its first step was over when the request was read. The first step of a timer
        that counts shows that: a timer of another tag may have read the request, and later on
        numbers may jump."""
        if self._is_heard or not self._is_of(timer):
            return False
        self._is_heard = True
        first = self.request.first_step
        if first is None or step <= first or self.request.every is not None:
            return False
        self.becomes("failed", f"step {first} was over: the request was read at step {step}")
        return True

    def _is_of(self, timer: _core.Timer) -> bool:
        owner = None if self._timer is None else self._timer()  # of the steps so far
        if owner is not None:
            return owner is timer
        return self.request.tag is None or timer.tag == self.request.tag

    def _is_asked_for(self, step: int) -> bool:
        first = self._first
        return first is None or (step >= first and (step - first) % (self.request.every or 1) == 0)

    def is_open_here(self) -> bool:
        return self.state == "open" and self._thread == threading.get_ident()

    def open(self, step: int) -> None:
        folder = Path(self.request.output_dir or captures_folder(self.log_dir))
        self.opened_at = self._last_step = step
        self.steps_done = 0
        self._first = step if self._first is None else self._first
        name = self.request.id if self.request.every is None else f"{self.request.id}-step{step}"
        try:
            if self.request.window is None:
                self._capture = _Profiler(self.request, name, folder, self.rank)
            else:
                self._capture = _Controllers(self.request)
            self._capture.open()
        except Exception as error:
            self._fails(error)
            return
        # After the profiler's own, so that this one runs before it.
        atexit.unregister(self.close_at_exit)
        atexit.register(self.close_at_exit)
        self.becomes("open")

    def hears_of(self, timer: _core.Timer, step: int) -> None:
        """A set_step on the thread of the window, of its timer or of another one."""
        assert self._timer is not None
        owner = self._timer()
        if owner is None:
            self.close(f"its timer was deleted after {self._progress()}")
        elif owner is timer:
            self._goes_on(step)

    def _progress(self) -> str:
        if self.request.times > 1:
            return f"{self.times_done} of {self.request.times} captures"
        return f"{self.steps_done} of {self.request.steps} steps"

    def _goes_on(self, step: int) -> None:
        is_next = step != self._last_step
        if is_next:
            self._last_step = step
            self.steps_done += 1
        assert self._capture is not None
        if self.steps_done >= self.request.steps or (is_next and self._capture.next_step()):
            self.times_done += 1
            if self.times_done == self.request.times:
                self.close()
            elif self._ends_capture():
                self.becomes("armed", self._progress())

    def _ends_capture(self) -> bool:
        """Ends one capture, of which there may be several. Returns False if that failed."""
        assert self._capture is not None
        self.state = "closing"
        try:
            self.files += self._capture.close()
        except Exception as error:
            self._fails(error)
            return False
        return True

    def close(self, reason: str = "") -> None:
        assert self._capture is not None
        atexit.unregister(self.close_at_exit)
        if self._ends_capture():
            self.becomes("failed" if reason else "done", reason or self._capture.note)

    def close_at_exit(self) -> None:
        reason = f"the process ended after {self._progress()}"
        if self.state == "open":
            self.close(reason)
        elif self.state == "armed" and self._capture is not None:
            self.becomes("failed", reason)

    def _fails(self, error: Exception) -> None:
        reason = str(error)
        if isinstance(error, _Refused):
            self.files += error.files
        else:
            _logger.debug("capture %s", self.request.id, exc_info=error)
            reason = f"{type(error).__name__}: {reason}"
        self.becomes("failed", reason)

    def becomes(self, state: State, reason: str = "") -> None:
        """Lets the log, the profile CSV and the process that asked know."""
        self.state = state
        files = list(self.files)
        respond(self.request.id, self.rank, self.log_dir, state, reason, files, self.opened_at)
        level = logging.WARNING if state == "failed" else logging.INFO
        what = "; ".join(filter(None, [reason, *files]))
        _logger.log(level, "capture %s: %s%s", self.request.id, state, f": {what}" if what else "")
        metadata = f"request={self.request.id},state={state}"
        _core.log_event("my_utils.capture", "INSTANT", None, metadata)


registered: weakref.WeakSet[CaptureController] = weakref.WeakSet()
"""The controllers that requests with a `window` reach."""
