"""One call of a profiled function: its steps, its windows, and what they leave."""

from __future__ import annotations

import contextlib
import contextvars
import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.files import on_whole_path
from ...core.ranks import current_rank, host_name, is_chosen, own_name
from ...core.warnings import warn_once
from ...core.wrapping import Scope
from .cuda_profiler import CudaProfiler
from .flops_table import has_operators, summary
from .step_windows import Schedule, TorchWindow, Windows
from .torch_profile import Steps, export_trace, tolerated

if TYPE_CHECKING:
    import torch


current: contextvars.ContextVar[Run | None] = contextvars.ContextVar(
    "my_utils.profiler", default=None
)
"""The run that `step_profiler` means."""


@dataclass(frozen=True)
class Settings:
    """What the decorator was given, checked. It goes where the function goes, so it pickles."""

    enabled: bool | Callable[..., object]
    output_dir: str
    schedule: Schedule
    with_stack: bool
    with_flops: bool
    with_modules: bool
    nsight_enabled: bool
    nsight_output: str
    ranks: tuple[int, ...] | None

    @property
    def summary_rank(self) -> int:
        """The one rank that prints: 0, or the lowest where 0 is not among `ranks`."""
        return min(self.ranks) if self.ranks else 0


class Run(Scope):
    """A call of a profiled function. Its thread is the one that may call it. In each of its turns
    it is the current one.

    nested: the call is inside a profiled one, and its steps are nobody's.
    """

    def __init__(self, settings: Settings, name: str, *, nested: bool) -> None:
        self.settings = settings
        self.name = name
        self.turn = _Turn(self)
        self._windows = Windows(f"@profiler of {name}", settings.schedule, self._new_window)
        self._nested = nested
        self._finished = False
        self._stepped_elsewhere = False
        self._process = os.getpid()
        self._thread = threading.get_native_id()

    @property
    def live(self) -> bool:
        """Whether it may still profile: not once the function ended, nor in a forked child."""
        return not self._finished and self._process == os.getpid()

    def __enter__(self) -> Run:
        self._thread = threading.get_native_id()
        if not self._nested and self._windows.begin():
            self._windows.go_on()
        return self

    def step(self) -> None:
        """A step is over. Those of other threads do not count: without a GIL a thread begins with a
        copy of the context of who started it, and so with this run."""
        if self._thread != threading.get_native_id():
            self._stepped_elsewhere = True
            return
        windows = self._windows
        windows.steps += 1
        if windows.steps != windows.change_at:
            return
        if self._may_go_on() and windows.close_whole():
            windows.go_on()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self.live:
            return
        if self._windows.window is not None:
            self._may_go_on()
        self._finished = True
        self._windows.close()
        if kind is None and not self._nested and not self._windows.explained:
            self._say_too_short()

    def _may_go_on(self) -> bool:
        if not self.live:
            return False
        if self._thread == threading.get_native_id():
            return True
        self._windows.explained = True
        warn_once(
            f"profiler thread {self.name}",
            f"{self.name} continued in another thread; torch's profiler belongs to a thread, so "
            "no more is recorded",
        )
        return False

    def _new_window(self, steps: Steps) -> TorchWindow | None:
        settings = self.settings
        if not is_chosen(settings.ranks):
            return None
        under_nsys = settings.nsight_enabled and "NSYS_PROFILING_SESSION_ID" in os.environ
        return TorchWindow(
            self._windows.owner,
            steps,
            self._write,
            while_recording=self._captured,
            # nsys has the GPU's events already, and one subscriber can.
            activities=["cpu"] if under_nsys else None,
            record_shapes=settings.with_flops,
            with_stack=settings.with_stack,
            with_modules=settings.with_modules,
        )

    @contextlib.contextmanager
    def _captured(self) -> Iterator[None]:
        """With `nsight_enabled` the CUDA profiler runs in the block. It has nothing of what torch's
        profiler does when it stops."""
        owner, settings = self._windows.owner, self.settings
        with contextlib.ExitStack() as running:
            if settings.nsight_enabled and _can_capture(settings):
                cuda = CudaProfiler()
                stopping = tolerated(owner, "the CUDA profiler could not be stopped")
                with tolerated(owner, "the CUDA profiler could not be started"):
                    cuda.start()
                    running.enter_context(stopping)
                    running.callback(cuda.stop)
            yield

    def _say_too_short(self) -> None:
        rank = current_rank()
        schedule = self.settings.schedule
        if is_chosen(self.settings.ranks, rank) and rank == self.settings.summary_rank:
            elsewhere = (
                "; those in other threads do not count, since torch's profiler belongs to a thread"
                if self._stepped_elsewhere
                else ""
            )
            warn_once(
                f"profiler short {self.name}",
                f"{self.name} was not profiled: it called step_profiler() {self._windows.steps} "
                f"times, and the schedule needs {sum(schedule) - schedule.repeat} (skip_first "
                f"{schedule.skip_first}, wait {schedule.wait}, warmup {schedule.warmup}, active "
                f"{schedule.active}){elsewhere}",
            )

    # --- what a window leaves ---

    def _write(self, window: TorchWindow) -> None:
        steps, profiler = window.steps, window.profiler
        whole = self._windows.steps == steps.end
        if not whole and not has_operators(profiler):
            return  # the function ended between two steps
        self._windows.explained = True
        owner, rank = self._windows.owner, current_rank()
        with tolerated(owner, "the trace could not be written"):
            self._write_traces(profiler)
        if rank == self.settings.summary_rank:
            shown = f"steps {steps.active} to {steps.end - 1}"
            if not whole:
                shown = f"from step {steps.active}"
            title = f"{self.name} on rank {rank}, {shown}"
            if self.settings.schedule.repeat != 1:
                title += f", cycle {self._windows.cycle + 1}"
            with tolerated(owner, "the summary could not be made"):
                text = summary(
                    profiler,
                    title=title,
                    with_flops=self.settings.with_flops,
                    steps=self.settings.schedule.active if whole else None,
                )
                print(text, flush=True)

    def _write_traces(self, profiler: torch.profiler.profile) -> None:
        root = Path(self.settings.output_dir)
        name = own_name()
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        worker = f"{host_name()}_{os.getpid()}"
        trace = export_trace(profiler, folder / f"{worker}.{time.time_ns()}.pt.trace.json")
        with on_whole_path(root / f"trace_{name}.json") as temporary:
            temporary.unlink()
            try:
                os.link(trace, temporary)
            except OSError:  # a file system without hard links
                shutil.copyfile(trace, temporary)


class _Turn:
    """Makes a run the one that `step_profiler` means."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._token: contextvars.Token[Run | None] | None = None

    def __enter__(self) -> None:
        self._token = current.set(self._run)

    def __exit__(self, *_: object) -> None:
        token, self._token = self._token, None
        if token is not None:
            # A coroutine may be closed from a context other than its own.
            with contextlib.suppress(ValueError):
                current.reset(token)


def _can_capture(settings: Settings) -> bool:
    """Whether the CUDA profiler can be started; says what is missing, once."""
    import torch

    if not torch.cuda.is_available():
        warn_once(
            "profiler nsight", "nsight_enabled: CUDA is not available; nothing is captured for nsys"
        )
        return False
    if "NSYS_PROFILING_SESSION_ID" not in os.environ:
        repeat = settings.schedule.repeat
        cycles = {0: "repeat", 1: "stop"}.get(repeat, f"repeat:{repeat}")
        warn_once(
            "profiler nsight",
            "nsight_enabled: this process does not run under nsys; start it as: nsys profile "
            f"-o {shlex.quote(settings.nsight_output)} --capture-range=cudaProfilerApi "
            f"--capture-range-end={cycles} python {shlex.join(sys.argv)}",
        )
    return True
