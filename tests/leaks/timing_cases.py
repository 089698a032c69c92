"""The leak cases of times by name."""

from __future__ import annotations

import contextlib
import copy
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from my_utils import _core

from .harness import case


@case(
    *("Durations", "Durations.add", "Durations.exact", "Durations.figures", "Durations.merge"),
    repeat=100,
)
def durations_of_a_stage(folder: Path) -> Iterator[Callable[[], object]]:
    many = _core.Durations()
    for ns in range(131_080):
        many.add(ns)

    def action() -> None:
        few = _core.Durations()
        few.add(7)
        few.figures()
        assert few.exact
        few.merge(many)
        few.figures()
        for wrong in (-1, 1.5, None):
            with contextlib.suppress(TypeError, ValueError):
                few.add(wrong)  # type: ignore[arg-type]
        with contextlib.suppress(TypeError):
            few.merge(3)  # type: ignore[arg-type]

    yield action


@case(
    "TimeRecorder",
    "TimeRecorder.add",
    "TimeRecorder.clear",
    "TimeRecorder.disable",
    "TimeRecorder.enable",
    "TimeRecorder.max_samples",
    "TimeRecorder.names",
    "TimeRecorder.restore",
    "TimeRecorder.samples",
    "TimeRecorder.state",
    "TimeRecorder.summary",
    "TimeRecorder.totals",
    "TimeRecorder.all_totals",
    "enabled_recorders",
)
def time_recorders(folder: Path) -> Iterator[Callable[[], object]]:
    def action() -> None:
        recorder, other = _core.TimeRecorder(max_samples=3), _core.TimeRecorder()
        for ns in range(6):
            recorder.add("a", ns)
        assert recorder.max_samples == 3
        recorder.names()
        recorder.samples("a")
        recorder.summary("a")
        recorder.totals()
        recorder.all_totals()
        state = recorder.state("a")
        other.restore("a", state)
        for wrong in (None, (b"1", None), (b"", 3), (b"", (1, 5, 5, 5, 5, 0.0, 0, b""))):
            with contextlib.suppress(TypeError, ValueError):
                other.restore("a", wrong)  # type: ignore[arg-type]
        with contextlib.suppress(KeyError):
            recorder.summary("b")
        with contextlib.suppress(TypeError):
            recorder.add(3, 3)  # type: ignore[arg-type]
        with contextlib.suppress(ValueError):
            _core.TimeRecorder(max_samples=-1)
        recorder.enable()
        other.enable()
        recorder.enable()
        _core.enabled_recorders()
        recorder.disable()
        _core.enabled_recorders()
        other.disable()
        recorder.disable()
        recorder.clear()

    yield action


@case("TimingSwitch.__reduce__", "TimingSwitch.__repr__")
def timing_switch(folder: Path) -> Iterator[Callable[[], object]]:
    recorder = _core.TimeRecorder()

    def action() -> None:
        recorder.enable()
        seen = [_core.timing_switch.on]
        recorder.disable()
        assert [*seen, _core.timing_switch.on] == [True, False]
        repr(_core.timing_switch)
        copy.copy(_core.timing_switch)

    yield action


@case("call_in_main_thread")
def calls_in_the_main_thread(folder: Path) -> Iterator[Callable[[], object]]:
    def action() -> None:
        done: list[int] = []
        _core.call_in_main_thread(lambda: done.append(1))
        while not done:
            pass
        with contextlib.suppress(TypeError):
            _core.call_in_main_thread(3)  # type: ignore[arg-type]

    yield action


@case(
    "TimedFunction",
    "TimedFunction.__call__",
    "TimedFunction.__reduce__",
    "TimedFunction.__repr__",
    "TimedFunction.run",
)
def timed_functions(folder: Path) -> Iterator[Callable[[], object]]:
    recorder = _core.TimeRecorder(max_samples=1)

    def action() -> None:
        function: Any = _core.TimedFunction(len, "len")
        recorder.enable()
        function("abc")
        with contextlib.suppress(TypeError):
            function(3)
        recorder.disable()
        function("abc")
        repr(function)
        function.__reduce__()
        copy.copy(function)
        _core.TimedFunction(len, "len", (recorder,))("abc")
        function.run("abc")
        with contextlib.suppress(TypeError):
            function.run(abc=1)
        with contextlib.suppress(TypeError):
            _core.TimedFunction(len, "len", (3,))  # type: ignore[arg-type]
        with contextlib.suppress(TypeError):
            _core.TimedFunction(3, "len")  # type: ignore[arg-type]

    yield action


@case(
    "TimeRecorder.timer",
    "TimedBlock.__call__",
    "TimedBlock.__enter__",
    "TimedBlock.__exit__",
    "timer",
)
def timed_blocks(folder: Path) -> Iterator[Callable[[], object]]:
    recorder = _core.TimeRecorder(max_samples=1)

    def action() -> None:
        recorder.enable()
        with (
            _core.timer("outer"),
            recorder.timer("inner") as block,
            contextlib.suppress(RuntimeError),
        ):
            block.__enter__()
        recorder.timer("decorator")(len)("abc")
        recorder.disable()
        with _core.timer(name="off"):
            pass
        with contextlib.suppress(TypeError):
            _core.timer(3)  # type: ignore[arg-type]
        _core.timer("entered and never left").__enter__()

    yield action


@case("histogram_buckets", "histogram_middles")
def buckets_of_durations(folder: Path) -> Iterator[Callable[[], object]]:
    ns = array("q", [-1, 0, 70_000, 1 << 62])

    def action() -> None:
        assert len(_core.histogram_buckets(ns)) == 32
        assert len(_core.histogram_middles()) == 8 * _core.HISTOGRAM_BUCKETS
        with contextlib.suppress(TypeError):
            _core.histogram_buckets(b"abc")

    yield action


@case("add_histograms")
def histograms(folder: Path) -> Iterator[Callable[[], object]]:
    table = array("q", bytes(8 * 2880 * 2))
    places, used, totals = (array("q", values) for values in ([0, 1], [1, 2], [3, 9]))
    packed = bytes([7, 4, 9, 5, 10])

    def action() -> None:
        assert _core.add_histograms(table, places, used, totals, packed)
        assert not _core.add_histograms(table, places, totals, used, packed)
        with contextlib.suppress(ValueError):
            _core.add_histograms(table, places[:1], used, totals, packed)
        with contextlib.suppress(TypeError):
            _core.add_histograms(table, places, used, totals, totals)
        with contextlib.suppress(BufferError):
            _core.add_histograms(bytes(table), places, used, totals, packed)
        with contextlib.suppress(TypeError):
            _core.add_histograms(table, places, used, totals, 3)

    yield action


@case("encode_durations", "decode_durations")
def durations(folder: Path) -> Iterator[Callable[[], object]]:
    ns, values = array("q", [5, 70_000, 1 << 40]), array("q", [2, 1])
    shortest, longest = array("q", [5, 1 << 40]), array("q", [70_000, 1 << 40])

    def action() -> None:
        codes = array("H", _core.encode_durations(ns, values, shortest, longest))
        assert _core.decode_durations(codes, values, shortest, longest) is not None
        assert _core.decode_durations(codes, values, longest, shortest) is None
        codes[2] = 1
        assert _core.decode_durations(codes, values, shortest, longest) is None
        with contextlib.suppress(ValueError):
            _core.encode_durations(ns, values, longest, longest)
        with contextlib.suppress(ValueError):
            _core.encode_durations(ns, values[:1], shortest, longest)
        with contextlib.suppress(TypeError):
            _core.encode_durations(codes, values, shortest, longest)
        with contextlib.suppress(TypeError):
            _core.decode_durations(codes, values, shortest, 3)

    yield action
