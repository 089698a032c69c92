"""The leak cases of GPU times and NVTX, with neither a driver nor a tool in the process."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from my_utils import _core

from .harness import case


@case("cuda_state", "nvtx_state")
def states(folder: Path) -> Iterator[Callable[[], object]]:
    yield lambda: (_core.cuda_state(), _core.nvtx_state())


@case("cuda_profiler", "nvtx_range_end", "nvtx_range_start")
def windows(folder: Path) -> Iterator[Callable[[], object]]:
    def action() -> None:
        assert not _core.cuda_profiler(True, wait=True)
        assert _core.nvtx_range_start("window") is None
        _core.nvtx_range_end(1)
        with suppress(ValueError):
            _core.cuda_profiler(False, False, -2)
        with suppress(ValueError):
            _core.nvtx_range_start("a\0b")
        with suppress(TypeError):
            _core.nvtx_range_end("1")  # type: ignore[arg-type]

    yield action


@case("gpu_state", "gpu_configure", "gpu_compile")
def gpu_kernels(folder: Path) -> Iterator[Callable[[], object]]:
    def action() -> None:
        assert _core.gpu_state()["compiled"] == 0
        with suppress(RuntimeError):
            _core.gpu_configure(nvrtc="/no/libnvrtc.so", cache=folder)
        for wrong in (("hush", 90), ("hash", 9), ("stats", 90), ("compare", 90, "int8", "int9")):
            with suppress(ValueError):
                _core.gpu_compile(*wrong)

    yield action


@case("Timer.register_stage", "Timer.cuda_aggregates", "Timer.use_cuda")
def timer_gpu_methods(folder: Path) -> Iterator[Callable[[], object]]:
    timer = _core.Timer()

    def action() -> None:
        timer.register_stage("forward", "#ff8800", "a domain")
        timer.cuda_aggregates()
        assert timer.use_cuda is False

    yield action


@case("NoOpTimer.register_stage", "NoOpTimer.cuda_aggregates", "NoOpTimer.use_cuda")
def no_op_gpu_methods(folder: Path) -> Iterator[Callable[[], object]]:
    timer = _core.NoOpTimer()

    def action() -> None:
        timer.register_stage("forward")
        assert timer.cuda_aggregates() == []
        assert timer.use_cuda is False

    yield action


@case("Timer")
def timer_with_marks(folder: Path) -> Iterator[Callable[[], object]]:
    pattern = re.compile("for|back")
    yield lambda: _core.Timer("tag", use_cuda=True, cuda_stages=pattern)


@case("Timer")
def timer_with_bad_pattern(folder: Path) -> Iterator[Callable[[], object]]:
    def action() -> None:
        for wrong in ("(", 3):
            with suppress(TypeError, ValueError):
                _core.Timer(cuda_stages=wrong)  # type: ignore[arg-type]

    yield action


@case("Timer.start")
def start_with_bad_look(folder: Path) -> Iterator[Callable[[], object]]:
    timer = _core.Timer()

    def action() -> None:
        for look in (("mauvish",), (-1,), (2.5,), ("red", 7)):
            with suppress(TypeError, ValueError):
                timer.start("forward", *look)

    yield action


@case("Timer.time_stage")
def stage_with_look(folder: Path) -> Iterator[Callable[[], object]]:
    timer = _core.Timer()

    def action() -> None:
        with timer.time_stage("forward", color="#123456", domain_name="a domain"):
            pass

    yield action
