"""Count and total time of each stage, and the mean between two snapshots of them.

>>> from my_utils.timing import TimeManager
>>> manager = TimeManager({"load": [0.002, 0.004]})
>>> means = Means()
>>> means.since_last(read_totals(manager))
{'time/load': 3.0}
>>> manager.add("load", 7_000_000)
>>> means.since_last(read_totals(manager))
{'time/load': 7.0}
"""

from __future__ import annotations

from typing import NamedTuple

from ... import _core
from ..stages.unwritten import has_been_read

Source = _core.Timer | _core.NoOpTimer | _core.TimeRecorder


class StageTotal(NamedTuple):
    """Calls and their time in ns: on the CPU, and on the GPU where that was taken."""

    calls: int
    ns: int
    gpu_calls: int = 0
    gpu_ns: int = 0


def check_source(source: object) -> Source:
    """The source, or TypeError."""
    if isinstance(source, Source):
        has_been_read()
        return source
    raise TypeError(f"source must be a MyTimer or a TimeManager, not {type(source).__name__}")


def read_totals(source: Source) -> dict[str, StageTotal]:
    """By the path of the stage, such as "iter/forward", or the name of the function. Some
    microseconds; thread-safe."""
    if isinstance(source, _core.TimeRecorder):
        return {name: StageTotal(count, total) for name, count, total in source.totals()}
    return {"/".join(names): StageTotal(*numbers) for names, *numbers in source.totals()}


class Means:
    """The mean time of a call since the last snapshot, in ms, by the name of a scalar.

    prefix: a stage's scalar is `<prefix>/<path>`, that of its GPU time `gpu_<prefix>/<path>`.

    Stages without a call since then are left out. Not thread-safe.
    """

    def __init__(self, prefix: str = "time") -> None:
        self._prefix = prefix
        self._before: dict[str, StageTotal] = {}

    def since_last(self, totals: dict[str, StageTotal]) -> dict[str, float]:
        found = {}
        for path, now in totals.items():
            before = self._before.get(path, StageTotal(0, 0))
            if now.calls < before.calls:  # its times were cleared
                before = StageTotal(0, 0)
            if now.calls > before.calls:
                mean_ns = (now.ns - before.ns) / (now.calls - before.calls)
                found[f"{self._prefix}/{path}"] = mean_ns * 1e-6
            if now.gpu_calls > before.gpu_calls:
                mean_ns = (now.gpu_ns - before.gpu_ns) / (now.gpu_calls - before.gpu_calls)
                found[f"gpu_{self._prefix}/{path}"] = mean_ns * 1e-6
        self._before = totals
        return found
