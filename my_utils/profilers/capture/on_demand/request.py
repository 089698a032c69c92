"""Asks for captures from Python, and waits for them."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from ....core.arguments import check_int, check_seconds
from ....core.identity import identity
from ....core.lazy_modules import lazy_module
from ....core.ranges import as_ranges
from ....core.ranks import check_ranks
from .channel import Channel, Folder
from .control_file import Request, new_id
from .result import FINAL_STATES, Response
from .store import StoreChannel

if TYPE_CHECKING:
    from torch._C import _distributed_c10d as _c10d

    from .. import controller as _controller
else:
    _c10d = lazy_module("torch._C._distributed_c10d")
    _controller = lazy_module("my_utils.profilers.capture.controller")

WAIT_S = 120.0
POLL_S = 0.2


def request_capture(
    log_dir: str | os.PathLike[str] | None = None,
    *,
    ranks: int | Collection[int] | None = None,
    steps: int = 1,
    first_step: int | str = "next",
    every: int | None = None,
    times: int = 1,
    backend: str = "torch",
    options: Collection[str] = (),
    output: str | os.PathLike[str] | None = None,
    tag: str | None = None,
    window: Mapping[str, Any] | None = None,
    at_start: bool = False,
    lead_s: float | None = None,
    store: _c10d.Store | str | None = None,
) -> Request:
    """Asks ranks of a running job for a capture window; returns the request, with its id.

    log_dir: of the job; that of this process by default.
    ranks: which are asked; all by default.
    steps: the window closes that many calls of set_step after it opened. A call with the same
        number as the one before does not count.
    first_step: the number of the first step; "next": a step ahead of all these ranks, the same
        for all, which takes about a second to find, or as long as the lead where steps are slow;
        "now": each rank's next step, which may not be the same.
    every, times: open `times` windows that begin `every` steps apart, which is more than `steps`,
        each with its own file. `first_step=4, every=10` begins at the next of 4, 14, 24 and so on;
        those that are over, or that a rank reads of too late, are left out. By default one window,
        at first_step alone.
    backend: "torch" (torch's profiler, a Chrome trace), "cuda" (cudaProfilerStart and Stop, for
        nsys and ncu), "memory" (the CUDA allocator's history) or "none".
    options: for torch's profiler, of "profile_memory", "record_shapes", "with_flops",
        "with_modules" and "with_stack".
    output: an absolute path for what is captured, on the machines of the ranks;
        `<log_dir>/captures` by default.
    tag: only steps of timers with this tag count. By default those of the timer that comes first
        to the step.
    window: fields of a `CaptureSpec` but its id. The window is then armed at the controllers that
        the job registered, with their backends, and cancelled when the steps are over. It opens
        once in each of the steps, or only once if it names a start_iter.
    at_start: for jobs that begin later. Every process that begins while the request is among the
        newest 16 obeys it, and "next" means "now".
    lead_s: seconds within which all ranks have read the request; 1.5 by default, and 6 where ranks
        are on other machines. "next" is further ahead than that.
    store: ask through torch's store instead of a file; the ranks must `listen`. A torch store,
        "HOST:PORT" (MASTER_ADDR and MASTER_PORT of the job), or "default" for that of this process.
        Then log_dir is not used.

    The request is written to `<log_dir>/my_utils.control.json`, and takes effect at a `set_step`
    about half a second later. Raises TypeError and ValueError for wrong arguments, OSError when the
    file cannot be written, ConnectionError when no store is there or nobody listens. Thread-safe.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     request = request_capture(folder, ranks=[3, 7], steps=2, first_step=100)
    >>> request.first_step, request.steps, request.ranks
    (100, 2, ((3, 3), (7, 7)))
    """
    chosen = check_ranks("ranks", ranks)
    if chosen is not None and not chosen:
        raise ValueError("ranks must name at least one rank, not none")
    if isinstance(first_step, str) and first_step not in ("next", "now"):
        raise ValueError(f"first_step must be an int, 'next' or 'now', not {first_step!r}")
    if isinstance(options, str) or not isinstance(options, Collection):
        raise TypeError(f"options must be a list of str, not {options!r:.100}")
    if lead_s is not None:
        check_seconds("lead_s", lead_s)
    if store is not None and at_start:
        raise ValueError("at_start must be False for requests by a store")
    first = None if isinstance(first_step, str) else check_int("first_step", first_step)
    request = Request(
        id=new_id(),
        ranks=None if chosen is None else as_ranges(chosen),
        first_step=first,
        steps=check_int("steps", steps),
        every=every,
        times=times,
        backend=backend,
        options=tuple(sorted(options)),
        output_dir=None if output is None else os.fspath(output),
        tag=tag,
        window=None if window is None else _checked_window(window),
        at_start=at_start,
        time=time.time(),
    )
    depends_on_ranks = first_step == "next" or (every is not None and first_step != "now")
    channel = channel_to(log_dir, store)
    return channel.ask(request, find_step=depends_on_ranks and not at_start, lead_s=lead_s)


def _checked_window(window: Mapping[str, Any]) -> dict[str, Any]:
    from ..spec import CaptureSpec

    if not isinstance(window, Mapping):
        raise TypeError(f"window must be a mapping, not {window!r:.100}")
    if "window_id" in window:
        raise TypeError("window must not have a window_id: it is that of the request")
    CaptureSpec.from_mapping({**window, "window_id": "w"})
    plain: dict[str, Any] = json.loads(json.dumps(dict(window)))
    return plain


def channel_to(log_dir: str | os.PathLike[str] | None, store: _c10d.Store | str | None) -> Channel:
    """The store if there is one, else the log directory, by default that of this process;
    ValueError for none."""
    if store is not None:
        return StoreChannel(store)
    if log_dir is not None:
        return Folder(log_dir)
    known = identity()
    if known is None:
        raise ValueError("log_dir must be given, as GlobalLogger was not set up")
    return Folder(known.log_dir)


def wait_for_capture(
    request: Request,
    log_dir: str | os.PathLike[str] | None = None,
    *,
    store: _c10d.Store | str | None = None,
    timeout_s: float = WAIT_S,
    on_change: Callable[[int, Response], object] | None = None,
) -> dict[int, Response]:
    """Waits until each rank of the request is done or has failed; the responses by rank.

    log_dir, store: as for `request_capture`.
    timeout_s: a rank that has not finished by then gets the state "failed", with the reason; a rank
        without a live process gets it at once. With `at_start` ranks may begin until then: a
        request that names none waits for the first of them, and for all that are there; nobody
        responds where none begins.
    on_change: called with (rank, response) whenever a rank's state changes.

    A training process cannot wait for itself: its window needs its steps.
    """
    check_seconds("timeout_s", timeout_s, 0, math.inf)
    channel = channel_to(log_dir, store)
    ranks = channel.asked(request)
    end = time.monotonic() + timeout_s
    states: dict[int, str] = {}
    while True:
        over = time.monotonic() >= end
        if request.at_start:
            ranks = sorted({*ranks, *channel.asked(request)})
        found = channel.responses(request, ranks, over=over)
        for rank in ranks:
            response = found.get(rank)
            if response is not None and states.get(rank) != response["state"]:
                states[rank] = response["state"]
                if on_change is not None:
                    on_change(rank, response)
        may_begin = request.at_start and not ranks and not over
        if not may_begin and all(states.get(rank) in FINAL_STATES for rank in ranks):
            return found
        time.sleep(POLL_S)


def listen(store: _c10d.Store | str = "default") -> None:
    """Lets requests through torch's store reach this rank: for ranks that share no log directory.

    store: a torch store, or "default" for that of `init_process_group`. Call this on every rank,
        after that. MY_UTILS_CAPTURE=store in the environment of the job does the same at the first
        step.

    A separate thread polls the store twice a second, on a separate connection. Whoever can reach
    the store can send requests, and can also change all that torch keeps there. A second call does
    nothing. The thread ends with the process, or with the store.
    """
    from . import job

    job.listen(store)


def register(controller: _controller.CaptureController) -> None:
    """Lets requests with a `window` reach a `CaptureController` of this process.

    It is held by a weak reference. Registering twice changes nothing.

    >>> from my_utils.profiling.backends import NoOpBackend
    >>> from my_utils.profiling.capture_controller import CaptureController
    >>> controller = CaptureController(NoOpBackend())
    >>> register(controller)
    """
    from .window import registered

    if not isinstance(controller, _controller.CaptureController):
        raise TypeError(f"controller must be a CaptureController, not {controller!r:.100}")
    registered.add(controller)
