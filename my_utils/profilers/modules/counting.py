"""FLOPs and peak memory of modules, counted in one call of the model that is not timed.

The call is the first one that the training makes anyway: nothing is run twice. Modes of torch's
dispatcher are on from before it until after it, in its thread, and hooks on the modules read what
they have counted.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from ... import _core
from ...core.dispatched import is_plain, is_traced
from ...core.running_frames import is_running
from ...core.warnings import warn_once
from ...tensors.tensor_kinds import SPARSE_PARTS, stored_parts
from ..torch_profiler.flops import calculates, counts_integers_only, custom_mapping
from .rows import Row

_graph_task = torch._C._current_graph_task_id


class _Watch(TorchDispatchMode):
    """Runs every operator once, as it would run without the mode, and looks at what it was given
    and what it made. What cannot be counted is one warning."""

    supports_higher_order_operators = True  # else torch raises for each of them

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # else functions compiled by torch.compile would run uncompiled

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_traced(types):
            return func(*args, **kwargs)
        if types and not all(map(is_plain, types)):
            return NotImplemented  # subclasses first: what they are made of comes here again
        return self._run(func, args, kwargs)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError

    def _try(self, note: Callable[..., None], func: Any, *call: Any) -> None:
        try:
            note(func, *call)
        except Exception as error:
            warn_once("module_counting", f"{func} is not counted ({error!r:.200})")


_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


@functools.cache
def _is_composite(func: Any) -> bool:
    """Whether the operator only calls others. Torch has divided it before a mode sees it, except in
    inference mode and in what tensor subclasses call."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    name = func.name()
    return has_kernel(name, "CompositeImplicitAutograd") and not any(
        has_kernel(name, key) for key in ("CPU", "CUDA", "PrivateUse1")
    )


def _tensors_in(*values: Any) -> list[torch.Tensor]:
    return [item for item in tree_leaves(values) if isinstance(item, torch.Tensor)]


def _is_dense(tensor: torch.Tensor) -> bool:
    """Others, as nested ones, may have a kernel of the operator that plain tensors have not."""
    return not tensor.is_nested and tensor.layout is torch.strided and not tensor.is_quantized


def _is_sparse(tensor: torch.Tensor) -> bool:
    return str(tensor.layout) in SPARSE_PARTS


class _Flops(_Watch):
    """Counts by the registry of torch's FlopCounterMode and our formulas.

    The mode of torch itself is not used: it raises in the program's forward for operators that it
    does not know how to run. uncounted: calls by operator for want of a formula, or where it fails.
    Formulas go by shapes, so there are none for sparse tensors.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        counter = FlopCounterMode(display=False, custom_mapping=custom_mapping())
        self._formulas = counter.flop_registry
        self.clear()

    def clear(self) -> None:
        self.total = 0
        self.uncounted: Counter[str] = Counter()
        self._unusual: set[str] = set()

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if _is_composite(func) and all(map(_is_dense, _tensors_in(args, kwargs))):
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        out = func(*args, **kwargs)
        self._try(self._add, func, args, kwargs, out)
        return out

    def _add(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if _graph_task() != -1:  # in a backward, where checkpointing repeats forwards
            return
        packet = getattr(func, "_overloadpacket", func)
        formula = self._formulas.get(packet)
        if formula is None or any(map(_is_sparse, _tensors_in(args, kwargs))):
            self._note_uncounted(func, args, kwargs)
        elif not counts_integers_only(packet, args):
            try:
                self.total += formula(*args, **kwargs, out_val=out)
            except Exception:  # inputs of another kind, as nested or sparse tensors
                self._note_uncounted(func, args, kwargs)

    def _note_uncounted(self, func: Any, args: Any, kwargs: Any) -> None:
        if isinstance(func, torch._ops.OpOverload):
            name = func._overloadpacket._qualified_op_name
            if torch.Tag.inplace_view in func.tags or not calculates(name):
                return
        else:
            name = f"{func.namespace}::{func.name()}"  # "higher_order::cond"
        tensors = _tensors_in(args, kwargs)
        if any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors):
            self.uncounted[name] += 1
            if torch.Tag.pointwise not in getattr(func, "tags", ()):
                self._unusual.add(name)

    def warn_of_uncounted(self) -> None:
        """Once for each set of operators. Functions of single elements, as tanh, are never counted,
        and are only in the table's `attrs`."""
        if self._unusual:
            calls = ", ".join(f"{name} ({self.uncounted[name]})" for name in sorted(self._unusual))
            text = f"FLOPs not counted of operators without a formula (calls): {calls}"
            warn_once(f"module_flops_{calls}", text)


class _Memory(_Watch):
    """Bytes of the tensors that operators have made meanwhile and that still live."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._known: set[int] = set()

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        self._try(self._note_all, func, (args, kwargs), False)
        out = func(*args, **kwargs)
        self._try(self._note_all, func, out, True)
        return out

    def _note_all(self, func: Any, values: Any, is_new: bool) -> None:
        for tensor in _tensors_in(values):
            for part in stored_parts(tensor) or (tensor,):
                self._note(part, is_new)

    def _note(self, tensor: torch.Tensor, is_new: bool) -> None:
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # as of oneDNN's tensors
            return
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes() if is_new else 0
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._freed, key, size).atexit = False

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size

    def start(self) -> int:
        """Starts a separate peak; returns what `end` needs."""
        before, self.peak = self.peak, self.live
        return before

    def end(self, before: int, live_before: int) -> int:
        grown = self.peak - live_before
        self.peak = max(self.peak, before)
        return grown


class _CudaMemory:
    """The same from the allocator of the device, whose peak statistics start anew each time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._above = 0

    @property
    def live(self) -> int:
        return torch.cuda.memory_allocated(self._device)

    def start(self) -> int:
        before = max(self._above, torch.cuda.max_memory_allocated(self._device))
        torch.cuda.reset_peak_memory_stats(self._device)
        self._above = 0
        return before

    def end(self, before: int, live_before: int) -> int:
        peak = max(self._above, torch.cuda.max_memory_allocated(self._device))
        self._above = max(before, peak)
        return peak - live_before


class CountingHook:
    """A hook that a copy of the model, as by deepcopy or pickle, has without an effect."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def __call__(self, *args: Any) -> None:
        if not torch.compiler.is_compiling():
            self._action()

    def __reduce__(self) -> Any:
        return (_core.ModuleHook, ())


class Counting:
    """Counts in the first call of `model` after `install`, into the rows.

    around: called with False when that call begins, and with True when the next one does: what
        checkpointing repeats in between is of a call that is not timed.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        rows: Sequence[Row],
        *,
        flops: bool,
        memory: bool,
        around: Callable[[bool], None],
    ) -> None:
        self.done = False
        self.model_flops = 0
        self._model = model
        self._rows = rows
        self._around = around
        self._flops = _Flops() if flops else None
        self._memory: Any = _memory_of(model) if memory else None
        self._handles: list[Any] = []
        self._modes: ExitStack | None = None
        self._thread = 0
        self._frame: FrameType | None = None  # of torch's code; it ends as the counted call does
        self._open: list[tuple[Row, int, int, int]] = []

    def install(self) -> None:
        """Before any other hook of the profiler is put on the model."""
        self._hook(self._model, self._begin, self._end)
        for row in self._rows:
            self._hook(row.module, self._make_enter(row), self._make_leave(row))

    def remove(self) -> None:
        """Also ends the call that was interrupted by what is not an Exception, as Ctrl-C is not."""
        if self._is_mine:
            self._close()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(
        self, module: torch.nn.Module, before: Callable[[], None], after: Callable[[], None]
    ) -> None:
        try:
            self._handles += (
                module.register_forward_pre_hook(CountingHook(before)),
                module.register_forward_hook(CountingHook(after), prepend=True, always_call=True),
            )
        except Exception:  # as of a module of torch.jit; the profiler warns of it
            return

    @property
    def _is_mine(self) -> bool:
        return self._modes is not None and threading.get_ident() == self._thread

    def _drop_interrupted(self) -> None:
        """Takes back a counted call that has ended without its hook: torch calls none after what
        is not an Exception, as Ctrl-C is not."""
        if self._is_mine and self._frame is not None and not is_running(self._frame):
            self._close()
            for row in self._rows:
                row.flops = row.peak_bytes = 0

    def _begin(self) -> None:
        self._drop_interrupted()
        if self.done:
            if _graph_task() == -1:
                self._around(True)
                self.remove()
            return
        if self._modes is not None:
            return
        self._thread = threading.get_ident()
        self._frame = sys._getframe(2)
        self._modes = ExitStack()
        self._around(False)
        if isinstance(self._memory, _Memory):
            self._modes.enter_context(self._memory)
        if self._flops is not None:
            self._flops.clear()  # of a call that was interrupted
            self._modes.enter_context(self._flops)

    def _end(self) -> None:
        """The model may be called by one of its own modules."""
        if self._is_mine and not self._open:
            self.done = True
            self.model_flops = self._count()
            self._leave_modes()
            if self._flops is not None:
                self._flops.warn_of_uncounted()

    def _close(self) -> None:
        """Ends a call that was interrupted."""
        self._leave_modes()
        self._around(True)

    def _leave_modes(self) -> None:
        modes, self._modes = self._modes, None
        self._frame = None
        self._open.clear()
        assert modes is not None
        modes.close()

    @property
    def uncounted(self) -> dict[str, int]:
        return {} if self._flops is None else dict(self._flops.uncounted)

    def _count(self) -> int:
        return 0 if self._flops is None else self._flops.total

    def _make_enter(self, row: Row) -> Callable[[], None]:
        def enter() -> None:
            self._drop_interrupted()
            if self._is_mine:
                before = live = 0
                if self._memory is not None:
                    before, live = self._memory.start(), self._memory.live
                self._open.append((row, self._count(), before, live))

        return enter

    def _make_leave(self, row: Row) -> Callable[[], None]:
        def leave() -> None:
            if not (self._is_mine and any(item[0] is row for item in self._open)):
                return
            while True:
                opened, flops, before, live = self._open.pop()
                if self._memory is not None:
                    grown = self._memory.end(before, live)
                    opened.peak_bytes = max(opened.peak_bytes, grown)
                if opened is row:
                    break
            gained = self._count() - flops
            row.flops += gained
            if self._open:  # it is the inner one's, as times are
                self._open[-1][0].flops -= gained

        return leave


def _memory_of(model: torch.nn.Module) -> _Memory | _CudaMemory:
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_cuda:
            return _CudaMemory(tensor.device)
    return _Memory()
