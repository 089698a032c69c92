"""Capture on demand, inside the job: requests become windows, between two steps.

`MyTimer.set_step` calls `at_step` while a request waits or a window is pending, and never else.
Windows are opened and closed by the thread that calls set_step; answers are written by a thread of
their own, since the log directory may hang. Whatever goes wrong is told to who asked and to the
log; the training goes on.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import socket
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _core
from ._control_file import (
    Request,
    RequestError,
    answer_path,
    captures_folder,
    checked_answer,
    read_requests,
)
from ._files import whole_file
from ._ranks import current_rank
from ._store import default_store
from ._warnings import warn_once

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from ._capture_store import Listener
    from .profiling.capture_controller import CaptureController

__all__ = ["at_step", "listen", "register"]

_logger = logging.getLogger("my_utils")

SEEN_MAX = 1024
EXIT_WAIT_S = 5.0

_TROUBLES = {
    "stranger": "it belongs to another user",
    "too_large": "it is larger than 64 KiB",
    "not_a_file": "it is no regular file",
    "unreadable": "it cannot be read",
}


# --- answers ---


class _Answers:
    """Writes small files in the background, the newest content of each."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pending: dict[Path, bytes] = {}
        self.thread: threading.Thread | None = None

    def put(self, path: Path, content: bytes) -> None:
        with self.lock:
            self.pending[path] = content
            if self.thread is not None:
                return
            self.thread = threading.Thread(
                target=self.write_all, name="my_utils-captures", daemon=True
            )
            try:
                self.thread.start()
                return
            except RuntimeError:  # the interpreter ends and starts no threads any more
                pass
        self.write_all()

    def write_all(self) -> None:
        while True:
            with self.lock:
                if not self.pending:
                    self.thread = None
                    return
                path = next(iter(self.pending))
                content = self.pending.pop(path)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with whole_file(path) as file:
                    file.write(content)
            except OSError as error:
                warn_once("capture_answer", f"a capture's state could not be written: {error}")

    def finish(self) -> None:
        thread = self.thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(EXIT_WAIT_S)


# --- what is captured ---


class _Refused(Exception):
    """Why a window cannot be opened, or holds nothing."""


class _Profiler:
    """A window that a backend of ours fills."""

    def __init__(self, request: Request, folder: Path, rank: int) -> None:
        from .profiling import backends

        self.request = request
        self.note = ""
        self.backend: Any
        if request.backend == "torch":
            options = dict.fromkeys(request.options, True)
            self.backend = backends.TorchProfilerBackend(folder, rank, **options)
        elif request.backend == "memory":
            self.backend = backends.MemorySnapshotBackend(folder, rank)
        elif request.backend == "cuda":
            self.backend = backends.CudaProfilerBackend()
        else:
            self.backend = backends.NoOpBackend()

    def open(self) -> None:
        from .profiling import _slot

        if self.request.backend == "torch":
            holder = _slot.holder()
            if holder is not None:
                raise _Refused(f"{holder} is profiling, and torch has one profiler a process")
        elif self.request.backend in ("cuda", "memory"):
            _need_cuda()
        if self.request.backend == "cuda" and "NSYS_PROFILING_SESSION_ID" not in os.environ:
            self.note = "nsys did not start this process; ncu may have"
        self.backend.start_window(self.request.id)

    def ended(self) -> bool:
        return False

    def close(self) -> list[str]:
        self.backend.stop_window(self.request.id)
        files = _files_of(self.backend)
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


def _files_of(backend: object) -> list[str]:
    found: list[object] = []
    for name in ("traces", "snapshots"):
        found += getattr(backend, name, None) or []
    for part in getattr(backend, "backends", None) or []:
        found += _files_of(part)
    return [os.path.abspath(os.fspath(path)) for path in found]  # type: ignore[call-overload]


class _Controllers:
    """A window that is armed at the capture controllers of the program."""

    def __init__(self, request: Request) -> None:
        assert request.window is not None
        self.id = request.id
        self.spec = {**request.window, "window_id": request.id}
        self.note = ""
        self.armed: list[CaptureController] = []
        self.files_before: list[list[str]] = []

    def open(self) -> None:
        from .profiling._capture_hooks import default_controller

        controllers = set(_controllers)
        if (default := default_controller()) is not None:
            controllers.add(default)
        if not controllers:
            raise _Refused(
                "no CaptureController is registered; see my_utils.capture.register(controller)"
            )
        try:
            for controller in controllers:
                controller.outcomes.pop(self.id, None)
                controller.arm(self.spec)
                self.armed.append(controller)
                self.files_before.append(_files_of(controller.backend))
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

    def ended(self) -> bool:
        return all(self.id in controller.outcomes for controller in self.armed)

    def close(self) -> list[str]:
        outcomes = self.disarm()
        files: list[str] = []
        for controller, before in zip(self.armed, self.files_before, strict=True):
            files += _files_of(controller.backend)[len(before) :]
        if outcomes == {"disarmed"}:
            names = ", ".join(self.spec["start_profile_names"])
            raise _Refused(f"none of {names} was called in these steps, or none that fits")
        if "done" not in outcomes:
            raise _Refused(f"the window ended as {', '.join(sorted(outcomes))}")
        return files


# --- windows ---


class _Window:
    """A request that this process obeys, from armed to done or failed."""

    def __init__(self, request: Request, log_dir: str, rank: int) -> None:
        self.request = request
        self.rank = rank
        self.log_dir = log_dir
        self.state = "waiting"
        self.opened_at: int | None = None
        self.steps_done = 0
        self._last_step = 0
        self._thread = 0
        self._timer: weakref.ref[_core.Timer] | None = None
        self._capture: _Profiler | _Controllers | None = None

    # Several threads may set steps; one opens the window, and the same one closes it.

    def opens_at(self, timer: _core.Timer, step: int) -> bool:
        """Whether the calling thread has to open it now, which nobody else does then."""
        if self.state != "waiting" or not self._is_of(timer):
            return False
        first = self.request.first_step
        if first is not None and step < first:
            return False
        self.state = "opening"
        self._thread = threading.get_ident()
        self._timer = weakref.ref(timer)
        return True

    def is_late(self, timer: _core.Timer, step: int) -> bool:
        first = self.request.first_step
        return first is not None and step > first and self._is_of(timer)

    def _is_of(self, timer: _core.Timer) -> bool:
        return self.request.tag is None or timer.tag == self.request.tag

    def is_open_here(self) -> bool:
        return self.state == "open" and self._thread == threading.get_ident()

    def open(self, step: int) -> None:
        folder = Path(self.request.output_dir or captures_folder(self.log_dir))
        self.opened_at = self._last_step = step
        try:
            if self.request.window is None:
                self._capture = _Profiler(self.request, folder, self.rank)
            else:
                self._capture = _Controllers(self.request)
            self._capture.open()
        except Exception as error:
            self._fail(error)
            return
        self.state = "open"
        # After the profiler's own, so that this one runs before it.
        atexit.register(self.close_at_exit)
        self.tell("open")

    def hears_of(self, timer: _core.Timer, step: int) -> None:
        """A set_step on the thread of the window, of its timer or of another one."""
        assert self._timer is not None
        owner = self._timer()
        if owner is None:
            self.close(f"its timer was deleted after {self._progress()}")
        elif owner is timer:
            self._goes_on(step)

    def _progress(self) -> str:
        return f"{self.steps_done} of {self.request.steps} steps"

    def _goes_on(self, step: int) -> None:
        if step != self._last_step:
            self._last_step = step
            self.steps_done += 1
        assert self._capture is not None
        if self.steps_done >= self.request.steps or self._capture.ended():
            self.close()

    def close(self, reason: str = "") -> None:
        assert self._capture is not None
        self.state = "closing"
        atexit.unregister(self.close_at_exit)
        try:
            files = self._capture.close()
        except Exception as error:
            self._fail(error)
            return
        self.state = "failed" if reason else "done"
        self.tell(self.state, reason=reason or self._capture.note, files=files)

    def close_at_exit(self) -> None:
        if self.state == "open":
            self.close(f"the process ended after {self._progress()}")

    def give_up(self, reason: str) -> None:
        self.state = "failed"
        self.tell("failed", reason=reason)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, _Refused):
            self.give_up(str(error))
        else:
            _logger.debug("capture %s", self.request.id, exc_info=error)
            self.give_up(f"{type(error).__name__}: {error}")

    def tell(self, state: str, *, reason: str = "", files: list[str] | None = None) -> None:
        """To the log, the profile CSV and who asked."""
        tell(self.request.id, self.rank, self.log_dir, state, reason, files or [], self.opened_at)
        level = logging.WARNING if state == "failed" else logging.INFO
        what = "; ".join(filter(None, [reason, *(files or [])]))
        _logger.log(level, "capture %s: %s%s", self.request.id, state, f": {what}" if what else "")
        metadata = f"request={self.request.id},state={state}"
        _core.log_event("my_utils.capture", "INSTANT", None, metadata)


def tell(
    id: str,
    rank: int,
    log_dir: str,
    state: str,
    reason: str = "",
    files: list[str] | None = None,
    opened_at: int | None = None,
) -> None:
    """Answers who asked."""
    answer = {
        "version": 1,
        "id": id,
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "state": state,
        "reason": reason,
        "opened_at_step": opened_at,
        "files": files or [],
        "time": time.time(),
    }
    assert checked_answer(answer) is not None
    if log_dir:
        _answers.put(answer_path(log_dir, id, rank), json.dumps(answer).encode() + b"\n")
    if _listener is not None:
        _listener.answer(id, rank, answer)


# --- the job ---


class _Job:
    """What this process has heard and does."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.seen: dict[str, Request] = {}
        self.windows: list[_Window] = []
        self.offered: list[Request] = []  # from the listener's thread

    def at_step(self, timer: _core.Timer, step: int) -> None:
        if _wants_store:
            _listen_to_default_store()
        with self.lock:
            self.hear(timer, step)
            opening = [item for item in self.windows if item.opens_at(timer, step)]
            ours = [item for item in self.windows if item.is_open_here()]
        for window in ours:
            window.hears_of(timer, step)
        for window in opening:
            window.open(step)
        self.forget_the_ended()

    def forget_the_ended(self) -> None:
        with self.lock:
            self.windows = [item for item in self.windows if item.state not in ("done", "failed")]
            _core.watch_steps(bool(self.windows or self.offered or _wants_store))

    def hear(self, timer: _core.Timer, step: int) -> None:
        while (text := _core.take_control()) is not None:
            self.read(*text, timer, step)
        offered, self.offered = self.offered, []
        for request in offered:
            self.consider(request, timer, step)

    def read(
        self, text: bytes, trouble: str, at_start: bool, timer: _core.Timer, step: int
    ) -> None:
        try:
            if trouble:
                raise RequestError(_TROUBLES[trouble], kind=trouble)
            found = read_requests(text)
        except RequestError as error:
            _ignore(f"the control file is ignored: {error}", error.kind)
            return
        for item in found:
            if isinstance(item, RequestError):
                self.refuse(item, at_start)
            elif at_start and not item.at_start:
                if item.id not in self.seen and item.is_for(_place()[1]):
                    _ignore(f"capture {item.id} is ignored: it is older than this process", "old")
                self.remember(item)
            else:
                self.consider(item, timer, step)

    def refuse(self, error: RequestError, at_start: bool) -> None:
        if error.id is None or not at_start:
            _ignore(f"a request for a capture is ignored: {error}", error.kind)
        if error.id is not None and not at_start and error.id not in self.seen:
            log_dir, rank = _place()
            self.seen[error.id] = Request(id=error.id)
            tell(error.id, rank, log_dir, "failed", f"the request is broken: {error}")

    def remember(self, request: Request) -> None:
        self.seen[request.id] = request
        while len(self.seen) > SEEN_MAX:
            del self.seen[next(iter(self.seen))]

    def consider(self, request: Request, timer: _core.Timer, step: int) -> None:
        """Arms the window, unless it was asked for before or is for others."""
        before = self.seen.get(request.id)
        if before is not None:
            if before != request:
                _ignore(f"capture {request.id} is ignored: its id was used before", "repeated")
            return
        self.remember(request)
        log_dir, rank = _place()
        if not request.is_for(rank):
            return
        window = _Window(request, log_dir, rank)
        if not log_dir and request.output_dir is None:
            window.give_up("this process has no log directory, and no output_dir was given")
            return
        if window.is_late(timer, step):
            window.give_up(
                f"step {request.first_step} was over: the request was read at step {step}"
            )
            return
        self.windows.append(window)
        window.tell("armed")


def _place() -> tuple[str, int]:
    """The log directory, "" for none, and the rank."""
    state = _core.output_state()
    if not state["csv_path"]:
        return "", current_rank()
    return os.path.dirname(state["csv_path"]), state["rank"]


def _ignore(message: str, kind: str) -> None:
    warn_once(f"capture_request:{kind}", message)


def at_step(timer: _core.Timer, step: int) -> None:
    """Called by `MyTimer.set_step`."""
    try:
        _job.at_step(timer, int(step))
    except Exception:
        _logger.exception("a request for a capture could not be served")
        _core.watch_steps(False)


def _offer(request: Request) -> None:
    with _job.lock:
        _job.offered.append(request)
        _core.watch_steps(True)


def listen(store: Store | str) -> None:
    """See `my_utils.capture.listen`."""
    from ._capture_store import Listener, job_size, open_store

    global _listener
    if _listener is None or not _listener.alive:
        own = open_store(store)
        _listener = Listener(own, _place()[1], job_size(), _offer)


def _listen_to_default_store() -> None:
    """For MY_UTILS_CAPTURE=store, at the first step after torch.distributed began."""
    global _wants_store
    if default_store("") is None:
        return
    _wants_store = False
    try:
        listen("default")
    except (OSError, RuntimeError, ValueError) as error:
        warn_once("capture_store", f"requests by the store are not heard: {error}")


def register(controller: CaptureController) -> None:
    """See `my_utils.capture.register`."""
    _controllers.add(controller)


# --- the process ---

_controllers: weakref.WeakSet[CaptureController] = weakref.WeakSet()
_listener: Listener | None = None
_wants_store = os.environ.get("MY_UTILS_CAPTURE") == "store"
_answers = _Answers()
_job = _Job()
atexit.register(lambda: _answers.finish())


def _start_anew_in_child() -> None:
    """Windows and answers are the parent's."""
    global _answers, _job, _listener, _wants_store
    for window in _job.windows:
        atexit.unregister(window.close_at_exit)
    if _listener is not None:
        atexit.unregister(_listener.end)
    _answers = _Answers()
    _job = _Job()
    _listener, _wants_store = None, False


os.register_at_fork(after_in_child=_start_anew_in_child)
