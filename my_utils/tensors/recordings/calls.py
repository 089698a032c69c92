"""The hooks: they record events in the order of the calls, with the tensors' metadata.

Each thread has a stack of the calls that run in it. The outermost call is a root. When it ends, the
parameters that were recorded below it are hashed. A backward may run the recomputed calls of
activation checkpointing in any thread, so these are their own roots.

No Exception is raised into the training. Other exceptions, such as KeyboardInterrupt, are.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from ...core.running_frames import is_running
from ...core.warnings import warn_once
from ..dtypes import dtype_name
from .metadata import MetadataCollector, innermost_transform
from .nesting import Nested, nested
from .options import TraceOptions
from .plan import Plan
from .recording import RootCall, TraceEvent, TraceTensorMeta
from .walk import Found, find, find_arguments
from .weights import RootState, Weights

_TEXT_MAX = 300

# The number of the backward that runs in this thread, -1 outside of one.
_backward_number = torch._C._current_graph_task_id


@dataclass(slots=True, eq=False)
class _Frame:
    """A call that runs. `event` is None if the filters leave the module out."""

    python: FrameType  # runs as long as the call
    plan: Plan
    root: RootState
    event: TraceEvent | None
    around: BaseException | None  # what was being handled when the call began
    is_quick: bool  # whether `MetadataCollector.take_forms` may have its tensors
    inputs: list[tuple[str, torch.Tensor, int]] = field(default_factory=list)  # with their versions


def _end_the_interrupted(stack: list[_Frame], innermost: FrameType) -> None:
    """torch calls no hook after what is not an Exception, such as a Ctrl-C: takes calls off the
    stack that run no more. They stay "open"."""
    while stack and not is_running(stack[-1].python, innermost):
        stack.pop()


class _NewEvent(TraceEvent):
    """An event with the fields that a hook has set, which has no time for all: others get their
    defaults when they are read. `complete` makes it a plain one."""

    __slots__ = ()

    if not TYPE_CHECKING:  # which would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            known = self.__dataclass_fields__.get(name)
            if known is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            has_factory = known.default_factory is not dataclasses.MISSING
            value = known.default_factory() if has_factory else known.default
            setattr(self, name, value)
            return value

    def complete(self) -> None:
        for name in self.__dataclass_fields__:
            getattr(self, name)
        self.__class__ = TraceEvent  # type: ignore[assignment]


class _Thread(threading.local):
    def __init__(self) -> None:
        self.stack: list[_Frame] = []


class Calls:
    """The recording as it grows. Thread-safe."""

    def __init__(self, options: TraceOptions) -> None:
        self.options = options
        self.sampler = options.sampler()
        self.collector = MetadataCollector(options.max_pending_bytes)
        self.weights = (
            None
            if options.param_kind == "none"
            else Weights(options.param_kind, self.collector, options.max_pending_bytes)
        )
        before = {
            self._take_inputs: options.record_inputs or options.record_grads,
            self._take_buffers: options.buffer_kind != "none",
            self._note_param_dtypes: options.record_param_dtypes,
            self._note_buffer_dtypes: options.record_buffer_dtypes,
        }
        self._takes = [take for take, is_wanted in before.items() if is_wanted]
        self.events: list[TraceEvent] = []
        self._complete = 0  # of them, the first ones
        self.roots: list[RootCall] = []
        self.param_grads: list[TraceTensorMeta] = []
        self.counts: dict[str, int] = {}
        self._is_quick = options.hash != "md5" and not options.stats and self.sampler is None
        self._ended = itertools.count()
        self._arrived = itertools.count()
        self._thread = _Thread()
        self._lock = threading.RLock()
        self._dtypes: dict[tuple[tuple[str, torch.dtype], ...], dict[str, str]] = {}
        self._param_hooks: list[Any] = []
        self._leaf_hooks: set[Any] = set()  # on tensors of calls that outlive their graph
        self._leaf_hooks_done: set[Any] = set()  # those of them that have seen a gradient
        # Called when a root begins, and with its index when it has ended; see `graph`.
        self.root_watchers: tuple[Callable[[], None], Callable[[int], None]] | None = None

    # --- hooks ---

    def before(
        self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType
    ) -> None:
        """caller: the function of torch that runs the hooks."""
        event = None
        try:
            frame = self._enter(plan, caller)
            event = frame.event
            if self.weights is not None and frame.root.record.phase == "forward":
                self._take_params(self.weights, frame)
            if event is not None:
                for take in self._takes:
                    take(frame, event, args, kwargs)
        except Exception as error:
            self._trouble(plan.name, event, error)

    def after(self, plan: Plan, output: Any, caller: FrameType) -> None:
        stack = self._thread.stack
        if stack and stack[-1].python is not caller.f_back:
            _end_the_interrupted(stack, caller)
        if not stack or stack[-1].plan is not plan:
            return  # a call that began before the hooks were there
        frame = stack.pop()
        event = frame.event
        try:
            if event is not None:
                self._take_after(frame, event, output)
        except Exception as error:
            self._trouble(plan.name, event, error)
        if not stack:
            self._end_root(frame)

    # --- the stack ---

    def _enter(self, plan: Plan, caller: FrameType) -> _Frame:
        stack = self._thread.stack
        python = caller.f_back or caller  # it also runs the hooks of a call that raises
        if stack and not is_running(stack[-1].python, python):
            _end_the_interrupted(stack, python)
        recompute = _backward_number() != -1
        phase = "recompute" if recompute else "forward"
        root = stack[-1].root if stack else self._begin_root(plan, phase)
        event = self._new_event(plan, phase, root, stack) if plan.recorded else None
        is_quick = self._is_quick and innermost_transform() is None
        frame = _Frame(python, plan, root, event, sys.exception(), is_quick)
        stack.append(frame)
        if len(stack) == 1 and self.weights is not None and not recompute:
            self.weights.begin(root)
        return frame

    def _begin_root(self, plan: Plan, phase: str) -> RootState:
        if phase == "forward" and self._leaf_hooks_done:
            self._unwatch_leaves(self._leaf_hooks_done)
        with self._lock:
            record = RootCall(len(self.roots), plan.name, phase, time.time(), status="open")
            self.roots.append(record)
        if self.root_watchers is not None:
            self.root_watchers[0]()
        return RootState(plan, record)

    def _new_event(
        self, plan: Plan, phase: str, root: RootState, stack: list[_Frame]
    ) -> TraceEvent:
        event = _NewEvent.__new__(_NewEvent)
        event.module = plan.name
        event.type = plan.type_name
        event.root = root.record.index
        event.phase = phase
        event.status = "open"
        event.training = plan.module.training
        event.grad_enabled = torch.is_grad_enabled()
        for frame in reversed(stack):
            if frame.event is not None:
                event.parent, event.depth = frame.event.index, frame.event.depth + 1
                break
        with self._lock:
            event.index, event.call = len(self.events), plan.counts[phase]
            plan.counts[phase] += 1
            self.events.append(event)
        return event

    def _end_root(self, frame: _Frame) -> None:
        root = frame.root
        root.record.status = "ok" if frame.event is None else frame.event.status
        if self.root_watchers is not None:
            self.root_watchers[1](root.record.index)
        if self.weights is None or root.record.phase == "recompute":
            return
        try:
            self.weights.finish(root)
        except Exception as error:
            self._trouble(frame.plan.name, frame.event, error)

    # --- metadata of tensors ---

    def _take_params(self, weights: Weights, frame: _Frame) -> None:
        event = frame.event
        try:
            params = weights.before_call(frame.plan, frame.root)
            if event is not None:
                event.params = params
        except Exception as error:
            self._trouble(frame.plan.name, event, error)

    def _take_inputs(self, frame: _Frame, event: TraceEvent, args: Any, kwargs: Any) -> None:
        found, values = find_arguments(args, kwargs)
        if self.options.record_inputs:
            if values:
                event.input_values = values
            self._take(found, frame, event, "inputs")
            for path, x in found:
                if not x.is_inference():
                    frame.inputs.append((path, x, x._version))
        if self.options.record_grads:
            self._watch(event, "inputs", found)

    def _take_buffers(self, frame: _Frame, event: TraceEvent, args: Any, kwargs: Any) -> None:
        there = frame.plan.module._buffers.items()
        buffers = [(name, tensor) for name, tensor in there if tensor is not None]
        metas = self.collector.take(buffers, self.options.buffer_kind)
        event.buffers = {meta.path: meta for meta in metas}

    def _note_param_dtypes(self, frame: _Frame, event: TraceEvent, args: Any, kwargs: Any) -> None:
        event.param_dtypes = self._dtypes_of(frame.plan.module._parameters)

    def _note_buffer_dtypes(self, frame: _Frame, event: TraceEvent, args: Any, kwargs: Any) -> None:
        event.buffer_dtypes = self._dtypes_of(frame.plan.module._buffers)

    def _take_after(self, frame: _Frame, event: TraceEvent, output: Any) -> None:
        event.end_index = next(self._ended)
        error = sys.exception() if output is None else None
        if error is not None and error is not frame.around:
            stopped = type(error).__name__ == "_StopRecomputationError"
            event.status = "stopped" if stopped else "raised"
            event.exception = f"{type(error).__name__}: {error}"[:_TEXT_MAX]
            return
        event.status = "ok"
        options = self.options
        if options.record_outputs or options.record_grads:
            found, values = find(output)
            if options.record_outputs:
                if values:
                    event.output_values = values
                self._take(found, frame, event, "outputs")
                self._take_written(frame, event, found)
            if options.record_grads:
                self._watch(event, "outputs", found)

    def _take(self, found: Found, frame: _Frame, event: TraceEvent, side: str) -> None:
        options = self.options
        hashed = options.hash == "tensor"
        if frame.is_quick and self.collector.take_forms(found, event, side, hashed):
            return
        metas = self.collector.take(found, options.hash, options.stats, self.sampler)
        getattr(event, side).extend(metas)

    def _take_written(self, frame: _Frame, event: TraceEvent, outputs: Found) -> None:
        """The inputs that are no longer what they were."""
        written = []
        for path, x, version in frame.inputs:
            if x._version != version:
                written.append((path, x))
        if written:
            given = {id(tensor) for _, tensor in outputs}
            changed = [(path, x) for path, x in written if id(x) not in given]
            self._take(changed, frame, event, "written")

    def _dtypes_of(self, tensors: dict[str, Any]) -> dict[str, str]:
        """The same dict for the same answer, so that a file holds it once."""
        key = tuple((name, tensor.dtype) for name, tensor in tensors.items() if tensor is not None)
        known = self._dtypes.get(key)
        if known is None:
            known = {name: dtype_name(dtype) for name, dtype in key}
            self._dtypes[key] = known
        return known

    # --- gradients ---

    def _watch(self, event: TraceEvent, side: str, found: Found) -> None:
        """Tensor hooks, since hooks of whole modules forbid in-place operations after them."""
        if not event.grad_enabled:
            return
        for path, tensor in found:
            if not tensor.requires_grad:
                continue
            hook = _GradHook(self, event, f"{side}.{path}".rstrip("."))
            handle = tensor.register_hook(hook)
            if tensor.is_leaf:
                hook.handle = handle
                self._leaf_hooks.add(handle)

    def watch_params(self, model: torch.nn.Module, names: set[str]) -> None:
        """Notes the gradients that are accumulated into parameters."""
        for name, param in model.named_parameters():
            lazy = torch.nn.parameter.is_lazy(param)  # takes no hook before the first forward
            if lazy and name in names:
                warn_once(
                    f"forward_trace_lazy:{name}",
                    f"the gradients of {name} are not recorded: it is lazy; install the recorder "
                    "after the first forward",
                )
            elif name in names and param.requires_grad and param.is_leaf:
                hook = functools.partial(self._param_gradient, name)
                self._param_hooks.append(param.register_post_accumulate_grad_hook(hook))

    def _param_gradient(self, name: str, param: torch.Tensor) -> None:
        self.gradient(None, name, param.grad)

    def unwatch(self) -> None:
        """Takes the hooks off all tensors that outlive their graph."""
        hooks, self._param_hooks = self._param_hooks, []
        for hook in hooks:
            hook.remove()
        self._unwatch_leaves(self._leaf_hooks)

    def _unwatch_leaves(self, hooks: set[Any]) -> None:
        """Else a leaf would bring the gradients of later calls to the earlier ones, too."""
        with self._lock:
            hooks = set(hooks)
            self._leaf_hooks -= hooks
            self._leaf_hooks_done -= hooks
        for hook in hooks:
            hook.remove()

    def leaf_is_done(self, handle: Any) -> None:
        with self._lock:
            self._leaf_hooks_done.add(handle)

    def gradient(self, event: TraceEvent | None, path: str, grad: torch.Tensor | None) -> None:
        if grad is None:
            return
        try:
            into = self.param_grads if event is None else event.grads
            options = self.options
            metas = self.collector.take([(path, grad)], options.hash, options.stats, self.sampler)
            arrived = next(self._arrived)
            for meta in metas:
                meta.arrived = arrived
            into.extend(metas)
        except Exception as error:
            self._trouble(path, event, error)

    # --- the rest ---

    def add_compiled(self, root: int, events: Iterable[TraceEvent]) -> None:
        """Calls from inside a graph, after those that the hooks saw, below the outermost one."""
        with self._lock:
            if root < 0:
                root = len(self.roots)
                self.roots.append(RootCall(root, "", began_unix=time.time()))
            seen = [e for e in self.events if e.root == root and e.phase == "forward"]
            counts = Counter(e.module for e in self.events if e.phase == "forward")
            for event in events:
                event.call = counts[event.module]
                counts[event.module] += 1
            self._place(nested(seen, list(events)), root)

    def _place(self, calls: list[Nested], root: int) -> None:
        """Gives calls from inside a graph their places: parents begin before and end after what is
        in them."""
        for call in calls:
            event = call.event
            event.index, event.root = len(self.events), root
            if call.around is not None:
                event.parent, event.depth = call.around.index, call.around.depth + 1
            self.events.append(event)
            self._place(call.inside, root)
            event.end_index = next(self._ended)

    def fetch(self) -> None:
        """Completes the events so far. Waits for CUDA where it was used."""
        self.collector.flush()
        with self._lock:
            for event in self.events[self._complete :]:
                if isinstance(event, _NewEvent):
                    event.complete()
            self._complete = len(self.events)

    def release(self) -> None:
        """Ends what runs."""
        self._thread = _Thread()
        if self.weights is not None:
            self.weights.forget()

    def clear(self) -> None:
        self._unwatch_leaves(self._leaf_hooks)
        with self._lock:
            self.fetch()
            self._complete = 0
            self.events, self.roots, self.param_grads, self.counts = [], [], [], {}
            self._ended, self._arrived = itertools.count(), itertools.count()
            self._thread = _Thread()

    def count(self, kind: str) -> None:
        with self._lock:
            self.counts[kind] = self.counts.get(kind, 0) + 1

    def _trouble(self, name: str, event: TraceEvent | None, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"[:_TEXT_MAX]
        if event is not None:
            event.error = text
        self.count("hook_errors")
        warn_once(
            "forward_trace_hook",
            f"the forward trace recorder failed at the module {name!r} ({text}); that call is "
            "recorded in part, training goes on, and further failures are only counted",
        )


@dataclass(slots=True, eq=False)
class _GradHook:
    """Of one tensor of one call."""

    calls: Calls
    event: TraceEvent
    path: str
    handle: Any = None  # of a leaf

    def __call__(self, grad: torch.Tensor) -> None:
        if self.handle is not None:
            self.calls.leaf_is_done(self.handle)
        self.calls.gradient(self.event, self.path, grad)
