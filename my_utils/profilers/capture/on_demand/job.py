"""Capture on demand, inside the job: requests become windows, between two steps.

`MyTimer.set_step` calls `at_step` only while a request waits or a window is pending.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import TYPE_CHECKING

from .... import _core
from ....core.environment import read_choice
from ....core.ranks import current_rank, distributed, world_size
from ....core.store import default_store
from ....core.warnings import warn_once
from .control_file import Request, RequestError, read_requests
from .responses import add_listener, respond
from .window import Window

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from .store import Listener


_logger = logging.getLogger("my_utils")

SEEN_MAX = 1024

_TROUBLES = {
    "stranger": "it belongs to another user",
    "writable": "other users can write to it: it must have mode 0600 or 0644",
    "too_large": "it is larger than 64 KiB",
    "not_a_file": "it is not a regular file",
    "unreadable": "it cannot be read",
}


# --- the job ---


class _Job:
    """The requests and the windows of this process.

    wants_store: whether it listens to torch's store as soon as there is one.
    """

    def __init__(self, *, wants_store: bool = False) -> None:
        self.wants_store = wants_store
        self.listener: Listener | None = None
        self.lock = threading.RLock()
        self.seen: dict[str, Request] = {}
        self.windows: list[Window] = []
        self.offered: list[Request | RequestError] = []  # from the listener's thread

    def at_step(self, timer: _core.Timer, step: int) -> None:
        if self.wants_store and default_store() is not None:
            self.listen_to_default_store()
        with self.lock:
            while (text := _core.take_control()) is not None:
                self.read(*text, timer, step)
            offered, self.offered = self.offered, []
            for item in offered:
                self.take(item, timer, step)
            for window in self.windows:
                window.fails_late(timer, step)
            opening = [item for item in self.windows if item.opens_at(timer, step)]
            ours = [item for item in self.windows if item.is_open_here()]
        for window in ours:
            window.hears_of(timer, step)
        for window in opening:
            window.open(step)
        with self.lock:
            self.windows = [item for item in self.windows if item.state not in ("done", "failed")]
            _core.watch_steps(bool(self.windows or self.offered or self.wants_store))

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
            self.take(item, timer, step, at_start=at_start)

    def take(
        self, item: Request | RequestError, timer: _core.Timer, step: int, *, at_start: bool = False
    ) -> None:
        """at_start: whether it is older than this process."""
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
            self.remember(Request(id=error.id))
            respond(error.id, rank, log_dir, "failed", f"the request is broken: {error}")

    def remember(self, request: Request) -> None:
        self.seen[request.id] = request
        while len(self.seen) > SEEN_MAX:
            del self.seen[next(iter(self.seen))]

    def consider(self, request: Request, timer: _core.Timer, step: int) -> None:
        """Arms the window, unless the request is known already or is for other ranks."""
        before = self.seen.get(request.id)
        if before is not None:
            if before != request:
                _ignore(f"capture {request.id} is ignored: its id was used before", "repeated")
            return
        self.remember(request)
        log_dir, rank = _place()
        if not request.is_for(rank):
            return
        window = Window(request, log_dir, rank)
        if not log_dir and request.output_dir is None:
            window.becomes(
                "failed", "this process has no log directory, and no output_dir was given"
            )
            return
        if not window.fails_late(timer, step):
            self.windows.append(window)
            window.becomes("armed")

    # --- the store ---

    def listen(self, store: Store | str) -> None:
        from .store import Listener, open_store

        if self.listener is None or not self.listener.alive:
            own = open_store(store)
            group = distributed()
            # Of the ranks that share the store a logger may know fewer.
            size = world_size() if group is None else int(group.get_world_size())
            self.listener = Listener(own, _place()[1], size, self.offer)
            add_listener(self.listener.respond)

    def listen_to_default_store(self) -> None:
        """For MY_UTILS_CAPTURE=store, at the first step after torch.distributed began."""
        self.wants_store = False
        try:
            self.listen("default")
        except (OSError, RuntimeError, ValueError) as error:
            warn_once("capture_store", f"requests by the store are not heard: {error}")

    def offer(self, item: Request | RequestError) -> None:
        """Takes a request on the listener's thread, for the next step."""
        with self.lock:
            self.offered.append(item)
            _core.watch_steps(True)


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


def listen(store: Store | str) -> None:
    """See `my_utils.profilers.capture.listen`."""
    _job.listen(store)


# --- the process ---

_job = _Job(wants_store=read_choice("MY_UTILS_CAPTURE", "store", default=True) == "store")


def _start_anew_in_child() -> None:
    """In a forked child: windows belong to the parent."""
    global _job
    for window in _job.windows:
        atexit.unregister(window.close_at_exit)
    if _job.listener is not None:
        atexit.unregister(_job.listener.end)
    _job = _Job()


os.register_at_fork(after_in_child=_start_anew_in_child)
