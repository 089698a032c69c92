"""The profilers that a capture window starts and stops.

A backend has `start()` and `stop()`. The controller sees to it that they come in pairs, and never
two starts in a row. A backend may also take the window's id: `start_window(window_id)` is what the
controller calls, and calls `start()` unless overridden.

>>> class Counter(CaptureBackend):
...     starts = 0
...     def start(self) -> None:
...         self.starts += 1
>>> counter = Counter()
>>> counter.start_window("w1")
>>> counter.starts
1
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ... import _core
from ...core.aliases import renamed_parameters
from ...core.arguments import check_choice, check_int, check_path
from ...core.file_names import file_name, free_path
from ...core.public import public
from ...core.ranks import check_rank
from ...core.reprs import short_repr
from ..memory.memory_history import Recording, record
from ..torch_profiler.cuda_profiler import CudaProfiler
from ..torch_profiler.slot import holder
from ..torch_profiler.torch_profile import TorchProfile, check_activities, export_trace

_logger = logging.getLogger("my_utils")


@public("my_utils.profiling.backends")
class CaptureBackend:
    """What is started when a window opens, and stopped when it closes.

    If `start` raises, the window ends without a `stop`. If `stop` raises, the exception is logged.
    Both run in the thread whose hook opened or closed the window. The backends here may be stopped
    twice, or without a start: then nothing is captured or written. A `with` block starts and stops
    one by hand.

    not_recording: why the last start captures nothing, if it warned instead of raising; the window
        is then `failed`, and is not stopped. None if it captures.
    """

    not_recording: str | None = None

    def start(self) -> None:
        """Begins to capture."""

    def stop(self) -> None:
        """Ends what `start` began."""

    def start_window(self, window_id: str) -> None:
        """Begins to capture for the window of that id; calls `start` unless overridden."""
        self.start()

    def stop_window(self, window_id: str) -> None:
        """Ends it; calls `stop` unless overridden."""
        self.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self.stop()
        except Exception:
            if error is None:
                raise
            _logger.exception("%s could not be stopped", self)

    def __repr__(self) -> str:
        return short_repr(self)


def check_backend(name: str, backend: Any) -> Any:
    """The backend, which may be an object of the user's with `start` and `stop` alone, or
    TypeError."""
    if all(callable(getattr(backend, method, None)) for method in ("start", "stop")):
        return backend
    raise TypeError(f"{name} must have start() and stop(), not {backend!r:.100}")


def start_backend(backend: Any, window_id: str) -> str | None:
    """Starts a backend. Returns why it captures nothing, None if it captures."""
    start = getattr(backend, "start_window", None)
    if start is None:
        backend.start()
    else:
        start(window_id)
    reason: str | None = getattr(backend, "not_recording", None)
    return reason


def stop_backend(backend: Any, window_id: str) -> None:
    """Stops it."""
    stop = getattr(backend, "stop_window", None)
    if stop is None:
        backend.stop()
    else:
        stop(window_id)


def list_files(backend: object) -> list[str]:
    """The absolute paths of what a backend has written so far, as far as it says."""
    files: list[str] = []
    for name in ("traces", "snapshots"):
        paths = getattr(backend, name, None)
        if isinstance(paths, (list, tuple)):
            files += [os.path.abspath(path) for path in paths if isinstance(path, (str, Path))]
    parts = getattr(backend, "backends", None)
    for part in parts if isinstance(parts, (list, tuple)) else ():
        files += list_files(part)
    return files


def begin_range(name: str) -> Callable[[], object] | None:
    """Begins an NVTX range of the default domain; the function that ends it, on whatever thread;
    None while no tool listens.

    By torch's NVTX where ours was not built, as far as that has it.
    """
    if not _core.nvtx_state()["built"]:
        return _by_torch(name)
    number = _core.nvtx_range_start(name.replace("\0", ""))
    return None if number is None else functools.partial(_core.nvtx_range_end, number)


def _by_torch(name: str) -> Callable[[], object] | None:
    with contextlib.suppress(ImportError, RuntimeError, AttributeError):  # a build without CUDA
        import torch

        handle = torch.cuda.nvtx.range_start(name)
        return functools.partial(torch.cuda.nvtx.range_end, handle)
    return None


@public("my_utils.profiling.backends")
class NoOpBackend(CaptureBackend):
    """Captures nothing: for ranks that have windows armed and no profiler."""


@public("my_utils.profiling.backends")
class CudaProfilerBackend(CudaProfiler, CaptureBackend):
    """Starts and stops the CUDA profiler, for `nsys --capture-range=cudaProfilerApi` and `ncu`.

    synchronize: wait for the GPU before both, so that the range holds the work of the calls in it
        and no other. That stops the training for the queue's length; False leaves it alone.

    It asks the driver (cuProfilerStart, cuProfilerStop), so that torch is not needed. The context
    is that of the calling thread, or torch's current device's where the thread has none. Without
    CUDA one warning is logged and nothing is captured. RuntimeError if the driver refuses.
    Started or stopped twice, the second call changes nothing.
    """

    def __repr__(self) -> str:
        return short_repr(self, "synchronize")


class _NamedBackend(CaptureBackend):
    """One that needs the id of its window, which is "window" by hand."""

    def start(self) -> None:
        """Begins to capture a window without a name."""
        self.start_window("window")

    def stop(self) -> None:
        """Ends the window without a name."""
        self.stop_window("window")


class _FileBackend(_NamedBackend):
    """One that writes a file a window."""

    def __init__(self, output: str | os.PathLike[str], rank: int | None = None) -> None:
        self.output = check_path("output", output)
        self.rank = None if rank is None else check_rank("rank", rank)

    def _path(self, window_id: str, suffix: str) -> Path:
        return free_path(self.output, file_name(window_id, self.rank), suffix)


@public("my_utils.profiling.backends")
class TorchProfilerBackend(_FileBackend):
    """torch's profiler around each window, with a separate Chrome trace:
    `<output>/<window id>__rank<rank>.json`, numbered when it is there already.

    output: created if missing. rank: for the name; the logger's by default.
    options: keywords for `torch.profiler.profile`, such as `record_shapes=True`.

    While another profiler runs, the window is not captured, with a warning. If it is started twice,
    the first profiler continues. The trace is written under another name first, so that a file with
    this name is complete.
    """

    def __init__(
        self, output: str | os.PathLike[str], rank: int | None = None, **options: Any
    ) -> None:
        super().__init__(output, rank)
        self.options = options
        self.traces: list[Path] = []
        self._running: TorchProfile | None = None

    def __repr__(self) -> str:
        return short_repr(self, "output", "rank")

    def start_window(self, window_id: str) -> None:
        """Opens the profiler."""
        write = functools.partial(self._write, window_id)
        profile = TorchProfile(f"TorchProfilerBackend, window {window_id!r}", write, **self.options)
        taken_by = holder()
        if profile.start():
            self._running, self.not_recording = profile, None
        else:
            self.not_recording = f"{taken_by or 'another profiler'} was recording"

    def stop_window(self, window_id: str) -> None:
        """Closes the profiler and writes the trace."""
        profile, self._running = self._running, None
        if profile is not None:
            profile.stop()

    def _write(self, window_id: str, profile: TorchProfile) -> None:
        self.traces.append(export_trace(profile.profiler, self._path(window_id, ".json")))


@public("my_utils.profiling.backends")
class MemorySnapshotBackend(_FileBackend):
    """The CUDA allocator's history of each window, for https://pytorch.org/memory_viz:
    `<output>/<window id>__rank<rank>.pickle`, numbered when it is there already.

    max_entries: allocator events that are kept at most. A recording that runs already (of
        `MemorySnapshotter`, or of the program) is joined, with its own options, and continues.

    Without CUDA one warning is logged. Started twice, the first recording continues.
    """

    def __init__(
        self,
        output: str | os.PathLike[str],
        rank: int | None = None,
        max_entries: int = 100_000,
    ) -> None:
        super().__init__(output, rank)
        self.max_entries = check_int("max_entries", max_entries, 1)
        self.snapshots: list[Path] = []
        self._recording: Recording | None = None
        self._warned = False

    def __repr__(self) -> str:
        return short_repr(self, "output", "rank", "max_entries")

    def start(self) -> None:
        """Begins to record allocations."""
        if self._recording is None and not self._warned:
            self._recording = record("MemorySnapshotBackend", max_entries=self.max_entries)
            self._warned = self._recording is None

    def stop_window(self, window_id: str) -> None:
        """Writes the snapshot, and ends the recording."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        try:
            self.snapshots.append(recording.save(self._path(window_id, ".pickle")))
        finally:
            recording.end()


@public("my_utils.profiling.backends")
class MultiBackend(_NamedBackend):
    """Several backends as one: started in order, stopped in reverse.

    When one cannot be started, those before it are stopped and its exception is raised. When one
    captures nothing, those before it are stopped too, and none of them captures. At the end all are
    stopped, also if one of them raises; the first exception is raised.
    """

    def __init__(self, backends: Sequence[CaptureBackend]) -> None:
        self.backends = [check_backend("each of backends", backend) for backend in backends]

    def __repr__(self) -> str:
        return short_repr(self, "backends")

    def start_window(self, window_id: str) -> None:
        """Starts all."""
        self.not_recording = None
        with contextlib.ExitStack() as started:
            for backend in self.backends:
                self.not_recording = start_backend(backend, window_id)
                if self.not_recording is not None:
                    return
                started.callback(stop_backend, backend, window_id)
            started.pop_all()

    def stop_window(self, window_id: str) -> None:
        """Stops all, unless they were stopped as one captured nothing."""
        if self.not_recording is not None:
            return
        with contextlib.ExitStack() as stops:
            for backend in self.backends:
                stops.callback(stop_backend, backend, window_id)


# --- by the name of the tool ---

# Their options; those of torch are checked apart.
_KEYWORDS: dict[str, dict[str, type]] = {
    "nsys": {"synchronize": bool},
    "ncu": {"synchronize": bool},
    "cuda": {"synchronize": bool},
    "torch": {},
    "torch_memory": {"max_entries": int},
    "none": {},
}
TOOLS = tuple(_KEYWORDS)


# Windows of configurations have the field output_dir.
@renamed_parameters(output_dir="output")
def make_backend(
    tool: str | Sequence[str],
    output: str | os.PathLike[str] = "profiles",
    options: Mapping[str, Mapping[str, Any]] | None = None,
    rank: int | None = None,
) -> CaptureBackend:
    """The backend of a tool, for configurations; of several tools one that starts them all.

    tool: "nsys", "ncu" and "cuda" start and stop the CUDA profiler, "torch" writes a Chrome trace
        and "torch_memory" an allocator snapshot a window, "none" captures nothing.
    output: for what is written. options: keywords of the backends, by tool. rank: for the names
        of files; this process's by default.

    TypeError or ValueError names what is wrong with which argument.

    >>> make_backend("torch", "traces", {"torch": {"record_shapes": True}}).options
    {'record_shapes': True}
    """
    tools = [tool] if isinstance(tool, str) else tool
    if not isinstance(tools, Sequence) or not tools:
        raise TypeError(f"tool must be a str or a list of str, not {tool!r:.100}")
    for name in tools:
        check_choice("tool", name, TOOLS)
    check_path("output", output)
    given = {} if options is None else options
    if not isinstance(given, Mapping):
        raise TypeError(f"options must be a mapping of tools to keywords, not {given!r:.100}")
    for name in given:
        if name not in tools:
            raise ValueError(f"options are for the tools {', '.join(tools)}, not for {name!r:.100}")
    made = [_make_backend(name, output, given.get(name), rank) for name in tools]
    return made[0] if len(made) == 1 else MultiBackend(made)


def _make_backend(
    tool: str, folder: str | os.PathLike[str], options: Mapping[str, Any] | None, rank: int | None
) -> CaptureBackend:
    keywords = _keywords(tool, {} if options is None else options)
    if tool == "torch":
        return TorchProfilerBackend(folder, rank, **keywords)
    if tool == "torch_memory":
        return MemorySnapshotBackend(folder, rank, **keywords)
    return NoOpBackend() if tool == "none" else CudaProfilerBackend(**keywords)


# Those of torch.profiler.profile that make sense in a window; a driver may have no torch.
_OF_TORCH = (
    "acc_events", "activities", "custom_trace_id_callback", "execution_trace_observer",
    "experimental_config", "post_processing_timeout_s", "profile_memory", "record_shapes",
    "use_cuda", "with_flops", "with_modules", "with_stack",
)  # fmt: skip


def _check_torch_options(options: Mapping[str, Any]) -> None:
    known = set(_OF_TORCH)
    profiler = sys.modules.get("torch.profiler")
    if profiler is not None:  # it may be newer
        known |= set(inspect.signature(profiler.profile.__init__).parameters)
    known -= {"self", "schedule", "on_trace_ready"}
    for key, value in options.items():
        if key not in known:
            raise ValueError(f"options of torch are: {', '.join(sorted(known))}; not {key!r:.100}")
        if key.startswith(("with_", "record_", "profile_")) and not isinstance(value, bool):
            raise TypeError(f"option {key} of torch must be bool, not {value!r:.100}")
    check_activities(options.get("activities"))


def _keywords(tool: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a tool, checked."""
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise TypeError(f"options of {tool} must be a mapping of keywords, not {options!r:.100}")
    if tool == "torch":
        _check_torch_options(options)
        return dict(options)
    known = _KEYWORDS[tool]
    for key, value in options.items():
        if key not in known:
            allowed = ", ".join(known) or "none"
            raise ValueError(f"options of {tool} are: {allowed}; not {key!r:.100}")
        if type(value) is not known[key]:
            wanted = known[key].__name__
            raise TypeError(f"option {key} of {tool} must be {wanted}, not {value!r:.100}")
    return dict(options)
