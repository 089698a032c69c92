"""Measures the leaf modules of a model: calls, times, parameters, FLOPs and memory.

from my_utils.moduleProfiler import ModuleProfiler

with ModuleProfiler(model, backward=True) as profiler:
    for batch in batches:
        model(batch).sum().backward()
print(profiler.summary("modules.csv"))
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from ... import _core
from ...core.arguments import check_bool, check_classes, check_path
from ...core.extras import needs_torch, require
from ...core.files import atomic_write
from ...core.lazy_modules import lazy_module
from ...core.public import public
from ...core.ranks import check_ranks, is_chosen, rank_path
from ...core.reprs import short_repr
from ...core.tables import csv_table
from ...core.warnings import warn_once
from ...record.stages import compile as _compile

with needs_torch("my_utils.moduleProfiler"):
    import torch
    from torch.utils._pytree import tree_leaves

    from ...tensors.recordings.walk import find
    from .counting import Counting, CountingHook
    from .overhead import Overhead, measure_overhead
    from .rows import MODEL, Row, is_on_cuda, list_rows

if TYPE_CHECKING:
    import pandas
else:
    pandas = lazy_module("pandas")


_logger = logging.getLogger("my_utils")
_graph_task = torch._C._current_graph_task_id
_sequence_nr = torch._C._autograd._get_sequence_nr

_SLOTS = 3  # of a row: forward, forward that a backward repeats, backward
_GPU_WAIT_S = 60.0
_running: weakref.WeakSet[ModuleProfiler] = weakref.WeakSet()


class _Total(NamedTuple):
    """What `_core.ModuleTimes.figures` gives for one slot and clock; ns."""

    calls: int
    parts: int
    total: int
    inner: int
    shortest: int
    longest: int

    @property
    def own_ms(self) -> float:
        """Without what was timed inside it."""
        return max(self.total - self.inner, 0) / 1e6

    @property
    def mean_ms(self) -> float:
        return self.own_ms / self.calls if self.calls else float("nan")


@public("my_utils.moduleProfiler")
class ModuleProfiler:
    """Times each leaf module of a model; a context manager, or `start()` and `stop()`.

    Parameters (all but `model` by keyword):

    model: the module whose leaves are timed. Wrap it first (DDP, `fully_shard`, `torch.compile`).
    backward: also the backward of each module, by hooks on the nodes of autograd that its forward
        makes. (Full backward hooks would break in-place operations such as
        `nn.ReLU(inplace=True)`.) Accumulating gradients into parameters is in no module's time.
        Tensors are found in dicts, lists, tuples, dataclasses and what torch knows as a pytree; a
        module whose results are in something else is named in a warning.
    use_cuda: whether times are those of the GPU, by CUDA events; None: where the model has
        parameters or buffers on a CUDA device.
    cpu: the CPU's times beside those of the GPU: how long Python was in the module.
    flops: count forward FLOPs, by the formulas of torch's FlopCounterMode and ours, in the first
        call of the model after `start`. That call runs only once. Timing begins with the next one.
        Operators without a formula are named in one warning and in the table's `attrs`.
    memory: the peak of each module in that same call: bytes above what was allocated at its
        beginning. On CUDA from the allocator, whose peak statistics
        (`torch.cuda.max_memory_allocated`) are reset in each module meanwhile; on the CPU from the
        tensors that operators make.
    whole: classes, or names of classes, whose modules count as leaves; what is below them is part
        of them. torch.nn.MultiheadAttention is one, since it does not call its child.
    ranks: ranks that profile; None: all. On others everything does nothing.

    A leaf is a module without children, a compiled module, or one of `whole`. A leaf with several
    names in the model is one row. No time counts twice: that of a leaf which another leaf calls
    counts only for the leaf that is called.

    An exception of the model is not caught, and its call counts. Trouble of the profiler itself is
    one warning. Modules may be called from several threads; `start`, `stop` and `summary` are for
    one. In a forked child the profiler has stopped. Copies of the model, by deepcopy or pickle,
    have hooks that do nothing.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    >>> with ModuleProfiler(model) as profiler:
    ...     for _ in range(3):
    ...         _ = model(torch.ones(2, 4))
    >>> table = profiler.summary().set_index("module")
    >>> int(table.calls["0"]), int(table.parameters["0"]), table.type["1"]
    (3, 40, 'ReLU')
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        backward: bool = False,
        use_cuda: bool | None = None,
        cpu: bool = False,
        flops: bool = False,
        memory: bool = False,
        whole: type | str | Iterable[type | str] = (torch.nn.MultiheadAttention,),
        ranks: int | Iterable[int] | None = None,
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, not {model!r:.100}")
        if use_cuda is not None and not isinstance(use_cuda, bool):
            raise TypeError(f"use_cuda must be True, False or None, not {use_cuda!r:.100}")
        self.model = model
        self._backward = check_bool("backward", backward)
        self._use_cuda = use_cuda
        self._cpu = check_bool("cpu", cpu)
        self._flops = check_bool("flops", flops)
        self._memory = check_bool("memory", memory)
        self._whole = check_classes("whole", whole)
        self._ranks = check_ranks("ranks", ranks)
        self._rows: list[Row] = []
        self._times: _core.ModuleTimes | None = None
        self._overhead = Overhead()
        self._counting: Counting | None = None
        self._undo: list[Callable[[], object]] = []
        self._started = False
        self.running = False

    def __repr__(self) -> str:
        return short_repr(self, "_backward", "_use_cuda", "running")

    # --- hooks on and off ---

    def start(self) -> None:
        """Sets hooks on the current modules, and starts timing.

        Deletes earlier measurements, also while the profiler runs, so that calls before it (a
        warm-up) are left out. It takes a few milliseconds, to measure the cost of the hooks.
        """
        self._take_off()
        self._started = True
        if not is_chosen(self._ranks):
            return
        self._rows = list_rows(self.model, self._whole)
        wants_gpu = is_on_cuda(self.model) if self._use_cuda is None else self._use_cuda
        self._times = times = _core.ModuleTimes(_SLOTS * len(self._rows) + 1, wants_gpu)
        if self._use_cuda and not times.has_gpu:
            warn_once("module_profiler_cuda", "use_cuda=True, but no CUDA driver was found; "
                      "modules have CPU times only")  # fmt: skip
        self._overhead = measure_overhead(self._backward, times.has_gpu)
        if self._backward:
            times.watch(_graph_task, _sequence_nr, self._watch)
        _compile.vanish_hooks(CountingHook)
        self.running = True
        _running.add(self)
        try:
            self._counting = self._new_counting(times)
            self._hook_all(times)
        except BaseException:
            self._take_off()
            raise
        times.on = True

    def stop(self) -> None:
        """Takes all hooks off; the measurements stay. Waits for nothing.

        A second call does nothing; a profiler that was never started warns.
        """
        if not self._started:
            warn_once("module_profiler_stop", "stop() of a module profiler that was not started")
        self._take_off()

    def _take_off(self) -> None:
        if not self.running:
            return
        self.running = False
        _running.discard(self)
        if self._counting is not None:
            self._counting.remove()
        if self._times is not None:
            self._times.on = False
        undo, self._undo = self._undo, []
        for action in undo:
            action()

    def __enter__(self) -> ModuleProfiler:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._take_off()

    def _new_counting(self, times: _core.ModuleTimes) -> Counting | None:
        if not (self._flops or self._memory):
            return None
        if any(row.is_compiled for row in self._rows):
            warn_once("module_profiler_counting", "FLOPs and memory of a model with compiled "
                      "modules are not counted: it would have to run eagerly")  # fmt: skip
            return None

        def around(timed: bool) -> None:
            times.on = timed and self.running

        counting = Counting(
            self.model, self._rows, flops=self._flops, memory=self._memory, around=around
        )
        counting.install()  # first: it turns the others off and on
        return counting

    def _hook_all(self, times: _core.ModuleTimes) -> None:
        if not self._model_is_row:
            self._hook(self.model, MODEL, times.hooks(self._model_slot))
        for index, row in enumerate(self._rows):
            slot = _SLOTS * index
            hooks = times.hooks(slot, slot + 1 if self._backward else None)
            if row.module._compiled_call_impl is not None:
                self._wrap_compiled(row.module, *hooks)
            else:
                self._hook(row.module, row.name, hooks)

    def _hook(
        self, module: torch.nn.Module, name: str, hooks: tuple[_core.ModuleHook, _core.ModuleHook]
    ) -> None:
        try:
            self._undo += (
                module.register_forward_pre_hook(hooks[0]).remove,
                module.register_forward_hook(hooks[1], prepend=True, always_call=True).remove,
            )
        except Exception as error:  # as of a module of torch.jit
            warn_once(
                "module_profiler_not_hooked",
                f"the module {name!r} takes no hooks and is not timed ({error})",
            )

    def _wrap_compiled(
        self, module: torch.nn.Module, before: _core.ModuleHook, after: _core.ModuleHook
    ) -> None:
        """After `module.compile()` its hooks are part of what is compiled; this is around it."""
        compiled: Any = module._compiled_call_impl

        def timed(*args: Any, **kwargs: Any) -> Any:
            result = None
            before(module, args)
            try:
                result = compiled(*args, **kwargs)
                return result
            finally:
                after(module, args, result)

        def undo() -> None:
            if module._compiled_call_impl is timed:
                module._compiled_call_impl = compiled

        module._compiled_call_impl = timed
        self._undo.append(undo)

    @property
    def _model_is_row(self) -> bool:
        return len(self._rows) == 1 and self._rows[0].module is self.model

    @property
    def _model_slot(self) -> int:
        """Where the calls of the model as a whole are."""
        return 0 if self._model_is_row else _SLOTS * len(self._rows)

    # --- backward ---

    def _watch(self, slot: int, result: Any, first: int) -> None:
        """Puts hooks on the nodes of autograd that a forward has made: those numbered since its
        begin, in its thread, that its results lead to."""
        if self._times is None or not torch.is_grad_enabled():
            return
        try:
            found = [tensor for leaf in tree_leaves(result) for _, tensor in find(leaf)[0]]
            nodes = [tensor.grad_fn for tensor in found if tensor.grad_fn is not None]
            self._watch_nodes(nodes, slot, first)
            if not found and result is not None and _sequence_nr() > first:
                self._say_unwatched(slot, result)
        except Exception as error:
            warn_once(
                "module_profiler_backward",
                f"the backward of a module is not timed ({type(error).__name__}: {error})",
            )

    def _say_unwatched(self, slot: int, result: Any) -> None:
        name = self._rows[slot // _SLOTS].name
        warn_once(
            f"module_profiler_backward {name}",
            f"the backward of {name!r} is not timed: no tensors are found in its result, a "
            f"{type(result).__qualname__}",
        )

    def _watch_nodes(self, nodes: list[Any], slot: int, first: int) -> None:
        assert self._times is not None
        last = _sequence_nr()
        seen = set()
        hooks = None
        while nodes:
            node = nodes.pop()
            number = node._sequence_nr()
            if not first <= number < last or number in seen:
                continue
            seen.add(number)
            if hooks is None:
                hooks = self._times.hooks(slot + 2, once=True)
            node.register_prehook(hooks[0])
            node.register_hook(hooks[1])
            nodes.extend(source for source, _ in node.next_functions if source is not None)

    # --- what was measured ---

    def summary(self, output_path: str | os.PathLike[str] | None = None) -> pandas.DataFrame:
        """A table with one row a module, the one that took most time first. Printed, it shows as
        many columns as fit in a line, the times before all others.

        output_path: also written there as CSV, whole or not at all; "{rank}" in it becomes the
            rank. A file that cannot be written is one warning.

        Columns: module (its names, joined by ", "; "(model)" is the model itself), type, calls,
        total_ms, mean_ms, min_ms, max_ms of the forward, on the GPU where it was timed there;
        with `cpu` also cpu_total_ms, cpu_mean_ms; with `backward` recompute_calls, recompute_ms
        (forwards that activation checkpointing repeated), backward_calls, backward_ms,
        backward_mean_ms; share_percent of the time in all rows, backward and repetitions
        included; parameters (elements); with `flops` flops, with `memory` peak_memory_bytes, NaN
        where no call was counted; overhead_ms: what the hooks have cost the CPU.

        `attrs` of the table: clock ("gpu" or "cpu"), model_calls and model_ms (of the model as a
        whole), outside_ms (of that, in no row), overhead_ns_per_pair (of hooks) and
        overhead_ns_per_node (of autograd), overhead_ms (in all), empty_call_ms (what a module that
        does nothing would show), with `flops` model_flops (of the whole call
        without a backward in it) and flops_uncounted (calls by operator for want of a formula), and
        counts of what was not timed. The cost of the hooks is 0
        where it is not measured, as while torch has global hooks of modules.

        May be asked for while the profiler runs. Waits for GPU times that are not there yet, a
        minute at most. On ranks that do not profile, and before `start`, the table has no rows,
        and no file is written. ImportError without pandas, TypeError for what is no path.
        """
        path = None if output_path is None else check_path("output_path", output_path, or_none=True)
        require("pandas", "a summary of modules")
        from .module_table import ModuleTable

        self._wait_for_gpu()
        records = [self._record(index, row) for index, row in enumerate(self._rows)]
        table = ModuleTable(records, columns=self._columns())
        if len(table):
            by = table[["total_ms", *(["recompute_ms", "backward_ms"] if self._backward else [])]]
            whole = by.sum(axis=1)
            table["share_percent"] = 100 * whole / whole.sum() if whole.sum() > 0 else 0.0
            table = table.loc[whole.sort_values(ascending=False, kind="stable").index]
            table = table.reset_index(drop=True)
        table.attrs.update(self._facts(float(table["overhead_ms"].sum())))
        if path is not None and self._times is not None:
            self._write(table, path)
        return table

    def _columns(self) -> list[str]:
        return [
            *("module", "type", "calls", "total_ms", "mean_ms", "min_ms", "max_ms"),
            *(["cpu_total_ms", "cpu_mean_ms"] if self._cpu else []),
            *(["recompute_calls", "recompute_ms"] if self._backward else []),
            *(["backward_calls", "backward_ms", "backward_mean_ms"] if self._backward else []),
            *("share_percent", "parameters"),
            *(["flops"] if self._flops else []),
            *(["peak_memory_bytes"] if self._memory else []),
            "overhead_ms",
        ]

    def _record(self, index: int, row: Row) -> dict[str, Any]:
        forward, again, backward = (self._figures(_SLOTS * index + kind) for kind in range(_SLOTS))
        clock = self._clock
        total = forward[clock]
        pairs = forward[0].parts + again[0].parts
        counted = self._counting is not None and self._counting.done
        return {
            "module": row.name,
            "type": row.type_name,
            "calls": forward[0].calls,
            "total_ms": total.own_ms,
            "mean_ms": total.mean_ms,
            "min_ms": total.shortest / 1e6 if total.calls else float("nan"),
            "max_ms": total.longest / 1e6 if total.calls else float("nan"),
            "cpu_total_ms": forward[0].own_ms,
            "cpu_mean_ms": forward[0].mean_ms,
            "recompute_calls": again[0].calls,
            "recompute_ms": again[clock].own_ms,
            "backward_calls": backward[0].calls,
            "backward_ms": backward[clock].own_ms,
            "backward_mean_ms": backward[clock].mean_ms,
            "share_percent": 0.0,
            "parameters": row.parameters,
            "flops": row.flops if counted else float("nan"),
            "peak_memory_bytes": row.peak_bytes if counted else float("nan"),
            "overhead_ms": self._overhead.of(pairs, backward[0].parts),
        }

    @property
    def _clock(self) -> int:
        """Which of the two figures is shown as the time."""
        return int(self._times is not None and self._times.has_gpu)

    def _figures(self, slot: int) -> tuple[_Total, _Total]:
        assert self._times is not None
        cpu, gpu = self._times.figures(slot)
        return _Total(*cpu), _Total(*gpu)

    def _facts(self, overhead_ms: float) -> dict[str, Any]:
        """The attrs of the table."""
        if self._times is None:
            return {}
        model = self._figures(self._model_slot)
        if not self._model_is_row:
            overhead_ms += self._overhead.of(model[0].parts, 0)
        counting = self._counting
        flops = counting.model_flops if counting and counting.done else float("nan")
        return {
            "clock": ("cpu", "gpu")[self._clock],
            "model_calls": model[0].calls,
            "model_ms": model[self._clock].total / 1e6,
            "outside_ms": 0.0 if self._model_is_row else model[self._clock].own_ms,
            "overhead_ns_per_pair": self._overhead.pair_ns,
            "overhead_ns_per_node": self._overhead.node_ns,
            "overhead_ms": overhead_ms,
            "empty_call_ms": self._overhead.empty_ns / 1e6,
            **({"model_flops": flops} if self._flops else {}),
            **({"flops_uncounted": counting.uncounted if counting else {}} if self._flops else {}),
            **self._times.counts(),
        }

    def _wait_for_gpu(self) -> None:
        times = self._times
        if times is None or not times.has_gpu:
            return
        until = time.monotonic() + _GPU_WAIT_S
        times.collect()
        while times.counts()["gpu_waits"] and time.monotonic() < until:
            time.sleep(0.0005)
            times.collect()
        counts = times.counts()
        if counts["gpu_lost"] or counts["gpu_missed"] or counts["gpu_waits"]:
            reason = f" (the first error: {counts['gpu_error']})" if counts["gpu_error"] else ""
            warn_once(
                "module_profiler_gpu",
                f"GPU times of calls: {counts['gpu_missed']} were not taken, "
                f"{counts['gpu_lost']} lost, {counts['gpu_waits']} are not there yet{reason}",
            )

    def _write(self, table: pandas.DataFrame, path: Path) -> None:
        try:
            with atomic_write(rank_path(path, "module_profiler_rank")) as file:
                csv_table(table).to_csv(file, index=False)
        except OSError as error:
            warn_once("module_profiler_csv", f"the summary of modules is not written: {error}")

    def _after_fork(self) -> None:
        """In the child: the GPU's events are the parent's, and so are the calls that are open."""
        if self._times is not None:
            self._times.after_fork()
        self._take_off()


def _forget_in_child() -> None:
    for profiler in list(_running):
        profiler._after_fork()


os.register_at_fork(after_in_child=_forget_in_child)
