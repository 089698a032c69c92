"""When the buckets of DDP are ready inside backward: the recorded steps, and the rows.

The ranks of a run meet in the buckets, so only steps count that all of them look at. Which steps
these are follows from the step's number: one of 4 at first, and fewer later, at random distances,
so that what alternates is seen in all its states. After a step that was slow, all ranks look at the
next one, because the ranks of DDP are slow together.

Of each bucket one row `my_utils.bucket` says what is in it, of each step that was looked at one
row `my_utils.ready` holds the times. On a GPU these are times of enqueueing. When the GPU itself
came to the same places is known later, and is in a row `my_utils.ready_gpu`.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ... import _core
from ...core.warnings import warn_once
from .bucket_layout import BUCKETS_MAX, Layout, read_layout
from .meetings import is_sampled

_PERIODS = ((128, 4), (1024, 16), (16384, 64))  # up to a step, one of n is looked at
_LAST_PERIOD = 256
_COST_SHARE = 0.001  # of a step, that looking may take in the mean
_TRIES = 64  # steps in which DDP may say how it has built its buckets anew
_SLOW = 1.5  # times the usual step
_SLOW_PAUSE = 16  # steps between two that are looked at because one was slow
_HOOK_NS = 2000  # of a parameter: to set its hook, call it and take it away
_STEADY = 0.9  # weight of what was usual so far
_GPU_STEPS = 64  # that the GPU may be behind; what it has not done by then is not waited for
NS_IN_US = 1000

Write = Callable[[str, Mapping[str, object], int], object]


def _joined(times_us: Sequence[int | None]) -> str:
    return ";".join("" if one is None else str(one) for one in times_us)


class SampledSteps:
    """Looks at the backward of some steps. Not thread-safe; a base.

    stages: gets and loses the hooks. write: writes a row: name, metadata, step. every: looks at
    each n-th step; None: as described above; 0: never.
    """

    def __init__(self, stages: _core.RunStages, write: Write, every: int | None = None) -> None:
        self._stages = stages
        self._write = write
        self._every = every
        self._ended_ns = 0  # the last call of `after_step`, CLOCK_MONOTONIC
        self._ended = -1  # and its step
        self._usual_ns = 0.0  # a step takes, 0.0 before it is known
        self._slow_after = 0  # a slow step counts from this one on

    @property
    def is_on(self) -> bool:
        """Whether there is, or may be, anything to look at."""
        raise NotImplementedError

    def after_step(self, step: int) -> None:
        """A step is complete. Writes what was seen in it, and has the next one looked at or not."""
        if self.is_on:
            try:
                self._after_step(step)
            except Exception as error:
                self.forget()
                warn_once(
                    "run_buckets",
                    "who comes last inside backward is recorded no further "
                    f"({type(error).__name__}: {error}); the training goes on",
                )

    def steps_to_next(self, step: int, at_most: int) -> int:
        """In how many steps, counted from before `step`, one ends that `after_step` must hear of:
        one that is looked at, or the one before it."""
        if not self.is_on:
            return at_most
        if self._stages.buckets is not None or not self._is_ready():
            return 1
        return next((n for n in range(1, at_most) if self._is_due(step + n)), at_most)

    def forget(self) -> None:
        """Looks at nothing from here on."""
        self._stages.buckets = None

    def _after_step(self, step: int) -> None:
        begin_ns = time.monotonic_ns()
        is_slow = self._was_slow(step, begin_ns)
        looked = self._stages.buckets
        if looked is not None:
            self._stages.buckets = None
            self._write_times(step, looked)
        self._prepare()
        if self.is_on and self._is_ready() and (is_slow or self._is_due(step + 1)):
            self._stages.buckets = self._look()
        self._ended, self._ended_ns = step, time.monotonic_ns()
        if looked is not None:
            self._looked(self._ended_ns - begin_ns)

    def _was_slow(self, step: int, now_ns: int) -> bool:
        steps = step - self._ended
        if self._ended < 0 or steps <= 0:
            return False
        took_ns = (now_ns - self._ended_ns) / steps
        usual_ns = self._usual_ns or took_ns
        self._usual_ns = _STEADY * usual_ns + (1 - _STEADY) * min(took_ns, 2 * usual_ns)
        if took_ns < _SLOW * usual_ns or step < self._slow_after or self._every is not None:
            return False
        self._slow_after = step + _SLOW_PAUSE
        return True

    def _write_ready(self, step: int, began_ns: int, times_us: Sequence[int | None]) -> None:
        """began_ns: the backward, CLOCK_MONOTONIC. Readers know by it when that was on the clock
        that rows have."""
        ago_us = (time.monotonic_ns() - began_ns) // NS_IN_US
        row = {"step": step, "us": _joined(times_us), "ago_us": ago_us}
        self._write("my_utils.ready", row, step)

    def _is_due(self, step: int) -> bool:
        """Whether a step is looked at, whatever happens."""
        if self._every is not None:
            return step % max(self._every, 1) == 0
        return self._is_chosen(step)

    # --- what differs ---

    def _is_ready(self) -> bool:
        """Whether it is known what to look at."""
        return True

    def _prepare(self) -> None:
        """Finds out what to look at."""

    def _is_chosen(self, step: int) -> bool:
        """Whether a step is looked at where the user has named no interval."""
        raise NotImplementedError

    def _look(self) -> _core.BucketTimes | None:
        """What is set for the next backward."""
        raise NotImplementedError

    def _write_times(self, step: int, looked: _core.BucketTimes) -> None:
        raise NotImplementedError

    def _looked(self, took_ns: int) -> None:
        """A step was looked at, and it took so long to write it."""


class BucketSampler(SampledSteps):
    """Looks at some steps of the DDP models of a process. Not thread-safe."""

    def __init__(self, stages: _core.RunStages, write: Write, every: int | None = None) -> None:
        super().__init__(stages, write, every)
        self._models: list[weakref.ref[Any]] = []
        self._layout: Layout | None = None
        self._tries = 0
        self._cost_ns = 0.0  # of looking at a step, as far as it is seen
        self._on_gpu: deque[tuple[int, _core.BucketTimes]] = deque()  # which may be behind

    def __repr__(self) -> str:
        return f"BucketSampler({len(self._models)} models, {self._layout})"

    @property
    def is_on(self) -> bool:
        return bool(self._models) and (self._layout is not None or self._tries < _TRIES)

    def watch(self, models: Sequence[Any]) -> None:
        """These DDP models are looked at from now on."""
        self._models = [] if self._every == 0 else [weakref.ref(one) for one in models]

    def forget(self) -> None:
        super().forget()
        self._models = []
        self._on_gpu.clear()

    def _is_chosen(self, step: int) -> bool:
        return is_sampled(step, self._period(step))

    def _period(self, step: int) -> int:
        """A power of two, so that ranks with longer periods look at steps that all look at."""
        period = next((n for last, n in _PERIODS if step < last), _LAST_PERIOD)
        while self._cost_ns > _COST_SHARE * period * self._usual_ns > 0:
            period *= 2
        return period

    def _is_ready(self) -> bool:
        return self._layout is not None

    def _after_step(self, step: int) -> None:
        super()._after_step(step)
        self._write_gpu(step)

    def _prepare(self) -> None:
        if self._layout is not None:
            return
        self._tries += 1
        models = [model for reference in self._models if (model := reference()) is not None]
        self._layout = read_layout(models)
        if self._layout is None:
            return
        if len(self._layout.buckets) > BUCKETS_MAX:
            self.forget()
            return
        for bucket in self._layout.rows():
            self._write("my_utils.bucket", bucket, 0)

    def _look(self) -> _core.BucketTimes | None:
        return None if self._layout is None else self._layout.times()

    def _write_times(self, step: int, looked: _core.BucketTimes) -> None:
        began_ns, _, times = looked.read()
        if began_ns and times.count(None) < len(times):
            self._write_ready(step, began_ns, times)
            self._on_gpu.append((step, looked))

    def _write_gpu(self, now: int) -> None:
        """What the GPU has come to since the step that was looked at, before the step `now`."""
        while self._on_gpu and self._write_gpu_times(now, *self._on_gpu[0]):
            self._on_gpu.popleft()

    def _write_gpu_times(self, now: int, step: int, looked: _core.BucketTimes) -> bool:
        """False while the GPU is not there yet."""
        found = looked.read_gpu()
        if found is None:
            return now - step > _GPU_STEPS
        times, error_us = found
        if times.count(None) < len(times):
            row = {"step": step, "us": _joined(times), "error_us": error_us}
            self._write("my_utils.ready_gpu", row, step)
        return True

    def _looked(self, took_ns: int) -> None:
        buckets = () if self._layout is None else self._layout.buckets
        count = sum(len(bucket.parameters) for bucket in buckets)
        self._cost_ns = took_ns + _HOOK_NS * count
