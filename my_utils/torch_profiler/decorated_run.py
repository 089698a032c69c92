"""One call of a profiled function: counts its steps, and opens torch's profiler when it is time.

torch's own schedule keeps its profiler busy at every step of the run. Here a step outside a window
is a comparison, and torch's profiler exists only from the first step of the warm-up to the last
active one, a new one for each cycle.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.files import on_whole_path
from ..common.ranks import current_rank, host_name, is_chosen, own_name, world_size
from ..common.warnings import warn_once
from .cuda_profiler import CudaProfiler
from .flops_table import has_operators, summary
from .torch_profile import TorchProfile, export_trace

if TYPE_CHECKING:
    import torch


_logger = logging.getLogger("my_utils")

NEVER = -1


@dataclass(frozen=True)
class Settings:
    """What the decorator was given, checked. It goes where the function goes, so it pickles."""

    enabled: bool | Callable[..., object]
    output_dir: str
    skip_first: int
    wait: int
    warmup: int
    active: int
    repeat: int
    with_stack: bool
    with_flops: bool
    with_modules: bool
    nsight_enabled: bool
    nsight_output: str
    ranks: tuple[int, ...] | None

    def opens_at(self, cycle: int) -> int:
        """The step at which the warm-up of a cycle begins, NEVER after the last."""
        if self.repeat and cycle >= self.repeat:
            return NEVER
        return self.skip_first + cycle * (self.wait + self.warmup + self.active) + self.wait

    @property
    def first_record(self) -> str:
        """How many steps there are until something is recorded whole, and why."""
        parts = ("skip_first", "wait", "warmup", "active")
        total = sum(getattr(self, part) for part in parts)
        return f"{total} ({', '.join(f'{part} {getattr(self, part)}' for part in parts)})"

    @property
    def summary_rank(self) -> int:
        """The one rank that prints: 0, or the lowest where 0 is not among `ranks`."""
        return min(self.ranks) if self.ranks else 0


class NestedRun:
    """A call inside a profiled call: its steps are nobody's."""

    live = True

    def __init__(self, name: str) -> None:
        self.name = name

    def begin(self) -> None:
        pass

    def step(self) -> None:
        pass

    def finish(self, returned: bool) -> None:
        pass


class Run:
    """A call of a profiled function. Its thread is the one that may call it."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.settings = settings
        self.name = name
        self._steps = 0
        self._cycle = 0
        self._opens = settings.opens_at(0)
        self._next = NEVER  # the step at which there is something to do
        self._window: _Window | None = None
        self._finished = False
        self._explained = False  # whether there is a record, or was said why there is none
        self._process = os.getpid()
        self._thread = threading.get_native_id()

    @property
    def live(self) -> bool:
        """Whether it may still profile: not once the function ended, nor in a forked child."""
        return not self._finished and self._process == os.getpid()

    def begin(self) -> None:
        """Before the first step."""
        self._thread = threading.get_native_id()
        self._next = self._opens
        if self._next == 0:
            self._advance()

    def step(self) -> None:
        """A step is over."""
        self._steps += 1
        if self._steps == self._next:
            self._advance()

    def finish(self, returned: bool) -> None:
        """The function ended, by returning or by an exception."""
        if not self.live:
            return
        if self._window is not None:
            self._at_home()
        self._finished = True
        self._next = NEVER
        if self._window is not None:
            self._close()
        if returned and not self._explained:
            self._say_too_short()

    def _advance(self) -> None:
        if not self._at_home():
            self._next = NEVER
            return
        if self._window is not None:
            if self._steps < self._window.end:
                self._window.step(self._steps)
            else:
                self._close()
        if self._window is None and self._steps == self._opens:
            self._open()
        self._next = self._opens if self._window is None else self._steps + 1

    def _at_home(self) -> bool:
        if not self.live:
            return False
        if self._thread == threading.get_native_id():
            return True
        self._explained = True
        warn_once(
            f"profiler thread {self.name}",
            f"{self.name} continued in another thread; torch's profiler belongs to a thread, so "
            "no more is recorded",
        )
        return False

    def _open(self) -> None:
        if not is_chosen(self.settings.ranks):
            self._cycle += 1
            self._opens = NEVER
            return
        self._window = window = _Window(self, self._cycle, self._steps)
        window.open()

    def _close(self) -> None:
        window, self._window = self._window, None
        assert window is not None
        self._cycle += 1
        self._opens = self.settings.opens_at(self._cycle)
        window.close(self._steps)
        self._explained |= not window.empty

    def _say_too_short(self) -> None:
        rank = current_rank()
        if is_chosen(self.settings.ranks, rank) and rank == self.settings.summary_rank:
            warn_once(
                f"profiler short {self.name}",
                f"{self.name} was not profiled: it called step_profiler() {self._steps} times, and "
                f"the schedule needs {self.settings.first_record}",
            )


class _Window:
    """One cycle, from the first step of its warm-up to its last active one."""

    def __init__(self, run: Run, cycle: int, first: int) -> None:
        settings = run.settings
        self.owner = f"@profiler of {run.name}"
        self.name = run.name
        self.settings = settings
        self.first = first
        self.active = first + settings.warmup
        self.end = self.active + settings.active
        self.cycle = cycle
        self.empty = True  # whether it ended before there was anything to record
        self._whole_steps: int | None = None
        self._cuda: CudaProfiler | None = None
        under_nsys = settings.nsight_enabled and "NSYS_PROFILING_SESSION_ID" in os.environ
        self._profile = TorchProfile(
            self.owner,
            on_trace_ready=self._write,
            at_exit=lambda: run.finish(returned=False),
            before_start=self._prepare,
            schedule=self._action,
            activities=_cpu_alone() if under_nsys else None,
            record_shapes=settings.with_flops,
            with_stack=settings.with_stack,
            with_modules=settings.with_modules,
        )

    def open(self) -> None:
        with self._logged("could not be started"):
            self._profile.start()
        self._activate(self.first)

    def step(self, step: int) -> None:
        with self._logged("could not go on"):
            self._profile.step()
        self._activate(step)

    def close(self, step: int) -> None:
        """step: the number of steps that are over."""
        if step == self.end or not self._profile.running:
            self.empty = False  # whole, or left to another profiler
        if step == self.end:
            self._whole_steps = self.settings.active
        cuda, self._cuda = self._cuda, None
        if cuda is not None:
            with self._logged("the CUDA profiler could not be stopped"):
                cuda.stop()
        with self._logged("could not be stopped"):
            self._profile.stop()

    def _activate(self, step: int) -> None:
        if step != self.active:
            return
        if self.settings.nsight_enabled and _can_capture(self.settings):
            cuda = CudaProfiler()
            with self._logged("the CUDA profiler could not be started"):
                cuda.start()
                self._cuda = cuda

    def _action(self, step: int) -> Any:
        """torch's schedule for this cycle. Its constructor asks for step 0, whatever comes then."""
        from torch.profiler import ProfilerAction

        step = max(step, self.first)
        if step < self.active:
            return ProfilerAction.WARMUP
        last = step >= self.end - 1
        return ProfilerAction.RECORD_AND_SAVE if last else ProfilerAction.RECORD

    def _prepare(self, profiler: torch.profiler.profile) -> None:
        """Gives the trace the function's step numbers, and the rank, which tools read."""
        profiler.step_num = self.first
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            info = {"backend": "none", "rank": current_rank(), "world_size": world_size()}
            profiler.preset_metadata_json("distributedInfo", json.dumps(info))

    def _write(self, profiler: torch.profiler.profile) -> None:
        if self.empty and not has_operators(profiler):
            return  # the function ended between two steps
        self.empty = False
        rank = current_rank()
        with self._logged("the trace could not be written"):
            self._write_traces(profiler)
        if rank == self.settings.summary_rank:
            with self._logged("the summary could not be made"):
                print(self._summary(profiler, rank), flush=True)

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

    def _summary(self, profiler: torch.profiler.profile, rank: int) -> str:
        title = f"{self.name} on rank {rank}, from step {self.active}"
        if self._whole_steps is not None:
            title = f"{self.name} on rank {rank}, steps {self.active} to {self.end - 1}"
        if self.settings.repeat != 1:
            title += f", cycle {self.cycle + 1}"
        return summary(
            profiler,
            title=title,
            with_flops=self.settings.with_flops,
            steps=self._whole_steps,
        )

    @contextlib.contextmanager
    def _logged(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception:
            _logger.exception("%s: %s", self.owner, what)


def _cpu_alone() -> Any:
    """nsys has the GPU's events already, and one subscriber can."""
    from torch.profiler import ProfilerActivity

    return [ProfilerActivity.CPU]


def _can_capture(settings: Settings) -> bool:
    """Whether the CUDA profiler can be started; says what is missing, once."""
    import torch

    if not torch.cuda.is_available():
        warn_once(
            "profiler nsight", "nsight_enabled: CUDA is not available; nothing is captured for nsys"
        )
        return False
    if "NSYS_PROFILING_SESSION_ID" not in os.environ:
        cycles = {0: "repeat", 1: "stop"}.get(settings.repeat, f"repeat:{settings.repeat}")
        warn_once(
            "profiler nsight",
            "nsight_enabled: this process does not run under nsys; start it as: nsys profile "
            f"-o {shlex.quote(settings.nsight_output)} --capture-range=cudaProfilerApi "
            f"--capture-range-end={cycles} python {shlex.join(sys.argv)}",
        )
    return True
