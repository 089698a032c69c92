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

import operator
from collections.abc import Mapping
from types import MappingProxyType
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


_NOTHING = StageTotal(0, 0)


def check_source(source: object) -> Source:
    """The source, or TypeError."""
    if isinstance(source, Source):
        has_been_read()
        return source
    raise TypeError(f"source must be a MyTimer or a TimeManager, not {type(source).__name__}")


def read_totals(
    source: Source, cleared: Mapping[str, StageTotal] = MappingProxyType({})
) -> dict[str, StageTotal]:
    """By the path of the stage, such as "iter/forward", or the name of the function. Some
    microseconds; thread-safe.

    What `TimeManager.clear` forgot counts on, but for `cleared`, so that totals never fall.
    """
    found: dict[str, StageTotal] = {}
    if isinstance(source, _core.TimeRecorder):
        for name, *numbers in source.all_totals():
            before = cleared.get(name, _NOTHING)
            calls, ns = numbers[0] + numbers[2], numbers[1] + numbers[3]
            if calls > before.calls:
                found[name] = StageTotal(calls - before.calls, ns - before.ns)
        return found
    for names, *numbers in source.totals():
        path = "/".join(names)  # of several stages, if one has a slash in its name
        sums = map(operator.add, found.get(path, _NOTHING), numbers)
        found[path] = StageTotal(*sums)
    return found


def cleared_totals(source: Source) -> dict[str, StageTotal]:
    """What `TimeManager.clear` has forgotten so far, by name."""
    if not isinstance(source, _core.TimeRecorder):
        return {}
    return {name: StageTotal(*numbers) for name, _, _, *numbers in source.all_totals()}


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
