"""Runs torch's profiler as the only one of the process, and handles its results.

>>> from pathlib import Path
>>> import tempfile, torch
>>> profile = TorchProfile("an example")
>>> profile.start()
True
>>> _ = torch.ones(4) + 1
>>> profile.stop()
>>> with tempfile.TemporaryDirectory() as folder:
...     export_trace(profile.profiler, Path(folder) / "trace.json").name
'trace.json'
>>> on_this_machine("self_cuda_time_total", has_device=False)
'self_cpu_time_total'
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.extras import needs_torch
from ...core.files import on_whole_path, utf8_path
from ...core.older_torch import close_lost_session, end_stale_session, free_kineto
from ...core.printable import escaped
from ...core.ranks import current_rank, world_size
from ...core.warnings import warn_once
from . import slot as _slot

if TYPE_CHECKING:
    import torch


_logger = logging.getLogger("my_utils")

# How a trace ends: the list of events, and the file's name, which torch does not quote.
TRACE_END = re.compile(rb'\]\s*(?P<name>,\s*"traceName"\s*:.*)?\}\s*\Z', re.DOTALL)
TRACE_END_MAX = 1 << 16  # bytes: any path, and more


class Steps(NamedTuple):
    """The steps of one window by their numbers: warm-up from `first`, recorded from `active` to
    the one before `end`."""

    first: int
    active: int
    end: int

    def action(self, step: int) -> Any:
        """torch's schedule. Its constructor asks for step 0, whatever comes then."""
        from torch.profiler import ProfilerAction

        step = max(step, self.first)
        if step < self.active:
            return ProfilerAction.WARMUP
        last = step >= self.end - 1
        return ProfilerAction.RECORD_AND_SAVE if last else ProfilerAction.RECORD


class TorchProfile:
    """One run of `torch.profiler.profile`, from `start` to `stop`.

    owner: who profiles, for messages: "ProfilerWrapper 'run'".
    write: called with this object once torch's profiler has stopped, if it recorded anything: by
        `stop`, when the process exits before, and when the program opens a separate profiler. What
        it raises goes through `stop`, and is logged in the other cases.
    over: whether what is profiled has ended without a call of `stop`; as in `slot.take`.
    steps: profiles these, by torch's schedule, and marks them in the trace by their numbers; each
        call of `step` ends one.
    options: keywords for `torch.profiler.profile`; what that raises for them goes through.
        Activities may be named ("cpu", "cuda"). With `with_stack=True` events carry their stacks,
        for which torch wants a further setting.

    While another profiler runs, `start` warns and returns False, and the rest does nothing. In a
    forked child the parent's run is forgotten. `profiler` stays readable after `stop`, for its
    events and one export. torch's profiler belongs to the thread that starts it: `step` and `stop`
    in another one close it, lose what it recorded and raise RuntimeError; torch itself would end
    the process there.

    When the program opens a `torch.profiler.profile` meanwhile, torch gives the session
    to that one. So this run ends just before, with one warning, and what it recorded is kept. Where
    the loss is noticed at the end only, `step` and `stop` raise RuntimeError, as above.
    """

    def __init__(
        self,
        owner: str,
        write: Callable[[Any], object] | None = None,
        *,
        over: Callable[[], bool] | None = None,
        steps: Steps | None = None,
        **options: Any,
    ) -> None:
        self.owner = owner
        self.profiler: Any = None
        self._write = write
        self._over = over
        self._steps = steps
        self._options = options if steps is None else {**options, "schedule": steps.action}
        self._watch = contextlib.ExitStack()  # over the sessions of the program, while it runs
        self._lease: _slot.Lease | None = None
        self._thread = 0
        self._taken = False  # the session belongs to another, in another thread
        self._seen = False  # whether torch said that the session is open

    @property
    def running(self) -> bool:
        """Whether the profiler is open, and this process opened it."""
        return self._lease is not None and self._lease.held

    def start(self) -> bool:
        """Opens the profiler; whether it is open now. RuntimeError when it is open already."""
        if self.running:
            raise RuntimeError(f"{self.owner} is profiling already")
        with needs_torch("torch's profiler"):
            import torch

        lease = _slot.take(self.owner, close=self.stop, over=self._over)
        if lease is None:
            return False
        try:
            self.profiler = torch.profiler.profile(**_for_torch(self._options))
            self._describe()
            end_stale_session()
            self._watch.enter_context(_watched_sessions(self.profiler, self._stolen))
            self.profiler.start()
            self._seen = _session_open()
        except BaseException:
            self._watch.close()
            if self.profiler is not None:
                with contextlib.suppress(Exception):
                    close_lost_session(self.profiler)
            lease.release()
            raise
        self._lease = lease
        self._taken = False
        # Not get_ident: a thread may have the number of one that has ended.
        self._thread = threading.get_native_id()
        return True

    def _describe(self) -> None:
        """Gives the trace the numbers of the steps, and the rank, which tools read."""
        from torch import distributed

        if self._steps is not None:
            self.profiler.step_num = self._steps.first
        if not (distributed.is_available() and distributed.is_initialized()):
            info = {"backend": "none", "rank": current_rank(), "world_size": world_size()}
            self.profiler.preset_metadata_json("distributedInfo", json.dumps(info))

    def step(self) -> None:
        """Reports the end of a step to torch's schedule."""
        if not self.running:
            return
        if self._why_lost() is None:
            self.profiler.step()
            self._seen = _session_open()
        else:
            self.stop()

    def stop(self) -> None:
        """Closes the profiler, if it is open, and writes what it recorded."""
        lease, self._lease = self._lease, None
        self._watch.close()
        if lease is None or not lease.held:
            return
        try:
            recorded = self._stop_torch()
        finally:
            lease.release()
        if recorded and self._write is not None:
            self._write(self)

    def _stop_torch(self) -> bool:
        """Returns whether anything was recorded."""
        lost = self._why_lost()
        if lost is not None:
            self._lose(lost)
        recorded = _records(self.profiler)
        try:
            self.profiler.stop()
        except RuntimeError:  # as where a step did not start what its schedule had prepared
            with contextlib.suppress(Exception):
                free_kineto()
            raise
        # It refers to itself by these, and would stay with all its events until the garbage
        # collector comes, which knows of few objects and sees no hurry.
        self.profiler.action_map = {}
        return recorded

    def _stolen(self) -> None:
        """Another profiler is about to take the session."""
        lease = self._lease
        if lease is None or not lease.held:
            return
        self._watch.close()
        self._taken = self._thread != threading.get_native_id()
        where, fate = (" in another thread", "lost") if self._taken else ("", "kept")
        warn_once(
            f"session {self.owner}",
            f"{self.owner} ends here: the program opens a torch.profiler.profile{where}"
            f", and torch has one profiler a process; what was recorded until now is {fate}",
        )
        if self._taken:
            with contextlib.suppress(Exception):
                free_kineto()
        else:
            lease.close()

    def _why_lost(self) -> str | None:
        """Why torch has nothing to stop; None: it has."""
        if self._thread != threading.get_native_id():
            return "was started in another thread; torch's profiler belongs to a thread"
        if self._taken or (self._seen and _records(self.profiler) and not _session_open()):
            return "lost torch's only session to a profiler of the program"
        return None

    def _lose(self, why: str) -> None:
        """torch finds nothing to stop, and to read its results is a crash."""
        profiler, self.profiler = self.profiler, None
        if not self._taken:
            close_lost_session(profiler)
        elif not _slot.program_profiles():  # then Kineto's session is the program's
            end_stale_session()
        raise RuntimeError(f"{self.owner} {why}, so what it recorded is lost")


@contextlib.contextmanager
def tolerated(owner: str, what: str) -> Iterator[None]:
    """What the block raises is one warning, and the training goes on."""
    try:
        yield
    except Exception as error:
        warn_once(f"{owner} {what}", f"{owner}: {what}: {type(error).__name__}: {error}")
        _logger.debug("%s: %s", owner, what, exc_info=True)


def write_each(owner: str, files: Mapping[Path, Callable[[Path], object]]) -> list[Path]:
    """Writes each of the files by its function; returns those that are written. One that cannot be
    is one warning."""
    written = []
    for path, write in files.items():
        with tolerated(owner, f"{path} could not be written"):
            write(path)
            written.append(path)
    return written


# --- other sessions ---
#
# torch gives its one session to whoever asks last: it drops the first one's events in silence, and
# to export them afterwards is a crash. The slot keeps our own profilers apart. A
# `torch.profiler.profile` of the program's own knows no slot, so both of its ways into a session
# are watched while one of ours is open.

# Methods of torch.autograd.profiler.profile, each called before its session begins.
_WAYS_IN = ("_prepare_trace", "_start_trace")


@contextlib.contextmanager
def _watched_sessions(own: Any, stolen: Callable[[], object]) -> Iterator[None]:
    """Within the block, calls `stolen` when a torch.profiler.profile other than `own` is about to
    take the session, in the thread that takes it."""
    from torch.autograd.profiler import profile

    def watched(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(session: Any, *args: Any, **kwargs: Any) -> Any:
            if session is not own.profiler:
                stolen()
            return original(session, *args, **kwargs)

        return wrapper

    # Another torch may lack them; then the loss is noticed at the end.
    originals = {name: getattr(profile, name) for name in _WAYS_IN if hasattr(profile, name)}
    wrappers = {name: watched(original) for name, original in originals.items()}
    for name, wrapper in wrappers.items():
        setattr(profile, name, wrapper)
    try:
        yield
    finally:
        for name, original in originals.items():
            if profile.__dict__.get(name) is wrappers[name]:
                setattr(profile, name, original)


def _records(profiler: Any) -> bool:
    """Whether its schedule has it record now."""
    from torch.profiler import ProfilerAction

    return profiler.current_action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


def _session_open() -> bool:
    """Whether torch says that this thread has a session; it says no of one for all threads."""
    from torch import autograd

    ask = getattr(autograd, "_profiler_enabled", None)
    return ask is not None and bool(ask())


def _for_torch(options: dict[str, Any]) -> dict[str, Any]:
    """Activities by their names become torch's, and stacks are asked for as torch wants it: those
    of events are empty unless the profiler is verbose."""
    options = dict(options)
    if options.get("activities") is not None:
        from torch.profiler import ProfilerActivity

        options["activities"] = [
            getattr(ProfilerActivity, each.upper()) if isinstance(each, str) else each
            for each in options["activities"]
        ]
    if options.get("with_stack") and "experimental_config" not in options:
        from torch._C._profiler import _ExperimentalConfig

        options["experimental_config"] = _ExperimentalConfig(verbose=True)
    return options


def export_trace(profiler: torch.profiler.profile, path: str | os.PathLike[str]) -> Path:
    """The Chrome trace of a profiler, whole or not at all.

    torch writes a trace once: RuntimeError the second time. Copy the file instead.
    """
    target = Path(path)
    with on_whole_path(target) as temporary:
        name = os.fspath(temporary)
        if escaped(name) == name:
            _export(profiler, temporary, target)
            return target
        with tempfile.TemporaryDirectory() as folder, utf8_path(folder) as place:  # as torch wants
            plain = Path(place) / "trace.json"
            _export(profiler, plain, target)
            shutil.copyfile(plain, temporary)
    return target


def _export(profiler: torch.profiler.profile, path: Path, named: Path) -> None:
    """Exports, and checks that the file is complete: torch reports a full disk on standard error
    only. torch writes to `<path>.tmp` first."""
    unfinished = Path(f"{path}.tmp")
    try:
        profiler.export_chrome_trace(os.fspath(path))
        _finish(path, named)
    finally:
        unfinished.unlink(missing_ok=True)


def _finish(path: Path, named: Path) -> None:
    """Puts the file's final name into the trace; OSError when its end is missing."""
    with open(path, "r+b") as file:
        start = max(file.seek(0, os.SEEK_END) - TRACE_END_MAX, 0)
        file.seek(start)
        end = file.read()
        found = TRACE_END.search(end)
        if found is None:
            raise OSError(errno.EIO, "torch could not write the whole trace; is the disk full?")
        if found["name"] is not None:
            file.seek(start + found.start())
            file.truncate()
            file.write(b'],"traceName": ' + json.dumps(os.fspath(named)).encode() + b" }\n")


# --- arguments ---


def check_activities(activities: Iterable[Any] | None) -> list[Any] | None:
    """A list of torch's activities or of their names, as `TorchProfile` takes them; otherwise
    TypeError or ValueError."""
    if activities is None:
        return None
    if isinstance(activities, (str, bytes)) or not isinstance(activities, Iterable):
        raise TypeError(f"activities must be None or a list, not {activities!r:.100}")
    found = list(activities)
    for each in found:
        if isinstance(each, str):
            known = each.lower() in ("cpu", "cuda", "xpu")
        else:
            known = type(each).__name__ == "ProfilerActivity"
        if not known:
            raise ValueError(f'activities are "cpu", "cuda" and "xpu", not {each!r:.100}')
    if not found:
        raise ValueError("activities must not be empty; None means all that there are")
    return found


# --- times ---


def device_time(profiler: torch.profiler.profile) -> bool:
    """Whether the profiler saw an accelerator's time; without it the CPU's figures are used."""
    return any(event.self_device_time_total > 0 for event in profiler.events() or ())


def on_this_machine(key: str, has_device: bool) -> str:
    """The name that torch has today for a figure of an operator, or its CPU kin.

    `self_cuda_time_total` became `self_device_time_total` in torch 2.5; where no accelerator was
    seen it is `self_cpu_time_total`. Memory and CPU figures keep their names.
    """
    renamed = re.sub(r"(^|_)(cuda|xpu|device)_", r"\1device_", key)
    return renamed if has_device else renamed.replace("device_time", "cpu_time")
