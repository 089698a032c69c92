"""Windows of steps under torch's profiler, or as NVTX ranges under Nsight Systems.

`Windows` counts the steps of one training, and opens a window when it is time. torch's own schedule
keeps its profiler busy at every step of the run. Here a step outside a window is a comparison, and
torch's profiler exists only from the first step of the warm-up to the last recorded one, a new one
for each cycle.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from ..memory import memory_history as _memory_history
from . import slot as _slot
from .cuda_profiler import CudaProfiler
from .torch_profile import Steps, TorchProfile

_logger = logging.getLogger("my_utils")

# Allocations and releases that CUDA's allocator remembers for a snapshot.
HISTORY_ENTRIES = 100_000

NEVER = -1


class Schedule(NamedTuple):
    """Which steps are profiled: after `skip_first`, `repeat` cycles (0: without an end) of `wait`
    steps that pass, `warmup` steps and `active` ones that are recorded.

    >>> schedule = Schedule(skip_first=1, wait=1, warmup=1, active=3, repeat=2)
    >>> schedule.window(0), schedule.window(1).first, schedule.window(2)
    (Steps(first=2, active=3, end=6), 7, None)
    """

    skip_first: int
    wait: int
    warmup: int
    active: int
    repeat: int

    def window(self, cycle: int, began_at: int = 0) -> Steps | None:
        """The window of a cycle; None after the last."""
        if self.repeat and cycle >= self.repeat:
            return None
        cycles = cycle * (self.wait + self.warmup + self.active)
        first = began_at + self.skip_first + cycles + self.wait
        active = first + self.warmup
        return Steps(first, active, active + self.active)


class Windows:
    """The windows of one training.

    owner: for messages. new_window: makes the window of these steps; None where this process
        profiles none. began_at: the number of the first step.

    At the end of each step the owner adds to `steps`, and compares: a call would cost each step of
    the training as much again. Trouble of a window is logged, and ends the window.
    """

    def __init__(
        self,
        owner: str,
        schedule: Schedule,
        new_window: Callable[[Steps], TorchWindow | NvtxWindow | None],
        began_at: int = 0,
    ) -> None:
        self.owner = owner
        self.began_at = began_at
        self.steps = began_at  # the number of the next step, or of the one that runs
        self.cycle = 0
        self.window: TorchWindow | NvtxWindow | None = None
        # Whether anything was recorded, or a message said why not.
        self.explained = False
        self._schedule = schedule
        self._new_window = new_window
        # The number of the step before which `close_whole` has anything to do.
        self.change_at = NEVER

    def begin(self) -> bool:
        """Before the first step; returns whether that is one of a window."""
        coming = self._schedule.window(self.cycle, self.began_at)
        self.change_at = NEVER if coming is None else coming.first
        return self.change_at == self.steps

    def close_whole(self) -> bool:
        """Where `steps` is `change_at`: closes the window whose last step is over. Returns whether
        the next step is one of a window: then call `go_on` before it begins."""
        if self.window is None or self.steps < self.window.steps.end:
            return True
        return self._next_cycle()

    def go_on(self) -> None:
        """The next step of a window begins."""
        self.change_at = self.steps + 1
        try:
            if self.window is None:
                coming = self._schedule.window(self.cycle, self.began_at)
                self.window = None if coming is None else self._new_window(coming)
            if self.window is None:
                self.change_at = NEVER
            else:
                self.window.go_on(self.steps)
        except Exception:
            self._failed()
            self._next_cycle()

    def close(self) -> None:
        """Ends the profiling: a window that is open is written as far as it went."""
        self.change_at = NEVER
        window, self.window = self.window, None
        if window is None:
            return
        self.explained |= not window.running  # another profiler has it, or had
        try:
            window.stop()
        except Exception:
            self._failed()

    def _next_cycle(self) -> bool:
        self.close()
        self.cycle += 1
        return self.begin()

    def _failed(self) -> None:
        self.explained = True
        _logger.exception("%s: the profiler failed, and the training goes on without", self.owner)


class TorchWindow(TorchProfile):
    """torch's profiler for the steps of a window; `write` gets this window.

    while_recording: makes what is entered as the first recorded step begins, and left before
        torch's profiler stops.
    wants_history: let CUDA's allocator write down its history while steps are recorded; `history`
        is the share in it.
    """

    def __init__(
        self,
        owner: str,
        steps: Steps,
        write: Callable[[Any], object],
        *,
        while_recording: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
        wants_history: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(owner, write, steps=steps, **options)
        self.steps = steps
        self.history: _memory_history.Recording | None = None
        self._wants_history = wants_history
        self._while_recording = while_recording
        self._recording = contextlib.ExitStack()

    def go_on(self, step: int) -> None:
        """A step of the window begins."""
        if step == self.steps.first:
            self.start()
        else:
            self.step()
        if step == self.steps.active:
            self._recording.enter_context(self._while_recording())
            self._begin_history()

    def _begin_history(self) -> None:
        import torch

        if not (self._wants_history and self.running and torch.cuda.is_available()):
            return
        try:
            self.history = _memory_history.record(self.owner, max_entries=HISTORY_ENTRIES)
        except Exception as error:
            _logger.warning("%s: CUDA's allocator keeps no history: %s", self.owner, error)

    def stop(self) -> None:
        """Ends the window."""
        self._recording.close()
        try:
            super().stop()
        finally:
            history, self.history = self.history, None
            if history is not None:
                history.end()


class NvtxWindow:
    """NVTX ranges for each operator and step, and the CUDA profiler's start and stop, so that
    `nsys profile --capture-range=cudaProfilerApi` records the window and nothing else."""

    def __init__(
        self,
        owner: str,
        steps: Steps,
        *,
        over: Callable[[], bool] | None = None,
        record_shapes: bool,
    ) -> None:
        self.steps = steps
        self._owner = owner
        self._over = over
        self._record_shapes = record_shapes
        self._opened = contextlib.ExitStack()
        self._step = contextlib.ExitStack()
        self._lease: _slot.Lease | None = None

    @property
    def running(self) -> bool:
        """Whether the ranges are on for this window."""
        return self._lease is not None and self._lease.held

    def go_on(self, step: int) -> None:
        """A step of the window begins."""
        if step == self.steps.active:
            self._begin()
        if not self.running:
            return
        import torch

        self._step.close()
        self._step.enter_context(torch.profiler.record_function(f"ProfilerStep#{step}"))

    def _begin(self) -> None:
        lease = _slot.take(self._owner, close=self.stop, over=self._over)
        if lease is None:
            return
        import torch

        cuda = CudaProfiler()
        with contextlib.ExitStack() as opened:
            opened.callback(lease.release)
            cuda.start()
            opened.callback(cuda.stop)
            opened.enter_context(
                torch.autograd.profiler.emit_nvtx(record_shapes=self._record_shapes)
            )
            self._step = opened.enter_context(contextlib.ExitStack())
            self._opened = opened.pop_all()
            self._lease = lease

    def stop(self) -> None:
        """Ends the window."""
        if self.running:
            self._opened.close()
