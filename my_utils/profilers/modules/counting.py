"""FLOPs and peak memory of modules, counted in one call of the model that is not timed.

The call is the first one that the training makes anyway: nothing is run twice. Modes of torch's
dispatcher are on from before it until after it, in its thread, and hooks on the modules read what
they have counted.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from ... import _core
from ...core.warnings import warn_once
from ..torch_profiler.flops import counts_integers_only, custom_mapping
from .rows import Row

_graph_task = torch._C._current_graph_task_id


class _Flops(FlopCounterMode):
    """An operator whose formula fails counts nothing; the training continues."""

    def __init__(self) -> None:
        super().__init__(display=False, custom_mapping=custom_mapping())

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        if _graph_task() != -1:  # in a backward, where checkpointing repeats forwards
            return out
        if counts_integers_only(func_packet, args):
            return out
        try:
            super()._count_flops(func_packet, out, args, kwargs)  # type: ignore[no-untyped-call]
        except Exception as error:
            warn_once(
                "module_flops", f"the FLOPs of {func_packet} are not counted ({error!r:.200})"
            )
        return out


class _Memory(TorchDispatchMode):
    """Bytes of the tensors that operators have made meanwhile and that still live."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in tree_leaves((args, kwargs)):
            self._note(tensor, is_new=False)
        out = func(*args, **kwargs)
        for tensor in tree_leaves(out):
            self._note(tensor, is_new=True)
        return out

    def _note(self, tensor: Any, is_new: bool) -> None:
        if not isinstance(tensor, torch.Tensor):
            return
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # as of sparse tensors
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
        self._frame: FrameType | None = None  # of the call that is counted
        self._open: list[tuple[Row, int, int, int]] = []

    def install(self) -> None:
        """Before any other hook of the profiler is put on the model."""
        self._hook(self._model, self._begin, self._end)
        for row in self._rows:
            self._hook(row.module, self._enter_of(row), self._leave_of(row))

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
        if self._is_mine and not _is_running(self._frame):
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
        self._frame = _frame_of_call()
        self._modes = ExitStack()
        self._around(False)
        if isinstance(self._memory, _Memory):
            self._modes.enter_context(self._memory)
        if self._flops is not None:
            self._modes.enter_context(self._flops)

    def _end(self) -> None:
        """The model may be called by one of its own modules."""
        if self._is_mine and not self._open:
            self.done = True
            self.model_flops = self._count()
            self._leave_modes()

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

    def _count(self) -> int:
        return 0 if self._flops is None else self._flops.get_total_flops()

    def _enter_of(self, row: Row) -> Callable[[], None]:
        def enter() -> None:
            self._drop_interrupted()
            if self._is_mine:
                before = live = 0
                if self._memory is not None:
                    before, live = self._memory.start(), self._memory.live
                self._open.append((row, self._count(), before, live))

        return enter

    def _leave_of(self, row: Row) -> Callable[[], None]:
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


def _frame_of_call() -> FrameType | None:
    """Of torch's code that calls the hook which is running; its end is the end of the call."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals is globals():
        frame = frame.f_back
    return frame


def _is_running(wanted: FrameType | None) -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame is not wanted:
        frame = frame.f_back
    return frame is not None


def _memory_of(model: torch.nn.Module) -> _Memory | _CudaMemory:
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_cuda:
            return _CudaMemory(tensor.device)
    return _Memory()
