"""The leak cases of the recorder, the timers and their stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from my_utils import _core
from my_utils.core.warnings import warn_once

from .harness import case


async def in_stage(stage: _core.Stage | _core.NoOpStage) -> None:
    async with stage:
        pass


def run(coroutine: object) -> None:
    """Runs a coroutine that never waits for anything."""
    with suppress(StopIteration):
        coroutine.send(None)  # type: ignore[attr-defined]


@case("open_output", "close_output", "output_state", repeat=60)
def open_and_close(folder: Path) -> Iterator[Callable[[], object]]:
    def action() -> None:
        _core.open_output(log_dir=folder, machine="host", label="Trainer")
        _core.output_state()
        _core.close_output()

    yield action


@case("open_stages", repeat=500)
def what_runs_now(folder: Path) -> Iterator[Callable[[], object]]:
    timer = _core.Timer("train")
    timer.start("iter")
    timer.start("forward")
    yield _core.open_stages
    timer.stop("iter")


@case("open_output", repeat=300)
def open_with_bad_arguments(folder: Path) -> Iterator[Callable[[], object]]:
    in_the_way = folder / "file"
    in_the_way.write_text("")

    wrong_arguments: list[dict[str, Any]] = [
        {"kind": "disk"},
        {"log_dir": 3},
        {"log_dir": in_the_way},
        {"log_dir": folder, "rank": -1},
        {"log_dir": folder, "machine": "x" * 300},
    ]

    def action() -> None:
        for wrong in wrong_arguments:
            with suppress(TypeError, ValueError, OSError):
                _core.open_output(**wrong)
                raise AssertionError(wrong)

    yield action


@case(
    "log_event",
    "log_plain_event",
    "drain",
    "memory_rows",
    "troubles",
    "set_time_offset_ns",
    repeat=500,
)
def events(folder: Path) -> Iterator[Callable[[], object]]:
    _core.open_output(kind="null")

    def action() -> None:
        _core.log_event("loss", "COUNTER", 3, "value=1", 1_750_000_000_000_000_000, 5)
        _core.log_event("mark", "INSTANT")
        _core.log_plain_event(1.75e9, 3, "eval", "END", 1.5, "loss=0.5", None)
        _core.log_plain_event(None, None, "a\udcff", "INSTANT", None, None, None)
        with suppress(ValueError):
            _core.log_event("mark", "NOTHING")
        _core.set_time_offset_ns(5)
        _core.set_time_offset_ns(0)
        _core.drain()
        _core.memory_rows()
        _core.troubles()

    yield action
    _core.open_output(kind="memory")


@case("set_warning_hook")
def warning_hook(folder: Path) -> Iterator[Callable[[], object]]:
    def action() -> None:
        _core.set_warning_hook(lambda kind, message: None)
        with suppress(TypeError):
            _core.set_warning_hook(3)  # type: ignore[arg-type]
        _core.set_warning_hook(None)

    yield action
    _core.set_warning_hook(warn_once)


@case(
    "Timer",
    "Timer.start",
    "Timer.stop",
    "Timer.time_stage",
    "Timer.set_step",
    "Timer.step",
    "Timer.synchronize_and_log",
    "Timer.aggregates",
    "Timer.totals",
    "Timer.tag",
    "Timer.strict",
    "Timer.depth",
    "Timer.current_step",
    "Timer.closed_stages",
    "Timer.unmatched_stops",
    repeat=100,
)
def timer_life(folder: Path) -> Iterator[Callable[[], object]]:
    _core.open_output(kind="null")

    def action() -> None:
        timer = _core.Timer("train")
        timer.set_step(1)
        timer.start("forward", color="red")
        timer.start("left open")
        timer.stop("forward")
        timer.stop("never")
        timer.step()
        timer.synchronize_and_log(wait=False)
        timer.aggregates()
        timer.totals()
        methods: tuple[Callable[..., object], ...] = (timer.start, timer.stop, timer.time_stage)
        for method in methods:
            with suppress(TypeError):
                method([])
        _ = timer.tag, timer.strict, timer.depth, timer.current_step
        _ = timer.closed_stages, timer.unmatched_stops

    yield action
    _core.open_output(kind="memory")


@case("Timer.stop", repeat=500)
def strict_timer(folder: Path) -> Iterator[Callable[[], object]]:
    timer = _core.Timer(strict=True)

    def action() -> None:
        with suppress(RuntimeError):
            timer.stop("never")

    yield action


@case(
    "Stage.__enter__",
    "Stage.__exit__",
    "Stage.__aenter__",
    "Stage.__aexit__",
    "Stage.__call__",
    "Stage.name",
    "Stage.timer",
    repeat=500,
)
def stage_life(folder: Path) -> Iterator[Callable[[], object]]:
    _core.open_output(kind="null")
    timer = _core.Timer()

    def action() -> None:
        stage = timer.time_stage("forward")
        with stage:
            pass
        with suppress(KeyError), stage:
            raise KeyError
        stage.__enter__()
        other = timer.time_stage("forward")
        other.__enter__()
        stage.__exit__()
        other.__exit__()
        run(in_stage(stage))
        stage(lambda: None)()
        with suppress(TypeError):
            stage(3)  # type: ignore[type-var]
        _ = stage.name, stage.timer
        timer.step()

    yield action
    _core.open_output(kind="memory")


@case("Timer.__init_subclass__", "NoOpTimer.__init_subclass__", repeat=200)
def subclasses(folder: Path) -> Iterator[Callable[[], object]]:
    yield lambda: (type("T", (_core.Timer,), {}), type("N", (_core.NoOpTimer,), {}))


@case(
    "NoOpTimer",
    "NoOpTimer.start",
    "NoOpTimer.stop",
    "NoOpTimer.time_stage",
    "NoOpTimer.set_step",
    "NoOpTimer.step",
    "NoOpTimer.synchronize_and_log",
    "NoOpTimer.aggregates",
    "NoOpTimer.totals",
    "NoOpTimer.tag",
    "NoOpTimer.strict",
    "NoOpTimer.depth",
    "NoOpTimer.current_step",
    "NoOpTimer.closed_stages",
    "NoOpTimer.unmatched_stops",
    "NoOpStage.__enter__",
    "NoOpStage.__exit__",
    "NoOpStage.__aenter__",
    "NoOpStage.__aexit__",
    "NoOpStage.__await__",
    "NoOpStage.__call__",
)
def no_op_life(folder: Path) -> Iterator[Callable[[], object]]:
    def action() -> None:
        timer = _core.NoOpTimer("train", strict=True)
        timer.set_step(1)
        timer.start("forward")
        timer.stop("forward")
        timer.step()
        timer.synchronize_and_log()
        timer.aggregates()
        timer.totals()
        stage = timer.time_stage("forward")
        with stage:
            pass
        run(in_stage(stage))
        stage(run)
        _ = timer.tag, timer.strict, timer.depth, timer.current_step
        _ = timer.closed_stages, timer.unmatched_stops

    yield action
