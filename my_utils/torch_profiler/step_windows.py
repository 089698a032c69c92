"""A window of steps under torch's profiler, or as NVTX ranges under Nsight Systems.

A window has warm-up steps and then recorded ones. The code that opens a window reports the end of
each step to it, and closes it, in the middle if need be.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from ..memory import memory_history as _memory_history
from . import slot as _slot
from .cuda_profiler import CudaProfiler
from .torch_profile import TorchProfile

_logger = logging.getLogger("my_utils")

# Allocations and releases that CUDA's allocator remembers for a snapshot.
HISTORY_ENTRIES = 100_000


class StepWindow:
    """What the two kinds share: it counts the steps.

    first_step: the number of the first step. warmup, active: how many there are.
    """

    def __init__(self, first_step: int, warmup: int, active: int) -> None:
        self.first_step = first_step
        self.warmup = warmup
        self.active = active
        self.done = 0
        # Whether a step runs. Between steps data is loaded, which counts as part of the next one.
        self.inside = False

    @property
    def complete(self) -> bool:
        """Whether all steps are over."""
        return self.done == self.warmup + self.active

    @property
    def has_something(self) -> bool:
        """Whether a recorded step is over, or has begun."""
        return self.done + self.inside > self.warmup

    @property
    def last_step(self) -> int:
        """Steps of the training that are over, or have begun."""
        return self.first_step + self.done + self.inside

    def open(self) -> None:
        """Begins with the first step."""

    def go_on(self) -> None:
        """Begins with the next step."""

    def close(self) -> None:
        """Ends it."""


class TorchWindow(StepWindow):
    """torch's profiler. `write` gets it at the end, when there is something to write.

    at_exit, over: as in `slot.take`.
    wants_history: let CUDA's allocator write down its history while steps are recorded; `history`
        is the share in it.
    """

    def __init__(
        self,
        first_step: int,
        warmup: int,
        active: int,
        *,
        owner: str,
        write: Callable[[Any], object],
        at_exit: Callable[[], object],
        over: Callable[[], bool] | None = None,
        wants_history: bool,
        **options: Any,
    ) -> None:
        super().__init__(first_step, warmup, active)
        self._write = write
        self._wants_history = wants_history
        self.history: _memory_history.Recording | None = None
        self._owner = owner
        self._profile = TorchProfile(
            owner, on_trace_ready=self._ready, at_exit=at_exit, before_start=self._number,
            over=over, schedule=self._schedule, **options,
        )  # fmt: skip

    def open(self) -> None:
        if self._profile.start():
            self._record_history()

    def go_on(self) -> None:
        self._profile.step()
        self._record_history()

    def close(self) -> None:
        try:
            self._profile.stop()
        finally:
            history, self.history = self.history, None
            if history is not None:
                history.end()

    def _number(self, profiler: Any) -> None:
        profiler.step_num = self.first_step  # for the marks `ProfilerStep#<number>`

    def _schedule(self, step: int) -> Any:
        from torch.profiler import ProfilerAction

        position = max(step - self.first_step, 0)  # torch asks for 0 first, whatever comes
        if position < self.warmup:
            return ProfilerAction.WARMUP
        last = position >= self.warmup + self.active - 1
        return ProfilerAction.RECORD_AND_SAVE if last else ProfilerAction.RECORD

    def _record_history(self) -> None:
        import torch

        if not self._wants_history or self.history is not None or self.done < self.warmup:
            return
        if not torch.cuda.is_available():
            return
        try:
            self.history = _memory_history.record(self._owner, max_entries=HISTORY_ENTRIES)
        except Exception as error:
            self._wants_history = False
            _logger.warning("%s: CUDA's allocator keeps no history: %s", self._owner, error)

    def _ready(self, profiler: Any) -> None:
        if self.has_something:
            self._write(profiler)


class NvtxWindow(StepWindow):
    """NVTX ranges for each operator and step, and the CUDA profiler's start and stop, so that
    `nsys profile --capture-range=cudaProfilerApi` records the window and nothing else."""

    def __init__(
        self,
        first_step: int,
        warmup: int,
        active: int,
        *,
        owner: str,
        at_exit: Callable[[], object],
        over: Callable[[], bool] | None = None,
        record_shapes: bool,
    ) -> None:
        super().__init__(first_step, warmup, active)
        self._owner = owner
        self._at_exit = at_exit
        self._over = over
        self._record_shapes = record_shapes
        self._opened: contextlib.ExitStack | None = None
        self._step = contextlib.ExitStack()
        self._lease: _slot.Lease | None = None

    def open(self) -> None:
        if not self.warmup:
            self._begin()

    def go_on(self) -> None:
        if self.done == self.warmup:
            self._begin()
        elif self._running:
            self._mark()

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None and self._lease is not None and self._lease.held:
            opened.close()

    @property
    def _running(self) -> bool:
        return self._lease is not None and self._lease.held

    def _begin(self) -> None:
        self._lease = _slot.take(self._owner, close=self._at_exit, over=self._over)
        if self._lease is None:
            return
        import torch

        cuda = CudaProfiler()
        with contextlib.ExitStack() as opened:
            opened.callback(self._lease.release)
            cuda.start()
            opened.callback(cuda.stop)
            opened.enter_context(
                torch.autograd.profiler.emit_nvtx(record_shapes=self._record_shapes)
            )
            self._step = opened.enter_context(contextlib.ExitStack())
            self._mark()
            self._opened = opened.pop_all()

    def _mark(self) -> None:
        import torch

        self._step.close()
        name = f"ProfilerStep#{self.first_step + self.done}"
        self._step.enter_context(torch.profiler.record_function(name))
