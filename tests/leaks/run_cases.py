"""The leak cases of the stages of a run."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from my_utils import _core

from .harness import case


def fails(*args: object, accumulate_grad: bool = True) -> None:
    if not args:
        raise ValueError("for the test")


class Batch:
    """What is seen of a tensor."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.dtype = shape, int


def no_timer() -> _core.Timer:
    raise MemoryError("for the test")


def is_lookup(error: BaseException) -> bool:
    return isinstance(error, LookupError)


def is_none(error: BaseException) -> bool:
    return False


def interrupted_timer() -> _core.Timer:
    raise LookupError("for the test")


@case(
    "RunStages",
    "RunStages.add_batch",
    "RunStages.add_samples",
    "RunStages.begin",
    "RunStages.begin_forward",
    "RunStages.begin_step",
    "RunStages.buckets",
    "RunStages.change_step",
    "RunStages.collected",
    "RunStages.counts",
    "RunStages.drain_soon",
    "RunStages.end",
    "RunStages.end_step",
    "RunStages.follow",
    "RunStages.following",
    "RunStages.forget",
    "RunStages.forget_batches",
    "RunStages.forget_host",
    "RunStages.forget_newest_batch",
    "RunStages.forward_missing",
    "RunStages.forwards",
    "RunStages.know_tensors",
    "RunStages.led",
    "RunStages.on",
    "RunStages.on_backward",
    "RunStages.on_forward",
    "RunStages.on_step",
    "RunStages.position",
    "RunStages.sample_host",
    "RunStages.step_batches",
    "RunStages.end_host",
    "RunStages.steps",
    "RunStages.thread",
    "RunStages.timer",
    "RunStages.unfollow",
    "RunStages.use_cuda",
    "RunStages.watch_gpu",
    "RunStages.watch_workers",
    "RunStages.write_batches",
    repeat=100,
)
def run_stages_life(folder: Path) -> Iterator[Callable[[], object]]:
    _core.open_output(kind="null")

    def action() -> None:
        stages = _core.RunStages(lambda: _core.Timer("run"), lambda: True)
        stages.on_backward = stages.on_forward = stages.on_step = lambda: None
        for stage in range(9):
            stages.begin(stage)
            stages.end()
        stages.begin_forward()
        stages.forget()
        stages.begin(4)
        stages.begin_step(stages)
        stages.end()
        stages.begin_step(stages)
        stages.end_step(stages)
        stages.know_tensors(Batch, int, float)
        for batch in (Batch((3, 4)), [Batch((2,))], (), 7, Batch((2**70,))):
            stages.add_batch(batch)
        stages.add_samples(3, 4)
        stages.forget_newest_batch()
        stages.follow(id(stages), 3, 2, 10**12)
        for _ in range(3):
            stages.begin_step(stages)
            stages.end_step(stages)
        _ = stages.led, stages.forward_missing, stages.steps, stages.following
        stages.unfollow()
        stages.step_batches(True, 4)
        stages.write_batches(5)
        stages.forget_batches()
        for phase in ("start", "stop"):
            stages.collected(phase, {"generation": 2})
        stages.sample_host()
        stages.watch_workers([os.getpid()])
        stages.watch_gpu("GPU-no-such-one")
        for iteration in (5, 6):
            stages.end_host(iteration)
            stages.begin(0)
            stages.end()
        stages.forget_host()
        with suppress(TypeError):
            stages.watch_workers(3)  # type: ignore[arg-type]
        with suppress(ValueError):
            stages.watch_workers([0])
        with suppress(TypeError):
            stages.watch_gpu(b"GPU")  # type: ignore[arg-type]
        with suppress(TypeError):
            stages.collected("start")  # type: ignore[call-arg]
        with suppress(TypeError):
            stages.know_tensors(3, int, float)  # type: ignore[arg-type]
        stages.change_step(0, stages.position(), 3)
        stages.use_cuda()
        stages.drain_soon()
        stages.counts()
        _ = stages.on_backward, stages.on_forward, stages.on_step, stages.timer
        _ = stages.forwards, stages.thread, stages.on
        stages.buckets = _core.BucketTimes((), ())
        stages.begin(4)
        stages.end()
        _ = stages.buckets
        with suppress(TypeError):
            stages.buckets = 3  # type: ignore[assignment]
        stages.buckets = None
        stages.on = False
        for wrong in (9, -1, "forward"):
            with suppress(TypeError, ValueError):
                stages.begin(wrong)  # type: ignore[arg-type]
        with suppress(TypeError):
            stages.on_step = 3  # type: ignore[assignment]

    yield action
    _core.open_output(kind="memory")


@case("RunStages", "RunStages.is_interrupt", repeat=100)
def run_stages_step_aside(folder: Path) -> Iterator[Callable[[], object]]:
    def action() -> None:
        stages = _core.RunStages(no_timer, lambda: True)
        stages.begin(0)
        _ = stages.is_interrupt
        interrupted = _core.RunStages(interrupted_timer, lambda: True)
        for is_interrupt in (is_lookup, is_none):
            interrupted.is_interrupt = is_interrupt
            with suppress(LookupError):
                interrupted.begin(0)
                for _ in range(100):  # the error comes again here
                    pass
        with suppress(TypeError):
            _core.RunStages()  # type: ignore[call-arg]

    yield action


class Parameter:
    """What is seen of a parameter: torch would do the same with its tensors."""

    def __init__(self, hooks: dict[str, Callable[[object], None]] | None) -> None:
        self._backward_hooks = hooks


@case(
    "BucketTimes",
    "BucketTimes.install",
    "BucketTimes.read",
    "BucketTimes.read_gpu",
    "BucketTimes.remove",
    "_BucketHook.__call__",
    repeat=200,
)
def bucket_times(folder: Path) -> Iterator[Callable[[], object]]:
    def action() -> None:
        parameters = (Parameter(None), Parameter({"theirs": print}), object(), Parameter(None))
        times = _core.BucketTimes(parameters, (0, 0, 1, 2))
        for _ in range(2):
            times.install()
        hooks: dict[str, Callable[[object], None]] = vars(parameters[3])["_backward_hooks"]
        hooks["my_utils.bucket"](None)
        times.read()
        times.read_gpu()
        times.remove()
        times.install()
        _core.BucketTimes(parameters, (0, 0, 1, 2)).install()
        for wrong in (((1,), ()), ((1,), (1,)), ((1,), ("a",)), (3, 4)):
            with suppress(TypeError, ValueError):
                _core.BucketTimes(*wrong)

    yield action


@case(
    "StageCall",
    "StageCall.__call__",
    "StageCall.__get__",
    "StageCall.__reduce__",
    "StageCall.__repr__",
    repeat=200,
)
def stage_calls(folder: Path) -> Iterator[Callable[[], object]]:
    _core.open_output(kind="null")
    stages = _core.RunStages(lambda: _core.Timer("run"), lambda: True)

    def action() -> None:
        call = _core.StageCall(fails, stages, 4, keyword="accumulate_grad")
        call(1)
        call(1, accumulate_grad=False)
        with suppress(ValueError):
            call()
        _ = call.__name__, call.__wrapped__, repr(call)  # type: ignore[attr-defined]
        pickle.dumps(_core.StageCall(pickle.dumps, stages, 7).__reduce__())
        type("WithMethod", (), {"method": call})().method()
        with suppress(AttributeError):
            _ = call.nothing  # type: ignore[attr-defined]
        with suppress(TypeError):
            _core.StageCall(fails, 3, 4)  # type: ignore[arg-type]

    yield action
    _core.open_output(kind="memory")
