"""When a rank reached the collectives inside backward of FSDP, from torch's flight recorder.

The recorder keeps the last collectives in a ring, with the time at which each was enqueued. A dump
holds the GIL, so it is taken after a step and seldom: after 16 steps in a row, about once a minute.
`my_utils run` has torch keep 256 collectives: a dump of them takes 1 to 2 ms. Where a longer ring
makes most dumps take more than 3 ms, nothing is read further.

The rows are those of DDP's buckets: a collective takes the place of a bucket.
"""

from __future__ import annotations

import importlib
import math
import pickle
import time
from collections.abc import Sequence
from typing import Any

from ... import _core
from .bucket_layout import BUCKETS_MAX, module_text
from .buckets import NS_IN_US, SampledSteps, Write

_BURST = 16  # steps in a row
_FIRST = 16  # the step at which the first burst begins
_LEAST_PERIOD = 64  # steps between the begins of two others
_PERIOD_NS = 60e9
_DUMP_NS = 3e6  # of processor time
_WRAPPED = "_fsdp_wrapped_module"  # what FSDP 1 puts between a module and its own
_SIZES = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2}

Call = tuple[str, int]  # kind, bytes


class FlightSampler(SampledSteps):
    """Looks at some steps of the FSDP models of a process. Not thread-safe. Arguments as those of
    `BucketSampler`."""

    def __init__(self, stages: _core.RunStages, write: Write, every: int | None = None) -> None:
        super().__init__(stages, write, every)
        self._modules: list[str] = []
        self._calls: list[Call] = []
        self._is_watching = False
        self._slow_dumps = 0  # less those that were not

    def __repr__(self) -> str:
        return f"FlightSampler({len(self._calls)} collectives)"

    @property
    def is_on(self) -> bool:
        """Whether there is anything to look at."""
        return self._is_watching

    def watch(self, models: Sequence[Any]) -> None:
        """The modules of FSDP, 1 or 2, in the order of the model, are looked at from now on."""
        self._is_watching = self._every != 0 and bool(models) and read_recorder() is not None
        self._modules = _list_units(models) if self._is_watching else []

    def forget(self) -> None:
        super().forget()
        self._is_watching = False

    def _is_chosen(self, step: int) -> bool:
        period = self._period()
        is_in_burst = step >= period and step % period < _BURST
        return is_in_burst or _FIRST <= step < _FIRST + _BURST

    def _period(self) -> int:
        """A power of two: ranks with longer periods look where all do."""
        period = _LEAST_PERIOD
        while 0 < period * self._usual_ns < _PERIOD_NS:
            period *= 2
        return period

    def _look(self) -> _core.BucketTimes | None:
        return _core.BucketTimes((), ())  # it only keeps the times of the backward

    def _write_times(self, step: int, looked: _core.BucketTimes) -> None:
        began_ns, ended_ns, _ = looked.read()
        if not began_ns:
            return
        real_ns = time.time_ns() - time.monotonic_ns()
        entries = self._entries(began_ns + real_ns, ended_ns + real_ns)
        calls = [_call(entry) for entry in entries]
        if not calls or len(calls) > BUCKETS_MAX:
            return
        if not self._calls:
            self._calls = calls
            self._write_layout()
        if calls != self._calls:
            return  # another kind of step; it is compared with nothing
        begin_ns = began_ns + real_ns
        times = [(entry["time_created_ns"] - begin_ns) // NS_IN_US for entry in entries]
        self._write_ready(step, began_ns, times)

    def _entries(self, begin_ns: int, end_ns: int) -> list[dict[str, Any]]:
        """The collectives between two moments, Unix time."""
        before_ns = time.thread_time_ns()
        dump = read_recorder()
        entries = [] if dump is None else pickle.loads(dump)["entries"]
        is_slow = time.thread_time_ns() - before_ns > _DUMP_NS
        self._slow_dumps = max(self._slow_dumps + (1 if is_slow else -1), 0)
        if self._slow_dumps >= _BURST:
            self.forget()
        return [
            entry for entry in entries
            if begin_ns <= entry["time_created_ns"] <= end_ns and not entry["is_p2p"]
        ]  # fmt: skip

    def _write_layout(self) -> None:
        for number, ((kind, size), name) in enumerate(
            zip(self._calls, _names(self._calls, self._modules), strict=True)
        ):
            row = {"bucket": number, "bytes": size, "modules": name, "kind": kind}
            self._write("my_utils.bucket", row, 0)


def read_recorder(*, with_stacks: bool = False) -> bytes | None:
    """What the recorder of this process holds, pickled, which takes half of what JSON does; None
    where torch has none."""
    try:
        recorder: Any = importlib.import_module("torch._C._distributed_c10d")
        dump: bytes = recorder._dump_fr_trace(True, with_stacks, False)
    except (ImportError, AttributeError, RuntimeError, TypeError):
        return None
    return dump


def _list_units(models: Sequence[Any]) -> list[str]:
    """Of those modules of FSDP that have their own parameters, in the model's order."""
    states = {id(model): _inspect(model) for model in models}
    return [
        _without_wrappers(name)
        for root in models
        if states[id(root)][0]
        for name, module in root.named_modules()
        if states.get(id(module), (False, False))[1]
    ]


def _inspect(model: Any) -> tuple[bool, bool]:
    """Whether it is the outermost one, and whether it has its own parameters."""
    state, group = model, "_handle"  # of FSDP 1
    if hasattr(model, "_get_fsdp_state"):
        state, group = model._get_fsdp_state(), "_fsdp_param_group"
    return bool(getattr(state, "_is_root", False)), getattr(state, group, None) is not None


def _without_wrappers(name: str) -> str:
    """
    >>> _without_wrappers("_fsdp_wrapped_module.layers.3._fsdp_wrapped_module.mlp")
    'layers.3.mlp'
    """
    return ".".join(part for part in name.split(".") if part != _WRAPPED)


def _call(entry: dict[str, Any]) -> Call:
    """
    >>> _call({"profiling_name": "nccl:_reduce_scatter_base", "input_sizes": [[2, 8]],
    ...        "input_dtypes": ["Float"]})
    ('reduce_scatter', 64)
    """
    kind = entry["profiling_name"].rpartition(":")[2].removeprefix("_").removesuffix("_base")
    size = 0
    for shape, dtype in zip(entry["input_sizes"], entry["input_dtypes"], strict=False):
        size += math.prod(shape) * _SIZES.get(dtype, 1)
    return kind, size


def _names(calls: Sequence[Call], modules: Sequence[str]) -> list[str]:
    """Backward reduces the gradients of the last module first. Where each module has one reduction,
    that is named by it, and so is what comes before.

    >>> _names([("all_gather", 8), ("reduce_scatter", 8), ("reduce_scatter", 4)], ["", "layers.0"])
    ['before layers.0', 'layers.0', 'the model itself']
    """
    reduces = [number for number, (kind, _) in enumerate(calls) if "reduce" in kind]
    if len(reduces) != len(modules):
        return [""] * len(calls)
    names = [""] * len(calls)
    before = 0
    for number, module in zip(reduces, reversed(modules), strict=True):
        text = module_text([module])
        names[before:number] = [f"before {text}"] * (number - before)
        names[number] = text
        before = number + 1
    return names
